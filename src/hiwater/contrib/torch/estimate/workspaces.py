"""The workspaces that PyTorch allocates for cuBLAS and cuBLASLt: one for each thread that multiplies matrices and each
stream that it does so on, kept.

The rules are those of `aten/src/ATen/cuda/CublasHandlePool.cpp`: a thread's first product makes its handle and the
handle's workspace, so that training has two, one of the thread that runs forward and one of autograd's. A product with
a bias goes through cuBLASLt if `isInputCompliesAddmmCudaLt` of `aten/src/ATen/native/cuda/Blas.cpp` holds. Its
workspace was a temporary of the call (`gemm_and_bias` of `aten/src/ATen/cuda/CUDABlas.cpp`) up to torch 2.6, is the
thread's own since, and part of the first one where torch has `torch.backends.cuda.cublas_workspace_size`.
The sizes can be set by CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE, and the sharing by
TORCH_CUBLASLT_UNIFIED_WORKSPACE. Autograd's products are taken for those of the current stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hiwater.contrib.torch.estimate import streams
from hiwater.contrib.torch.estimate.hidden import HiddenStorage

CATEGORY = "cuBLAS workspaces"
_KIB = 2**10
_SMALL, _LARGE = (2 * 4096 + 8 * 16) * _KIB, 8 * 4096 * _KIB  # parseChosenWorkspaceSize
_LT_KIB = 1024  # parseCUDABlasLtWorkspaceSize
_aten = torch.ops.aten
_WITH_BIAS = (_aten.addmm, _aten._addmm_activation)
_PRODUCTS = frozenset(
    (*_WITH_BIAS, _aten.mm, _aten.bmm, _aten.baddbmm, _aten.addbmm, _aten.addmv, _aten.mv, _aten.dot, _aten.vdot)
)
_OF_MATRICES = frozenset((_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm))
_LT_ALWAYS = frozenset(getattr(_aten, name) for name in ("_scaled_mm", "_int_mm") if hasattr(_aten, name))
_GROUPED = getattr(_aten, "_grouped_mm", None)
_LT_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def copies(function: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Iterator[HiddenStorage]:
    """The copies of matrices that cuBLAS cannot read where they lie: `prepare_matrix_for_cublas` and
    `prepare_batch_matrix_for_cublas` of Blas.cpp copy one of which neither rows nor columns are contiguous."""
    if getattr(function, "overloadpacket", None) in _OF_MATRICES:
        for matrix in args[-2:] if len(args) < 4 else args[1:3]:
            (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
            if not (down == 1 and across >= max(1, rows)) and not (across == 1 and down >= max(1, columns)):
                yield HiddenStorage(matrix.numel() * matrix.element_size())


class Workspaces:
    """The workspaces that exist on a card of this compute capability, made as products run."""

    def __init__(self, capability: tuple[int, int], environment: Mapping[str, str]) -> None:
        sets_sizes = hasattr(torch.backends.cuda, "cublas_workspace_size")
        large = capability[0] in (9, 10, 11, 12) if sets_sizes else capability == (9, 0)
        self._bytes = _configured(environment, _LARGE if large else _SMALL)
        self._lt_bytes = min(_lt_configured(environment), self._bytes)
        unified = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
        self._is_shared = unified == "1" or (sets_sizes and unified != "0")
        self._keeps_lt = torch.__version__ >= "2.7"
        self._has_grouped = capability[0] in (9, 10)
        self._made: set[tuple[bool, bool, int]] = set()  # whether it is cuBLASLt's, and autograd's, and the stream

    def made_by(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[HiddenStorage]:
        """The workspaces that this operator makes."""
        packet = getattr(function, "overloadpacket", None)
        if packet not in _PRODUCTS and packet not in _LT_ALWAYS and not self._is_one_by_one(packet, args):
            return
        is_autograds = torch._C._current_autograd_node() is not None
        if self._is_first(False, is_autograds):
            yield HiddenStorage(self._bytes, CATEGORY)
        is_lt = packet in _LT_ALWAYS or (packet in _WITH_BIAS and kwargs.get("beta", 1) == 1 and _goes_to_lt(*args[:3]))
        if not is_lt or self._is_shared:
            return
        if not self._keeps_lt:
            yield HiddenStorage(self._lt_bytes)
        elif self._is_first(True, is_autograds):
            yield HiddenStorage(self._lt_bytes, CATEGORY)

    def _is_one_by_one(self, packet: Any, args: tuple[Any, ...]) -> bool:
        """Whether it is a grouped product whose groups cuBLAS multiplies (`_grouped_mm_cuda` in GroupedBlas.cpp)."""
        return packet is not None and packet is _GROUPED and not (self._has_grouped and args[0].dtype == torch.bfloat16)

    def _is_first(self, is_lt: bool, is_autograds: bool) -> bool:
        key = is_lt, is_autograds, streams.current().stream_id
        is_first = key not in self._made
        self._made.add(key)
        return is_first


def _configured(environment: Mapping[str, str], default: int) -> int:
    pairs = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(kib) * int(count) * _KIB for kib, count in pairs) if pairs else default


def _lt_configured(environment: Mapping[str, str]) -> int:
    given = re.match(r"\s*([0-9]+)", environment.get("CUBLASLT_WORKSPACE_SIZE", ""))
    return (int(given[1]) if given else _LT_KIB) * _KIB


def _goes_to_lt(bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        bias.squeeze().dim() <= 1
        and bias.is_contiguous()
        and bias.shape[-1:] == right.shape[1:]
        and left.dtype in _LT_TYPES
        and min(*left.shape, *right.shape) > 1
    )
