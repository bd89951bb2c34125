"""What single operators allocate on a card besides their results, while they run.

Kernels copy what does not lie as they read it: norms of layers, convolutions backward, `roll` (layer_norm_kernel.cu,
Convolution.cpp, TensorTransformations.cu in ATen). Softmax's backward multiplies gradient and output first
(`softmax_backward_cuda_out` in ATen's native/cuda/SoftMax.cu).
That of an embedding sorts the ids and adds up segments of equal ones (`embedding_dense_backward_cuda` and
`embedding_backward_cuda_kernel` in Embedding.cu and EmbeddingBackwardKernel.cu there). The temporaries of the sort
itself are CUB's, and are left out.
That of packed sequences' attention has what `attention._Flash` has, with 128 rows more for each sequence
(`mha_varlen_bwd` in flash_attn's flash_api.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from hiwater.contrib.torch.estimate import convolutions, reductions
from hiwater.contrib.torch.estimate.cards import Processors
from hiwater.contrib.torch.estimate.hidden import HiddenStorage

_FEW = 3072  # ids: up to here, and unless gradients are scaled by frequency, a kernel that sorts nothing runs
_ROWS_PER_THREAD = 10
_aten = torch.ops.aten
_OF_EMBEDDING = _aten.embedding_dense_backward.default
_OF_SOFTMAX = _aten._softmax_backward_data.default
_NORM, _OF_NORM = _aten.native_layer_norm.default, _aten.native_layer_norm_backward.default
_OF_CONVOLUTION = _aten.convolution_backward.default
_OF_PACKED = "torch_attn::_varlen_attn_backward"  # of torch.nn.attention.varlen
_LOSSES = (_aten.mse_loss.default, _aten.smooth_l1_loss.default)
_MANY_ROWS, _ROWS_PER_BLOCK = 2**16, 32


def buffers(
    processors: Processors, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[HiddenStorage]:
    """The buffers of this operator while it runs."""
    if function is _OF_SOFTMAX:
        yield _like(args[0])
    elif function is _OF_EMBEDDING:
        yield from _of_embedding(args)
    elif function is _NORM:
        yield from _copies(args[0])
    elif function is _OF_NORM:
        yield from _copies(*args[:2])
        yield from _of_norm(processors, args)
    elif function is _OF_CONVOLUTION:
        yield from _copies(args[0], memory_format=convolutions.memory_format(*args[1:3]))
    elif function is _aten.roll.default:
        yield from _copies(args[0])
        yield from (_like(args[0])._replace(is_early=True) for _ in args[1][1:])  # dimensions are rolled one by one
    elif function in _LOSSES and _is_reduced(args, kwargs):
        yield _like(args[0])
        yield from reductions.buffers(processors, _aten.mean.default, args[:1], {})
    elif function.namespace == "torch_attn" and function.name() == _OF_PACKED:
        yield from _of_packed(args)


def enlarge(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Give a result the storage that it has on a card: that of a mean loss is made for all elements, and shrunk in
    place (`mse_loss` in ATen's BinaryOps.cpp), and means and deviations of a norm are in float32 (`layer_norm_cuda` in
    layer_norm_kernel.cu), where the CPU has them in half precision."""
    if function is _NORM:
        for each in result[1:]:
            each.untyped_storage().resize_(each.numel() * max(4, each.element_size()))
    elif function in _LOSSES and _is_reduced(args, kwargs):
        result.untyped_storage().resize_(args[0].numel() * args[0].element_size())


def _of_packed(args: tuple[Any, ...]) -> Iterator[HiddenStorage]:
    query, key, value, *_, starts = args[1:7]
    rows, heads, width = query.shape
    rows += 128 * (len(starts) - 1)
    yield HiddenStorage(4 * heads * rows)  # softmax_d
    yield HiddenStorage(4 * heads * rows * -(-width // 32) * 32)  # dq_accum
    if key.shape[1] != heads:
        for part in (key, value):
            yield HiddenStorage(part.shape[0] * heads * part.shape[2] * part.element_size())


def _like(tensor: torch.Tensor) -> HiddenStorage:
    return HiddenStorage(tensor.numel() * tensor.element_size())


def _copies(
    *tensors: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> Iterator[HiddenStorage]:
    for each in tensors:
        if not each.is_contiguous(memory_format=memory_format):
            yield _like(each)._replace(is_early=True)


def _is_reduced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("reduction", args[2] if len(args) > 2 else 1))


def _of_norm(processors: Processors, args: tuple[Any, ...]) -> Iterator[HiddenStorage]:
    """Sums of blocks of rows, for the gradients of weight and bias, if there are many rows and few columns."""
    columns = prod(args[2])
    rows = args[1].numel() // columns
    if rows <= _MANY_ROWS or columns // 32 >= processors.multiprocessors // 2:
        return
    for weight in (each for each, is_wanted in zip(args[5:7], args[7][1:], strict=True) if is_wanted):
        yield HiddenStorage(-(-rows // _ROWS_PER_BLOCK) * columns * (4 if weight is None else weight.element_size()))


def _of_embedding(args: tuple[Any, ...]) -> Iterator[HiddenStorage]:
    gradient, ids, rows, _, scales = args[:5]
    count = ids.numel()
    if count <= _FEW and not scales:
        return
    segments = count // _ROWS_PER_THREAD + min(count, rows)
    for _ in ("sorted", "original places", "starts", "partial sums", "their starts"):
        yield HiddenStorage(count * ids.element_size())
    yield HiddenStorage(segments * ids.element_size())
    yield HiddenStorage(segments * gradient.shape[-1] * max(4, gradient.element_size()))
