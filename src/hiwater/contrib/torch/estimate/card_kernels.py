"""Replaces the CPU's operators whose memory differs on a card: attention, dropout, autocast, optimizers, and products
of groups of rows, as experts have.

On CUDA, dropout keeps a mask of bytes, autocast runs more operators in float32, optimizers process all parameters at
once, and grouped products take more types than torch's fake tensors allow. The changes to torch are permanent, so this
runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import _meta_registrations
from torch.nn import functional

from hiwater.contrib.torch.estimate import attention

# AT_FORALL_FP32 and AT_FORALL_FP32_SET_OPT_DTYPE of ATen/autocast_mode.h, by the names that Python calls them, and
# losses made of them.
_FLOAT32_UNDER_AUTOCAST = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow", "softplus", "layer_norm", "rms_norm", "group_norm", "norm", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "cross_entropy", "binary_cross_entropy_with_logits", "dist",
    "cdist", "renorm", "logsumexp", "prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum",
)  # fmt: skip


_CONVERTED_ON_CPU_ONLY = ("cat", "concat", "stack")  # to the widest type: AT_FORALL and the CPU's list in autocast_mode


def install(capability: tuple[int, int]) -> None:
    """Replace the CPU's operators by those of a card of this compute capability."""
    functional.scaled_dot_product_attention = attention.on_card(capability)
    functional.dropout = _dropout
    if hasattr(_meta_registrations, "_meta_grouped_mm_common"):
        _meta_registrations._meta_grouped_mm_common = _grouped_product(_meta_registrations._meta_grouped_mm_common)
    for name in ("_get_foreach_kernels_supported_devices", "_get_capturable_supported_devices"):
        for home in [module for key, module in sys.modules.items() if key.startswith("torch.optim.")]:
            if hasattr(home, name):
                setattr(home, name, _only_device)
    for name in _CONVERTED_ON_CPU_ONLY:
        setattr(torch, name, _as_given(getattr(torch, name)))
    for name in _FLOAT32_UNDER_AUTOCAST:
        for home in (torch, torch.Tensor, functional):
            function = getattr(home, name, None)
            if callable(function):
                setattr(home, name, _in_float32(function))


def _only_device(supports_xla: bool = True) -> list[str]:  # noqa: ARG001 - torch's, which compiles it
    """The devices that optimizers have combined kernels for."""
    return ["cpu"]


def _as_given(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        if not torch.is_autocast_cpu_enabled():
            return function(*arguments, **options)
        with torch.autocast("cpu", enabled=False):
            return function(*arguments, **options)

    return called


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def converted(*arguments: Any, **options: Any) -> Any:
        if not torch.is_autocast_cpu_enabled():
            return function(*arguments, **options)
        return function(*map(_up, arguments), **{name: _up(value) for name, value in options.items()})

    return converted


def _up(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in attention.HALF else value


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - F.dropout's name
    if inplace or not training or not 0 < p < 1 or not input.numel():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    return torch.native_dropout(input, p, True)[0]


def _grouped_product(of_scaled: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The result of `_grouped_mm`, of every type that a card multiplies: its rows begin at multiples of 16 bytes
    (`create_grouped_gemm_output_tensor` of GroupedMMUtils.h in ATen)."""

    @functools.wraps(of_scaled)
    def product(mat_a: Any, mat_b: Any, scale_a: Any = None, *more: Any, **options: Any) -> torch.Tensor:
        if scale_a is not None:
            return of_scaled(mat_a, mat_b, scale_a, *more, **options)
        rows, columns, in_16_bytes = mat_a.size(-2), mat_b.size(-1), 16 // mat_a.element_size()
        padded = -(-columns // in_16_bytes) * in_16_bytes
        shape, stride = [rows, columns], [padded, 1]
        if mat_a.dim() == mat_b.dim():  # a matrix for each group
            count = mat_a.size(0) if mat_a.dim() == 3 else options["offs"].size(0)
            shape, stride = [count, *shape], [rows * padded, *stride]
        return torch.empty_strided(shape, stride, dtype=mat_a.dtype, device=mat_a.device)

    return product
