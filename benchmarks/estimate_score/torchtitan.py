"""Llama 3.1 8B as torchtitan trained it in December 2024 (commit 9dec370): FSDP2 on n ranks, bfloat16 with gradients
reduced in float32, every second product of matrices recomputed, expandable segments.

The code is written after torchtitan's `models/llama/model.py`, `parallelisms/parallelize_llama.py` and `train.py`.
"""

from __future__ import annotations

import os
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

BATCH, LENGTH = 2, 8192
WIDTH, LAYERS, HEADS, KEYS, HIDDEN, WORDS = 4096, 32, 32, 8, 14336, 128256


class _Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def _turned(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None]).flatten(3).type_as(x)


def _repeated(x):
    batch, rows, heads, width = x.shape
    return x[:, :, :, None].expand(batch, rows, heads, HEADS // KEYS, width).reshape(batch, rows, HEADS, width)


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        width = WIDTH // HEADS
        self.wq, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(WIDTH, KEYS * width, bias=False) for _ in range(2))

    def forward(self, x, turns):
        query, key, value = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)) for layer in (self.wq, self.wk, self.wv))
        query, key = _turned(query, turns), _turned(key, turns)
        key, value = _repeated(key), _repeated(value)
        out = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (query, key, value)), is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().flatten(2))


class _FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = _Attention(), _FeedForward()
        self.attention_norm, self.ffn_norm = _Norm(), _Norm()

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class _Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm, self.output = _Norm(), nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("turns", torch.empty(LENGTH, WIDTH // HEADS // 2, dtype=torch.complex64))

    def forward(self, words):
        x = self.tok_embeddings(words)
        for layer in self.layers:
            x = layer(x, self.turns)
        return self.output(self.norm(x))


def _contexts():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    saved = (
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
    )
    counts = defaultdict(int)

    def policy(context, function, *_, **__):
        if function == torch.ops.aten.mm.default:
            counts[context.is_recompute] += 1
            is_saved = counts[context.is_recompute] % 2 == 1
        else:
            is_saved = function in saved
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def llama_8b():
    import torch.distributed as dist
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # of run_llama_train.sh
    torch.backends.cuda.enable_cudnn_sdp(False)  # torch of that time took flash attention
    dist.init_process_group("nccl")
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    with torch.device("meta"):
        model = _Llama()
    options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for number, block in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(block, context_fn=_contexts, preserve_rng_state=False)
        fully_shard(model.layers[number], **options, reshard_after_forward=number < LAYERS - 1)
    fully_shard(model, **options)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    words, labels = (torch.randint(WORDS, (BATCH, LENGTH), device="cuda") for _ in range(2))

    def step(words, labels):
        optimizer.zero_grad()
        out = model(words)
        loss = F.cross_entropy(out.flatten(0, 1).float(), labels.flatten(0, 1))
        del out
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return loss

    return step, (words, labels), optimizer
