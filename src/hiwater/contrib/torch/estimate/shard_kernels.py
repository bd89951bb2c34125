"""What the kernels allocate that copy FSDP's parameters out of a gathered buffer, and gradients into one.

Both pack addresses, sizes and a number for each block of threads into one tensor of 64-bit integers on the card:
`get_chunk_cat_metadata` and `split_with_sizes_copy_out_cuda_contiguous_no_cast` of ATen's native/cuda/TensorShape.cu.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from hiwater.contrib.torch.estimate.cards import Processors
from hiwater.contrib.torch.estimate.hidden import HiddenStorage

_THREADS, _BYTES_PER_THREAD = 128, 16  # BLOCK_SIZE, BYTES_PER_THREAD
_TILE = _THREADS * _BYTES_PER_THREAD
_INTEGER = 8


def buffers(
    processors: Processors, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[HiddenStorage]:
    """The packed tensor of this operator, if it is one of these."""
    name = function.name()
    if name in ("fsdp::chunk_cat", "aten::_chunk_cat.out"):
        tensors, _, chunks, out = _given(args, kwargs)
        if _is_fused(tensors, out.dtype):
            yield HiddenStorage(_of_chunks(tensors, chunks, out.element_size()))
    elif name in ("fsdp::split_with_sizes_copy", "aten::split_with_sizes_copy.out"):
        whole, sizes, dim, out = _given(args, kwargs)
        if all(part.dtype == whole.dtype for part in out):
            yield HiddenStorage(_of_splits(processors, whole, sizes, dim))


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The three arguments and `out`, which programs may name."""
    return [*args, *(kwargs[name] for name in ("dim", "num_chunks", "out") if name in kwargs)]


def _is_fused(tensors: list[torch.Tensor], dtype: torch.dtype) -> bool:
    given = tensors[0].dtype
    return given == dtype or (given is torch.bfloat16 and dtype is torch.float32)


def _of_chunks(tensors: list[torch.Tensor], chunks: int, element_size: int) -> int:
    blocks = 0
    for tensor in tensors:
        rows = -(-tensor.shape[0] // chunks)
        blocks += -(-rows * math.prod(tensor.shape[1:]) * element_size // _TILE)
    return int(6 * len(tensors) + 2 + blocks) * _INTEGER


def _of_splits(processors: Processors, whole: torch.Tensor, sizes: list[int], dim: int) -> int:
    stride = whole.stride(dim) * whole.element_size()
    chunks = whole.numel() // math.prod(whole.shape[dim:])
    most = processors.multiprocessors * processors.threads // _THREADS * 2
    factor = -(-sum(-(-size * stride // _TILE) for size in sizes) * chunks // most)
    per_block = min(math.ceil(math.sqrt(factor)), chunks)
    turns = -(-factor // per_block)
    blocks = sum(-(-size * stride // (_TILE * turns)) for size in sizes)
    return int(4 * len(sizes) + 1 + blocks) * _INTEGER
