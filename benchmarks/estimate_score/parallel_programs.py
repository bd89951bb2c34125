"""Programs with process groups or several streams, on one card, as users write them."""

from __future__ import annotations

import tempfile
from functools import partial

import torch
from torch import nn

_LINEARS = 6


def _group():
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)


def _net():
    return nn.Sequential(*(layer for _ in range(_LINEARS) for layer in (nn.Linear(2048, 2048), nn.GELU()))).cuda()


def _step_of(net):
    x = torch.randn(512, 2048, device="cuda")
    return net, x, torch.optim.AdamW(net.parameters()), lambda out: out.float().square().mean()


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=6, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(config).cuda()


def _words_of(net):
    ids = torch.randint(50257, (8, 512), device="cuda")
    return net, {"input_ids": ids, "labels": ids}, torch.optim.AdamW(net.parameters())


def _replicated(net, **options):
    _group()
    return nn.parallel.DistributedDataParallel(net, device_ids=[0], **options)


def ddp():
    return _step_of(_replicated(_net()))


def ddp_view():
    return _step_of(_replicated(_net(), gradient_as_bucket_view=True))


def ddp_static():
    return _step_of(_replicated(_net(), static_graph=True))


def ddp_small_buckets():
    return _step_of(_replicated(_net(), bucket_cap_mb=5))


def ddp_unused():
    return _step_of(_replicated(_net(), find_unused_parameters=True))


def ddp_kept():
    """Gradients are set to zero and kept."""
    net, x, optimizer, loss = _step_of(_replicated(_net()))

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss(net(x)).backward()
        optimizer.step()

    return step, x, optimizer


def ddp_gpt2():
    return _words_of(_replicated(_gpt2()))


def _sharded(net, blocks, **options):
    _group()
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def _sharded_net(**options):
    net = _net()
    return _sharded(net, [layer for layer in net if isinstance(layer, nn.Linear)], **options)


def _mixed():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}


def fsdp():
    return _step_of(_sharded_net())


def fsdp_kept():
    """Parameters stay gathered between forward and backward."""
    return _step_of(_sharded_net(reshard_after_forward=False))


def fsdp_mixed():
    return _step_of(_sharded_net(**_mixed()))


def fsdp_gpt2():
    net = _gpt2()
    return _words_of(_sharded(net, list(net.transformer.h), **_mixed()))


def fsdp_inference():
    return _step_of(_sharded_net())[:2]


# --- written and estimated before they were measured ------------------------------------------------------------------


def _norms(width=3072, layers=5):
    parts = ((nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU()) for _ in range(layers))
    return nn.Sequential(*(layer for part in parts for layer in part))


def _linears_of(net):
    return [layer for layer in net if isinstance(layer, nn.Linear)]


def _encoder():
    layer = nn.TransformerEncoderLayer(
        1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )  # fmt: skip
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).cuda()


def _square(out):
    return out.float().square().mean()


def ddp_accumulated():
    """Two backward passes without communication, then one with it."""
    net = _replicated(_norms().cuda())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        with net.no_sync():
            for _ in range(2):
                _square(net(x)).backward()
        _square(net(x)).backward()
        optimizer.step()

    return step, torch.randn(1024, 3072, device="cuda"), optimizer


def ddp_autocast_view():
    net = _replicated(_encoder(), gradient_as_bucket_view=True, bucket_cap_mb=10)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = _square(net(x))
        loss.backward()
        optimizer.step()

    return step, torch.randn(8, 512, 1024, device="cuda"), optimizer


class _PartlyUsed(nn.Module):
    """The forward leaves out a branch."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = _norms(2048, 4), nn.Linear(2048, 4096)

    def forward(self, x):
        return self.used(x)


def ddp_unused_part():
    net = _replicated(_PartlyUsed().cuda(), find_unused_parameters=True)
    return net, torch.randn(2048, 2048, device="cuda"), torch.optim.Adam(net.parameters()), _square


def ddp_gpt2_autocast():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    net = _replicated(GPT2LMHeadModel(config).cuda(), broadcast_buffers=False)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(ids):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, torch.randint(50257, (8, 256), device="cuda"), optimizer


def _checkpointed(layer):
    from torch.utils.checkpoint import checkpoint

    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def fsdp_encoder_checkpointed():
    net = _encoder()
    for layer in net.layers:
        _checkpointed(layer)
    _sharded(net, list(net.layers), **_mixed())
    return net, torch.randn(8, 1024, 1024, device="cuda"), torch.optim.AdamW(net.parameters(), fused=True), _square


def fsdp_clipped():
    """Gradients of two batches are added up, and clipped as those of all processes."""
    net = _norms().cuda()
    _sharded(net, _linears_of(net))
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x):
        for _ in range(2):
            _square(net(x)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, torch.randn(1024, 3072, device="cuda"), optimizer


def fsdp_meta():
    """Built without memory, sharded, and then made on the card."""
    with torch.device("meta"):
        net = _norms()
    _sharded(net, _linears_of(net), reshard_after_forward=False)
    net.to_empty(device="cuda")
    x = torch.randn(4096, 3072, device="cuda")
    return net, x, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), _square


def fsdp_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16,
        num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    net = LlamaForCausalLM(config).cuda()
    _sharded(net, list(net.model.layers), **_mixed())
    ids = torch.randint(32000, (4, 1024), device="cuda")
    return net, {"input_ids": ids, "labels": ids}, torch.optim.AdamW(net.parameters(), fused=True)


def fsdp_inference_kept():
    net = _norms().cuda().bfloat16()
    _sharded(net, _linears_of(net), reshard_after_forward=False)
    return net, torch.randn(4096, 3072, device="cuda", dtype=torch.bfloat16)


def tensor_parallel():
    _group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    blocks = (nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(3))
    net = nn.Sequential(*blocks).cuda()
    for block in net:
        parallelize_module(block, init_device_mesh("cuda", (1,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return net, torch.randn(1024, 2048, device="cuda"), torch.optim.AdamW(net.parameters()), _square


def side_stream():
    """A product on a second stream, as what prepares batches has."""
    net, stream = _norms(2048, 4).cuda(), torch.cuda.Stream()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        with torch.cuda.stream(stream):
            y = (x * 2) @ x.T
            y = y[:, :2048].contiguous()
        torch.cuda.current_stream().wait_stream(stream)
        _square(net(y)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, torch.randn(4096, 2048, device="cuda"), optimizer


NAMES = [
    "ddp", "ddp_view", "ddp_static", "ddp_small_buckets", "ddp_unused", "ddp_kept", "ddp_gpt2", "ddp_accumulated",
    "ddp_autocast_view", "ddp_unused_part", "ddp_gpt2_autocast", "fsdp", "fsdp_kept", "fsdp_mixed", "fsdp_gpt2",
    "fsdp_inference", "fsdp_encoder_checkpointed", "fsdp_clipped", "fsdp_meta", "fsdp_llama", "fsdp_inference_kept",
    "tensor_parallel", "side_stream",
]  # fmt: skip
INFERENCE = {"fsdp_inference", "fsdp_inference_kept"}
