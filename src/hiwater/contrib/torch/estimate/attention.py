"""`scaled_dot_product_attention` with the storages of the kernel that a card would choose. Values are not computed.

Fused kernels keep their output and one float32 number a row (the logsumexp) instead of the matrix of scores. The choice
is that of `priority_order` in `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`: on Hopper and data-center
Blackwell cuDNN's, else flash for half precision without a mask, else the memory-efficient one. Selective checkpoints
are asked whether they save what the kernel's operator makes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd.function import once_differentiable
from torch.nn import functional

HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD_LIMIT = 256  # check_head_dim_size_flash in sdp_utils.cpp
_CUDNN_HEAD_LIMIT, _CUDNN_HEAD_MULTIPLE = 128, 8  # check_cudnn_tensor_shapes there
_CUDNN_CAPABILITIES = ((9, 0), (10, 0), (10, 3))  # check_prefer_cudnn_attention there
_CUDNN_ALIGNMENT = 256
_MASK_ALIGNMENT = 8  # mem_eff_alignment in ATen's attention.cpp


def on_card(capability: tuple[int, int]) -> Callable[..., torch.Tensor]:
    """The function for a card of this compute capability."""
    prefers_cudnn = (  # from a cuDNN above 9.15 on, which these wheels are the first to have
        capability in _CUDNN_CAPABILITIES
        and torch.__version__ >= "2.11"
        and (torch.version.cuda or "13") >= "13"
        and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    )
    _settle_selective_checkpoints()

    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        if torch.is_autocast_cpu_enabled():
            kind = torch.get_autocast_cpu_dtype()
            query, key, value = (
                tensor.to(kind) if tensor.is_floating_point() else tensor for tensor in (query, key, value)
            )
        if _is_composite(query, key, value, attn_mask):
            if enable_gqa:
                key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
            return _composite(query, key, value, attn_mask, dropout_p, is_causal)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = _bias(attn_mask, query.dtype)
        kernel = _kernel(query, attn_mask, prefers_cudnn)
        if attn_mask is not None and kernel is _Efficient:
            attn_mask = _padded(attn_mask).expand(*query.shape[:3], key.shape[2])
        if is_traced:
            return kernel.traced(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return _FusedAttention.apply(query, key, value, attn_mask, kernel)

    return attention


is_traced = False
"""Whether a graph is made for a compiler, which has the kernels' own operators."""
_running: list[type[_Kernel]] = []  # the kernel whose forward runs


def _settle_selective_checkpoints() -> None:
    """Let policies decide on the kernel's operator: here it is several, which make its results."""
    home = torch.utils.checkpoint
    original = home.create_selective_checkpoint_contexts

    @functools.wraps(original)
    def contexts(policy: Any, *others: Any, **options: Any) -> Any:
        def asked(context: Any, function: Any, *arguments: Any, **named: Any) -> Any:
            if _running:
                function = getattr(torch.ops.aten, _running[-1].operator).default
            if callable(policy):
                return policy(context, function, *arguments, **named)
            kinds = home.CheckpointPolicy
            return kinds.MUST_SAVE if function in policy else kinds.PREFER_RECOMPUTE

        return original(asked, *others, **options)

    home.create_selective_checkpoint_contexts = contexts


