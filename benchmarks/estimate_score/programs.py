"""Programs whose memory is estimated and measured. Each function builds one as `hiwater estimate` asks for it.

Models have random weights: nothing is downloaded.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it


def _rows(batch_size, *shape, dtype=torch.float32):
    return torch.randn(batch_size, *shape, device="cuda", dtype=dtype)


def _linear(**options):
    net = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU()))).cuda()
    return net, _rows(512, 2048), torch.optim.AdamW(net.parameters(), **options), lambda out: out.square().mean()


def adamw():
    return _linear()


def adamw_fused():
    return _linear(fused=True)


def adamw_loop():
    return _linear(foreach=False)


def adamw_capturable():
    return _linear(capturable=True)


def amsgrad():
    return _linear(amsgrad=True)


def sgd_gradients_kept():
    """`zero_grad` behind the forward, as in many loops: the gradients of the step before are live in the forward."""
    net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        loss = net(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, _rows(4096, 4096), optimizer


def set_to_zero():
    net, x, optimizer, loss = _linear()

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss(net(x)).backward()
        optimizer.step()

    return step, x, optimizer


def head_and_loss():
    """A vocabulary's projection and its loss in bfloat16."""
    head = nn.Linear(4096, 128256, bias=False, device="cuda", dtype=torch.bfloat16)
    words = torch.randint(128256, (4096,), device="cuda")
    return head, _rows(4096, 4096, dtype=torch.bfloat16), None, lambda out: F.cross_entropy(out, words)


class _Scaled(nn.Module):
    """Autocast within the module, as users write it."""

    def __init__(self, net, dtype):
        super().__init__()
        self.net, self.dtype = net, dtype

    def forward(self, *given, **named):
        with torch.autocast("cuda", self.dtype):
            return self.net(*given, **named)


def _gpt2(batch_size=8, **options):
    import transformers

    config = transformers.GPT2Config(attn_implementation="sdpa", use_cache=False, **options)
    net = transformers.GPT2LMHeadModel(config).cuda()
    ids = torch.randint(50257, (batch_size, 512), device="cuda")
    return net, {"input_ids": ids, "labels": ids}, torch.optim.AdamW(net.parameters())


def gpt2():
    return _gpt2()


def gpt2_autocast():
    net, batch, optimizer = _gpt2()
    return _Scaled(net, torch.bfloat16), batch, optimizer


def gpt2_eager():
    net, batch, optimizer = _gpt2()
    net.set_attn_implementation("eager")
    return net, batch, optimizer


def _llama(batch_size=4, *, mask=True, checkpointing=False):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32000, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    net = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    if checkpointing:
        net.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(32000, (batch_size, 1024), device="cuda")
    batch = {"input_ids": ids, "labels": ids}
    if mask:
        batch["attention_mask"] = torch.ones_like(ids)
    return net, batch, torch.optim.AdamW(net.parameters())


def llama():
    return _llama()


def llama_without_mask():
    return _llama(mask=False)


def llama_checkpointed():
    return _llama(checkpointing=True)


def bert():
    import transformers

    net = transformers.BertForSequenceClassification(transformers.BertConfig(attn_implementation="sdpa")).cuda()
    ids = torch.randint(30522, (32, 128), device="cuda")
    batch = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.zeros(32, dtype=torch.long, device="cuda"),
    }
    return net, batch, torch.optim.AdamW(net.parameters())


def _images(name, batch_size=32, size=224):
    import torchvision

    net = getattr(torchvision.models, name)(weights=None).cuda()
    labels = torch.randint(1000, (batch_size,), device="cuda")
    return net, _rows(batch_size, 3, size, size), lambda out: F.cross_entropy(out, labels)


def resnet50():
    net, x, loss = _images("resnet50")
    return net, x, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loss


def resnet50_channels_last():
    net, x, loss = _images("resnet50")
    net.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    return _Scaled(net, torch.bfloat16), x, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loss


def vit_scaled():
    """Autocast in float16 with a GradScaler."""
    net, x, loss = _images("vit_b_16")
    optimizer, scaler = torch.optim.AdamW(net.parameters()), torch.amp.GradScaler("cuda")

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = loss(net(x))
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, x, optimizer


def lstm():
    net = nn.LSTM(256, 512, num_layers=2, batch_first=True, dropout=0.1).cuda()
    return net, _rows(64, 100, 256), torch.optim.Adam(net.parameters()), lambda out: out[0].square().mean()


def conv_inference():
    net, x, _ = _images("resnet50")
    return net, x


def gpt2_inference():
    net, batch, _ = _gpt2()
    return net, {"input_ids": batch["input_ids"]}


def gpt2_cached():
    """Twenty words with a cache of keys and values."""
    net, batch, _ = _gpt2(4)
    net.config.use_cache = True
    ids = batch["input_ids"][:, :256]

    def step(ids):
        return net.generate(ids, max_new_tokens=20, do_sample=False, use_cache=True, pad_token_id=0)

    return step, ids


def compiled():
    """By inductor: the only one that is not run as it is written."""
    net, x, optimizer, loss = _linear()
    return torch.compile(net), x, optimizer, loss


def _small(name):
    """A model of the tests, moved to the card."""
    net, x, optimizer, loss = estimate_models.MODELS[name]()
    net.cuda()  # in place: the optimizer keeps its parameters
    return net, x.detach().cuda().requires_grad_(x.requires_grad), optimizer, loss


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))
import estimate_models  # noqa: E402

CLASSES = {
    "small models": [f"small_{name}" for name in estimate_models.MODELS if name != "lstm"],
    "optimizers and order of a step": [
        "adamw", "adamw_fused", "adamw_loop", "adamw_capturable", "amsgrad", "sgd_gradients_kept", "set_to_zero",
    ],
    "language models": [
        "head_and_loss", "gpt2", "gpt2_autocast", "gpt2_eager", "llama", "llama_without_mask", "llama_checkpointed",
        "bert", "gpt2_inference", "gpt2_cached",
    ],
    "images": ["resnet50", "resnet50_channels_last", "vit_scaled", "conv_inference"],
    "known to be too low": ["lstm", "small_lstm"],
    "torch.compile, estimated as it is written": ["compiled"],
}  # fmt: skip
INFERENCE = {"conv_inference", "gpt2_inference", "gpt2_cached"}
NAMES = [name for names in CLASSES.values() for name in names]
globals().update({name: partial(_small, name.removeprefix("small_")) for name in NAMES if name.startswith("small_")})
