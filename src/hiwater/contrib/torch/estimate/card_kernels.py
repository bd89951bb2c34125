"""Replaces the CPU's operators whose memory differs on a card: attention, dropout, autocast, optimizers.

On CUDA, attention kernels keep their output and one float32 number a row (the logsumexp) instead of the matrix of
scores. Dropout keeps a mask of bytes, autocast runs more operators in float32, and optimizers process all parameters at
once. The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD_LIMIT = 256  # check_head_dim_size_flash in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp
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


def install() -> None:
    """Replace the CPU's operators by those of a card."""
    functional.scaled_dot_product_attention = attention
    functional.dropout = _dropout
    optimizers: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes its name for it
    optimizers._get_foreach_kernels_supported_devices = lambda: ["cpu"]
    for name in _FLOAT32_UNDER_AUTOCAST:
        for home in (torch, torch.Tensor, functional):
            function = getattr(home, name, None)
            if callable(function):
                setattr(home, name, _in_float32(function))


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def converted(*arguments: Any, **options: Any) -> Any:
        if not _is_autocast_on():
            return function(*arguments, **options)
        return function(*map(_up, arguments), **{name: _up(value) for name, value in options.items()})

    return converted


def _is_autocast_on() -> bool:
    return bool(torch.is_autocast_cpu_enabled())


def _autocast_type() -> torch.dtype:
    return torch.get_autocast_cpu_dtype()


def _up(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALF else value


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - F.dropout's name
    if inplace or not training or not 0 < p < 1 or not input.numel():
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    return torch.native_dropout(input, p, True)[0]


# --- attention --------------------------------------------------------------------------------------------------------

_composite_attention = functional.scaled_dot_product_attention


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`scaled_dot_product_attention` with the storages of the kernel that a card would use. Values are not computed."""
    if _is_autocast_on():
        kind = _autocast_type()
        query, key, value = (
            tensor.to(kind) if tensor.is_floating_point() else tensor for tensor in (query, key, value)
        )
    if (
        query.dim() != 4
        or query.dtype == torch.float64
        or query.is_nested
        or (attn_mask is not None and attn_mask.requires_grad)
    ):
        options = {"enable_gqa": True} if enable_gqa else {}
        return _composite_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)  # the kernels take a bias, so torch makes one
    is_flash = query.dtype in _HALF and attn_mask is None and query.shape[-1] <= _FLASH_HEAD_LIMIT
    return _FusedAttention.apply(query, key, value, attn_mask, is_flash)


class _FusedAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped where types are checked
    """Allocates like the flash and the memory-efficient kernels: output and logsumexp, and in backward the gradients
    and sums.

    Flash adds in backward a float32 copy of the query's gradient, with rows rounded up to 128 and heads to 32, and one
    float32 number a row (`dq_accum` and `softmax_d` of mha_bwd in flash_attn's flash_api.cpp). The memory-efficient
    kernel adds one number a row, and pads rows to 32 (`_efficient_attention_forward` and `_backward` in ATen's
    attention.cu and attention_backward.cu).
    """

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, is_flash: bool
    ) -> torch.Tensor:
        batch, heads, rows, _ = query.shape
        output = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
        needs_gradient = any(ctx.needs_input_grad)
        if is_flash or needs_gradient:
            kept_rows = rows if is_flash else -(-rows // 32) * 32
            logsumexp = query.new_empty(batch, heads, kept_rows, dtype=torch.float32)
            ctx.save_for_backward(query, key, value, output, logsumexp, bias)
        ctx.is_flash = is_flash
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # the same
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, *_ = ctx.saved_tensors
        batch, heads, rows, width = query.shape
        sums = query.new_empty(batch, heads, -(-rows // 128) * 128 if ctx.is_flash else rows, dtype=torch.float32)
        gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        working = [sums, gradient]
        if ctx.is_flash:
            working.append(query.new_empty(batch, sums.shape[2], heads, -(-width // 32) * 32, dtype=torch.float32))
            if key.shape[1] != heads:  # grouped queries: gradients for every head, summed at the end
                working += [query.new_empty(batch, key.shape[2], heads, part.shape[3]) for part in (key, value)]
        del working, sums, gradient
        return (*gradients, None, None)
