"""What CUDA's reductions allocate besides their results: sums of several blocks, and a counter of finished blocks.

A reduction to few numbers splits its input among blocks if each thread would read many values. `setReduceConfig` and
`ReduceConfig` of `aten/src/ATen/native/cuda/Reduce.cuh` say when, and how large the buffers are: for the gradient of a
Linear's bias, a multiple of what the layer's output takes. Names here are theirs. Kernels that do not use that file
(norms of layers, softmax) are not covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch

from hiwater.contrib.torch.estimate.cards import Processors
from hiwater.contrib.torch.estimate.hidden import HiddenStorage

_WARP, _MAX_THREADS, _VECTOR = 32, 512, 4
_MIN_VALUES, _MAX_VALUES = 16, 256  # that a thread reads
_aten = torch.ops.aten
_DIM_AT = {
    _aten.sum: 1, _aten.mean: 1, _aten.nansum: 1, _aten.prod: 1, _aten.amax: 1, _aten.amin: 1,
    _aten.linalg_vector_norm: 2,
}  # fmt: skip

_IN_INT64 = frozenset((_aten.sum, _aten.prod, _aten.cumsum, _aten.cumprod))  # these convert smaller integers first


class _Span(NamedTuple):
    """A dimension, or several that are one in memory."""

    stride: int
    size: int


def buffers(
    processors: Processors, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[HiddenStorage]:
    """The buffers of this operator while it runs, none for most."""
    packet = getattr(function, "overloadpacket", None)
    if packet in _IN_INT64 and not _is_wide(args[0].dtype) and "dtype" not in kwargs:
        yield HiddenStorage(args[0].numel() * 8)
    if packet not in _DIM_AT or not args[0].numel() or args[0].layout != torch.strided:
        return
    place = _DIM_AT[packet]
    sizes = _buffers(args[0], kwargs.get("dim", args[place] if len(args) > place else None), packet, processors)
    yield from map(HiddenStorage, sizes)


def _buffers(source: torch.Tensor, dims: Any, packet: Any, processors: Processors) -> tuple[int, ...]:
    given = [dims] if isinstance(dims, int) else dims or range(source.dim())
    reduced = {dim % max(1, source.dim()) for dim in given}
    inputs, outputs = (_spans(source, dims) for dims in (reduced, set(range(source.dim())) - reduced))
    num_inputs, num_outputs = prod(span.size for span in inputs), prod(span.size for span in outputs)
    is_along_input = not outputs or (bool(inputs) and inputs[0].stride < outputs[0].stride)
    vector = 1 if is_along_input else _output_vector(source, inputs, outputs)
    across, along = (num_inputs, num_outputs) if is_along_input else (num_outputs // vector, num_inputs)
    if is_along_input and not outputs and len(inputs) == 1 and inputs[0].stride == 1 and num_inputs > 128:
        across //= _VECTOR
    width, height = _block(across, along, _MAX_THREADS // vector)
    # Along the input, the lanes of a warp share an output; otherwise each has its own.
    per_thread, per_block = (-(-num_inputs // width), 1) if is_along_input else (num_inputs, width)
    if per_thread < height * _MIN_VALUES and per_thread < _MAX_VALUES:
        return ()
    per_thread = -(-num_inputs // ((width if is_along_input else 1) * height))
    grid = -(-(num_outputs // vector) // per_block)
    target = processors.multiprocessors * (processors.threads // (width * height))
    if per_thread < _MAX_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-per_thread // _MIN_VALUES)), -(-per_thread // _MAX_VALUES))
    if blocks <= 1:
        return ()
    lanes = 1 if is_along_input else width * vector
    return _accumulated(source.dtype, packet) * num_outputs * blocks * lanes, 4 * grid


def _spans(source: torch.Tensor, dims: set[int]) -> list[_Span]:
    """These dimensions from the smallest stride on, those that are one in memory joined."""
    spans: list[_Span] = []
    for stride, size in sorted((source.stride(dim), source.shape[dim]) for dim in dims if source.shape[dim] != 1):
        if spans and spans[-1].stride * spans[-1].size == stride:
            spans[-1] = _Span(spans[-1].stride, spans[-1].size * size)
        else:
            spans.append(_Span(stride, size))
    return spans


def _output_vector(source: torch.Tensor, inputs: list[_Span], outputs: list[_Span]) -> int:
    """`get_output_vec_size`: how many outputs a thread makes."""
    if outputs[0].stride != 1:
        return 1
    vector = _VECTOR
    strides = [span.stride for span in (*inputs, *outputs[1:])]
    for number in (source.storage_offset(), outputs[0].size, *strides):
        while number % vector:
            vector //= 2
    return vector


def _block(across: int, along: int, threads: int) -> tuple[int, int]:
    """`set_block_dimension`: the width and height of a block."""
    most_across, most_along = (min(threads, 1 << (max(1, count).bit_length() - 1)) for count in (across, along))
    height = min(most_along, threads // min(most_across, _WARP))
    return min(most_across, threads // height), height


def _is_wide(dtype: torch.dtype) -> bool:
    return bool(dtype.is_floating_point or dtype.is_complex or dtype == torch.int64)


def _accumulated(dtype: torch.dtype, packet: Any) -> int:
    """The bytes of a partial result."""
    if packet in (_aten.amax, _aten.amin):
        return int(dtype.itemsize)
    return max(4, dtype.itemsize) if dtype.is_floating_point else 8