def _is_composite(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether no fused kernel takes these: all want four dimensions, and heads whose rows are multiples of 16 bytes
    (`check_head_dim_size_mem_efficient` in sdp_utils.cpp). A mask that needs a gradient was seen to have none."""
    needs_gradient_of_mask = mask is not None and mask.requires_grad
    if query.dim() != 4 or query.dtype == torch.float64 or query.is_nested or needs_gradient_of_mask:
        return True
    is_odd = any(each.shape[-1] * each.element_size() % 16 or each.stride(-1) != 1 for each in (query, value))
    return is_odd or query.shape[-1] != key.shape[-1]


def _composite(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    mask: torch.Tensor | None, dropout_p: float, is_causal: bool,
) -> torch.Tensor:  # fmt: skip
    """`_scaled_dot_product_attention_math` of ATen's attention.cpp."""
    query = query * 1.0
    if is_causal:
        mask = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.empty_like(mask, dtype=query.dtype)
    scores = torch.matmul(query, key.transpose(-2, -1) * 1.0)
    if mask is not None:
        scores.add_(mask)
    scores = torch.softmax(scores, -1)
    return torch.matmul(functional.dropout(scores, dropout_p), value)


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """Rows of a length that the memory-efficient kernel can read: `preprocess_mask` of ATen's attention.cpp."""
    if all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    last = mask.shape[-1]
    return functional.pad(mask, (0, -last % _MASK_ALIGNMENT))[..., :last]


def _bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the kernels take for a mask, so torch makes one. In a graph its values decide which are one."""
    if is_traced:
        return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), float("-inf"), dtype=dtype))
    return torch.empty_like(mask, dtype=dtype)


def _kernel(query: torch.Tensor, mask: torch.Tensor | None, prefers_cudnn: bool) -> Any:
    width = query.shape[-1]
    if query.dtype not in HALF:
        return _Efficient
    if (
        prefers_cudnn
        and torch.backends.cuda.cudnn_sdp_enabled()
        and width <= _CUDNN_HEAD_LIMIT
        and width % _CUDNN_HEAD_MULTIPLE == 0
    ):
        return _Cudnn
    return _Flash if mask is None and width <= _FLASH_HEAD_LIMIT else _Efficient


class _FusedAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped where types are checked
    """Allocates like a fused kernel: output and what is kept in forward, gradients and working memory in backward."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, kernel: Any
    ) -> torch.Tensor:
        _running.append(kernel)
        random = kernel.random(query)
        output = kernel.output(query, value)
        is_kept = any(ctx.needs_input_grad) or kernel is _Flash
        logsumexp = _logsumexp(query, kernel.kept_rows(query)) if is_kept else None
        kernel.run(query)
        _running.pop()
        ctx.kernel = kernel
        # They are released in this order, which is that of autograd's own nodes.
        ctx.save_for_backward(bias, key, query, value, logsumexp, output, *random)
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # the same
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _, key, query, value, _, output, *_ = ctx.saved_tensors
        return (*ctx.kernel.backward(gradient, output, query, key, value), None, None)


