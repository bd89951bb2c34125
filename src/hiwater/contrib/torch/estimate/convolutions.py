"""The most that cuDNN's workspaces for convolutions take.

It chooses an algorithm by rules of its own, and some need none: an estimate has a figure without them, and one with
these.
Most algorithms compute with channels last, in half precision padded to eight. They copy inputs, weights and results
that lie otherwise, and sum a gradient of weights in parts. The room for parts is a bound that held for each of 96
convolutions and ten networks on an H100 with cuDNN 9.19. Where a workspace does not fit, torch takes the next
algorithm (`try_plans` in `aten/src/ATen/native/cudnn/Conv_v8.cpp`). With `torch.backends.cudnn.benchmark` it tries all
whose workspace fits into the memory that is free (`get_plans_from_find` there): then there is no bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch

from hiwater.contrib.torch.estimate.cards import Processors
from hiwater.contrib.torch.estimate.hidden import HiddenStorage

_FORWARD, _BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_PARTS = 24 * 2**20
_BLOCKS = 4  # of a multiprocessor, each with sums: those of grouped convolutions for each image
_PADDED_TO = 8
_FEW_BYTES = 512  # of its own


def memory_format(inputs: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """The layout in which cuDNN reads a convolution: `cudnn_conv_suggest_memory_format` in ATen's ConvUtils.h."""
    for each in (inputs, weight):
        if each.dim() == 4 and each.is_contiguous(memory_format=torch.channels_last) and not each.is_contiguous():
            return torch.channels_last
    return torch.contiguous_format


def workspaces(
    processors: Processors, function: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]
) -> Iterator[HiddenStorage]:
    """Those of this call, one after the other."""
    if function is _FORWARD:
        inputs, weight, _, stride, padding, dilation, is_transposed, _, groups = args[:9]
        if not _is_torchs_own(inputs, weight, groups):
            results = _results(inputs, weight, stride, padding, dilation, is_transposed)
            yield HiddenStorage(0, most=_copies(inputs, weight, results))
    elif function is _BACKWARD:
        gradient, inputs, weight = args[:3]
        groups, wanted = args[9], args[10]
        if _is_torchs_own(inputs, weight, groups):
            return
        sums = weight.numel() * max(4, weight.element_size()) * _BLOCKS * processors.multiprocessors
        most = _copies(inputs, weight, gradient.numel()) + min(sums, _PARTS)
        if wanted[0]:
            yield HiddenStorage(0, most=most)
        if wanted[1]:
            yield HiddenStorage(0, most=most + (sums * inputs.shape[0] if groups > 1 else 0))


def reasons() -> list[str]:
    """Why the most is no bound, if there were convolutions."""
    if not torch.backends.cudnn.benchmark:
        return []
    return ["torch.backends.cudnn.benchmark tries algorithms with workspaces up to all free memory, which are not seen"]


def _is_torchs_own(inputs: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """Whether it is a kernel of torch without a workspace, for groups of one channel that do not come last."""
    return groups > 1 and weight.shape[1] == 1 and memory_format(inputs, weight) is not torch.channels_last


def _copies(inputs: torch.Tensor, weight: torch.Tensor, results: int) -> int:
    is_half = inputs.dtype in (torch.float16, torch.bfloat16)
    count = _padded(inputs) + _padded(weight) if is_half else inputs.numel() + weight.numel()
    return int((count + results) * inputs.element_size() + _FEW_BYTES)


def _padded(tensor: torch.Tensor) -> int:
    channels = tensor.shape[1]
    return int(tensor.numel() // channels * (-(-channels // _PADDED_TO) * _PADDED_TO))


def _results(
    inputs: torch.Tensor, weight: torch.Tensor, stride: Any, padding: Any, dilation: Any, is_transposed: bool
) -> int:  # fmt: skip
    """How many numbers the call computes."""
    sizes = zip(inputs.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    if is_transposed:
        outer = [(size - 1) * step - 2 * pad + gap * (kernel - 1) + step for size, kernel, step, pad, gap in sizes]
        return int(inputs.shape[0] * weight.shape[1] * prod(outer))
    outer = [(size + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, gap in sizes]
    return int(inputs.shape[0] * weight.shape[0] * prod(outer))
