"""Shows the allocations of CPU operators that run a whole encoder layer or attention at once.

torch uses them for inference ("fast path"). Their allocations and frees follow `transformer_encoder_layer_forward` and
`native_multi_head_attention_cpu` in aten/src/ATen/native/transformers. Unlike scaled_dot_product_attention they make
the matrix of scores. The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hiwater.contrib.torch.estimate.hidden import HiddenStorage


def install() -> None:
    """Allow the fast path for encoder layers and attention, and show its allocations."""
    torch._transformer_encoder_layer_fwd = _encoder_layer
    torch._native_multi_head_attention = _attention
    for kind in (nn.TransformerEncoderLayer, nn.MultiheadAttention):
        kind.forward = _on_fast_path(kind.forward)


def _on_fast_path(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward with the fast path allowed. It stays off for a whole encoder, where it would read the values of a
    padding mask."""

    @functools.wraps(forward)
    def allowed(*arguments: Any, **options: Any) -> Any:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(True)
        try:
            return forward(*arguments, **options)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

    return allowed


# Their arguments are those of torch, by place.
def _encoder_layer(
    src: torch.Tensor, embed_dim: int, heads: int, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor, proj_bias: torch.Tensor, _use_gelu: bool, norm_first: bool, eps: float,
    norm1_weight: torch.Tensor, norm1_bias: torch.Tensor, norm2_weight: torch.Tensor, norm2_bias: torch.Tensor,
    up_weight: torch.Tensor, up_bias: torch.Tensor, down_weight: torch.Tensor, down_bias: torch.Tensor,
    mask: torch.Tensor | None = None, mask_type: int | None = None,
) -> torch.Tensor:  # fmt: skip
    x = src
    if norm_first:
        x = functional.layer_norm(x, (embed_dim,), norm1_weight, norm1_bias, eps)
    x = _attention(
        x, x, x, embed_dim, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )[0]  # fmt: skip
    x.add_(src)
    if not norm_first:
        x = functional.layer_norm(x, (embed_dim,), norm1_weight, norm1_bias, eps)
    before = x
    if norm_first:
        x = functional.layer_norm(x, (embed_dim,), norm2_weight, norm2_bias, eps)
    x = functional.linear(x, up_weight, up_bias).relu_()  # gelu is in place here, too
    x = functional.linear(x, down_weight, down_bias)
    x.add_(before)
    if not norm_first:
        x = functional.layer_norm(x, (embed_dim,), norm2_weight, norm2_bias, eps)
    return x


def _attention(
    query: torch.Tensor, _key: torch.Tensor, _value: torch.Tensor, embed_dim: int, heads: int,
    qkv_weight: torch.Tensor, _qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    _mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    batch, rows, _ = query.shape
    projected = functional.linear(query, qkv_weight)
    qkv = query.new_empty(3, batch * heads, rows, embed_dim // heads)
    del projected
    scores = torch.bmm(qkv[0], qkv[1].transpose(1, 2)).view(batch, heads, rows, rows)
    if mask is not None:  # without a mask, softmax works in place
        mask = mask.to(torch.bool)
        scores = torch.empty_like(scores)
        del mask
    weights: torch.Tensor | None = scores if need_weights else None
    del scores
    gathered = query.new_empty(batch, rows, embed_dim)  # the result of the second product overwrites the queries
    output = functional.linear(gathered, proj_weight, proj_bias)
    del gathered
    if weights is not None and average_attn_weights:
        weights = weights.sum(1).div_(heads)
    del qkv  # only now: it is a local variable of the kernel
    return output, weights


_FLASH_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def hidden(function: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Iterator[HiddenStorage]:
    """The gradient with heads after rows and contiguous, as the backward of flash attention reads it."""
    if _FLASH_BACKWARD is not None and getattr(function, "overloadpacket", None) is _FLASH_BACKWARD:
        gradient = args[0]
        if not gradient.transpose(1, 2).is_contiguous():
            yield HiddenStorage(gradient.numel() * gradient.element_size())