def _heads_last(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Made with rows before heads, as kernels write it."""
    batch, heads, rows, _ = tensor.shape
    return tensor.new_empty(batch, rows, heads, width).transpose(1, 2)


def _logsumexp(query: torch.Tensor, rows: int) -> torch.Tensor:
    return query.new_empty(*query.shape[:2], rows, dtype=torch.float32)


class _Kernel:
    """What kernels have in common."""

    operator: str

    output_at = 4  # among the arguments of its operator for backward

    @classmethod
    def traced(
        cls, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, dropout: float,
        is_causal: bool, scale: float | None,
    ) -> torch.Tensor:  # fmt: skip
        """The result of the kernel's own operator."""
        is_kept = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        given = (dropout, is_causal) if cls is _Flash else (bias, is_kept, dropout, is_causal)
        result: torch.Tensor = getattr(torch.ops.aten, cls.operator).default(query, key, value, *given, scale=scale)[0]
        return result

    @classmethod
    def called_backward(cls, gradient: torch.Tensor, *arguments: Any, **_options: Any) -> tuple[Any, ...]:
        """The kernel's operator for backward, of a program that inductor wrote."""
        gradients = cls.backward(gradient, arguments[cls.output_at - 1], *arguments[:3])  # type: ignore[attr-defined]
        return (*gradients, None)

    @staticmethod
    def random(_query: torch.Tensor) -> list[torch.Tensor]:
        """State of the random generator on the card."""
        return []

    @staticmethod
    def output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return _heads_last(query, value.shape[-1])

    @staticmethod
    def kept_rows(query: torch.Tensor) -> int:
        """Of the logsumexp."""
        return int(query.shape[2])

    @staticmethod
    def run(_query: torch.Tensor) -> None:
        """Working memory of the forward."""


class _Flash(_Kernel):
    """`mha_fwd` and `mha_bwd` of flash_attn's flash_api.cpp: backward makes a float32 copy of the query's gradient,
    rows rounded up to 128 and heads to 32 (`dq_accum`), and a float32 number a row (`softmax_d`). If several queries
    share a key, it makes gradients for every head, which are summed at the end."""

    operator = "_scaled_dot_product_flash_attention"

    @staticmethod
    def backward(_gradient: torch.Tensor, _output: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = inputs
        batch, heads, rows, width = query.shape
        sums = _logsumexp(query, -(-rows // 128) * 128)
        gradients = tuple(torch.empty_like(tensor) for tensor in inputs)
        working = [query.new_empty(batch, sums.shape[2], heads, -(-width // 32) * 32, dtype=torch.float32)]
        if key.shape[1] != heads:
            working += [query.new_empty(batch, key.shape[2], heads, part.shape[3]) for part in (key, value)]
        del sums, working
        return gradients


class _Efficient(_Kernel):
    """`_efficient_attention_forward` and `_backward` of ATen's attention.cu and attention_backward.cu, which pad the
    logsumexp's rows to 32. In float32 the sums of gradient and output (`delta`) are made before the kernel. Its
    workspace has sums of gradients, by `workspace_size` of mem_eff_attention/kernel_backward.h."""

    operator = "_scaled_dot_product_efficient_attention"
    output_at = 5

    @staticmethod
    def kept_rows(query: torch.Tensor) -> int:
        return int(-(-query.shape[2] // 32) * 32)

    @staticmethod
    def backward(gradient: torch.Tensor, output: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, _ = inputs
        gradient = gradient.transpose(1, 2).contiguous()
        gradients = tuple(_heads_last(tensor, tensor.shape[-1]) for tensor in inputs)
        if query.dtype in HALF:
            delta = _logsumexp(query, query.shape[2])
        else:
            product = gradient * output.transpose(1, 2)
            delta = product.sum(-1).transpose(-2, -1).contiguous()
            del product
        workspace = query.new_empty(_Efficient._workspace_bytes(query, key), dtype=torch.uint8)
        del delta, workspace
        return gradients

    @staticmethod
    def _workspace_bytes(query: torch.Tensor, key: torch.Tensor) -> int:
        batch, heads, rows, width = query.shape
        is_half = query.dtype in HALF
        block_rows, block_keys, most = _efficient_block(width, is_half)
        tile = 16 + block_rows * block_keys * 4  # GradQTempStorage: a lock, a counter, and a tile of sums
        count = -(-rows // block_rows) * -(-width // block_keys) * tile // 4
        if is_half and most > block_rows:  # the sums of keys and values do not fit the registers
            keys = -(-key.shape[2] // block_keys)
            splits = max(1, min(keys, 200 // (batch * heads)))
            count += 2 * splits * keys * block_keys * -(-width // block_rows) * block_rows
        return int(batch * heads * -(-count // 4) * 16)


def _efficient_block(width: int, is_half: bool) -> tuple[int, int, int]:
    """Rows and keys of a block, and the widest head: `dispatch_cutlassB_*_sm80` of mem_eff_attention's cutlassB.h."""
    blocks = ((64, 64, 32), (64, 64, 64), *(((128, 64, 96), (128, 128, 128)) if is_half else ((128, 64, 128),)))
    return next((block for block in blocks if width <= block[2]), (128, 64, 2**16))


class _Cudnn(_Kernel):
    """`run_cudnn_SDP_fprop` and `_bprop` of ATen's native/cudnn/MHA.cpp: output and gradients have the inputs' strides,
    and a seed and an offset of the random generator are kept. The workspace is that of `CompositeSDPABackwardNode` in
    cudnn-frontend's scaled_dot_product_flash_attention.h: a float32 number a row, the query's gradient in float32, and
    gradients of keys and values for every head if several queries share one."""

    operator = "_scaled_dot_product_cudnn_attention"

    @staticmethod
    def random(query: torch.Tensor) -> list[torch.Tensor]:
        seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
        return [offset, seed]

    @staticmethod
    def output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        is_like_query = query.shape[-1] == value.shape[-1]
        return torch.empty_like(query) if is_like_query else _heads_last(query, value.shape[-1])

    @staticmethod
    def run(query: torch.Tensor) -> None:
        query.new_empty(_CUDNN_ALIGNMENT, dtype=torch.uint8)

    @staticmethod
    def backward(gradient: torch.Tensor, output: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = inputs
        batch, heads, rows, width = query.shape
        laid_out = torch.empty_like(output) if gradient.stride() != output.stride() else None
        gradients = tuple(torch.empty_like(tensor) for tensor in inputs)
        size = 4 * batch * heads * rows * (1 + width) + _CUDNN_ALIGNMENT
        if key.shape[1] != heads:
            size += batch * heads * key.shape[2] * (key.shape[3] + value.shape[3]) * query.element_size()
        workspace = query.new_empty(size, dtype=torch.uint8)
        del workspace, laid_out
        return gradients


KERNELS = (_Flash, _Efficient, _Cudnn)
