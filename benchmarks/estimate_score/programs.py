"""Programs whose memory is estimated and measured. Each function builds one as `hiwater estimate` asks for it.

Models have random weights: nothing is downloaded.
"""

from __future__ import annotations

import itertools
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


def gpt2_clipped():
    """Norms of gradients are clipped, and gradients of two halves of the batch are summed, as training loops do."""
    net, batch, optimizer = _gpt2()
    halves = [{name: words[rows] for name, words in batch.items()} for rows in (slice(4), slice(4, 8))]

    def step():
        for half in halves:
            (net(**half).loss / len(halves)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, (), optimizer


class _LowRank(nn.Module):
    """A frozen linear layer and its low-rank change (LoRA)."""

    def __init__(self, base, rank=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        options = {"bias": False, "device": base.weight.device, "dtype": base.weight.dtype}
        self.down, self.up = nn.Linear(base.in_features, rank, **options), nn.Linear(rank, base.out_features, **options)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def llama_low_rank():
    net, batch, _ = _llama()
    net.requires_grad_(False)
    for layer in net.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, _LowRank(getattr(layer.self_attn, name)))
    return net, batch, torch.optim.AdamW(each for each in net.parameters() if each.requires_grad)


def qwen3():
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8,
        head_dim=64, vocab_size=64000, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    net = transformers.Qwen3ForCausalLM(config).to("cuda", torch.bfloat16)
    ids = torch.randint(64000, (4, 1024), device="cuda")
    return net, {"input_ids": ids, "labels": ids}, torch.optim.AdamW(net.parameters(), fused=True)


def t5():
    import transformers

    net = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=32128, decoder_start_token_id=0)
    ).cuda()
    ids = torch.randint(32128, (16, 256), device="cuda")
    labels = torch.randint(32128, (16, 64), device="cuda")
    return net, {"input_ids": ids, "labels": labels}, torch.optim.AdamW(net.parameters())


def whisper():
    import transformers

    net = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(use_cache=False)).cuda()
    labels = torch.randint(51865, (8, 64), device="cuda")
    return net, {"input_features": _rows(8, 80, 3000), "labels": labels}, torch.optim.AdamW(net.parameters())


def clip():
    import transformers

    net = transformers.CLIPModel(transformers.CLIPConfig()).cuda()
    ids = torch.randint(49407, (32, 77), device="cuda")
    batch = {"input_ids": ids, "pixel_values": _rows(32, 3, 224, 224), "return_loss": True}
    return net, batch, torch.optim.AdamW(net.parameters())


def llama_decoded():
    """One word more for 8 conversations of 2,047 words each: the cache is filled, then read."""
    net, _, _ = _llama(8)
    net.eval()
    words = torch.randint(32000, (8, 2048), device="cuda")

    def step(words):
        with torch.no_grad():
            filled = net(words[:, :-1], use_cache=True, logits_to_keep=1)
            return net(words[:, -1:], past_key_values=filled.past_key_values, use_cache=True).logits

    return step, words


def swin():
    net, x, loss = _images("swin_t")
    return net, x, torch.optim.AdamW(net.parameters()), loss


def convnext():
    net, x, loss = _images("convnext_tiny")
    return net, x, torch.optim.AdamW(net.parameters()), loss


def efficientnet():
    net, x, loss = _images("efficientnet_b0", 64)
    return net, x, torch.optim.RMSprop(net.parameters(), momentum=0.9), loss


def unet():
    """Segmentation by a network that reduces and enlarges, with skips: group norms, transposed convolutions."""

    def block(inner, outer):
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU(),
            nn.Conv2d(outer, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.SiLU(),
        )  # fmt: skip

    class Net(nn.Module):
        def __init__(self, widths=(32, 64, 128, 256)):
            super().__init__()
            self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths, strict=False))
            self.enlarge = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
            self.up = nn.ModuleList(block(2 * a, a) for a in widths[:-1])
            self.head = nn.Conv2d(widths[0], 21, 1)

        def forward(self, x):
            kept = []
            for level in self.down[:-1]:
                kept.append(level(x))
                x = F.max_pool2d(kept[-1], 2)
            x = self.down[-1](x)
            for enlarge, level, skipped in zip(reversed(self.enlarge), reversed(self.up), reversed(kept), strict=True):
                x = level(torch.cat([enlarge(x), skipped], 1))
            return self.head(x)

    net = Net().cuda()
    labels = torch.randint(21, (8, 256, 256), device="cuda")
    return net, _rows(8, 3, 256, 256), torch.optim.AdamW(net.parameters()), lambda out: F.cross_entropy(out, labels)


def teacher_and_average():
    """A student learns from a frozen teacher, and an average of the student's weights is kept."""
    net, x, optimizer, _ = _linear()
    teacher, average = _linear()[0].requires_grad_(False), torch.optim.swa_utils.AveragedModel(net)

    def step(x):
        with torch.no_grad():
            wanted = teacher(x)
        F.mse_loss(net(x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(net)

    return step, x, optimizer


def losses_kept():
    """The mean loss is summed with its graph, as a common fault does."""
    net, x, optimizer, loss = _linear()
    total = 0

    def step(x):
        nonlocal total
        optimizer.zero_grad()
        value = loss(net(x))
        value.backward()
        optimizer.step()
        total = total + value

    return step, x, optimizer


def gru():
    net = nn.GRU(128, 256, num_layers=2, batch_first=True).cuda()
    return net, _rows(64, 100, 128), torch.optim.Adam(net.parameters()), lambda out: out[0].square().mean()


def resnet50_deterministic():
    torch.backends.cudnn.deterministic = True
    return resnet50()


def resnet50_benchmark():
    """cuDNN tries algorithms."""
    torch.backends.cudnn.benchmark = True
    return resnet50()


def _as_measured(net, x, optimizer, loss=lambda out: out.loss):
    """Steps of which the first has no backward, as these programs ran on the card: `measure.py` took it for run when
    the compiler traced it. Their peaks are of forwards while the outputs before are live, with all that they keep."""
    kept = []

    def step(**inputs):
        for parameter in net.parameters():
            parameter.grad = None
        output = net(inputs["x"]) if "x" in inputs else net(**inputs)
        is_first = not kept
        kept[:1] = [output]
        del output
        if is_first:
            torch.zeros((), requires_grad=True).backward()
        else:
            kept[1:] = [loss(kept[0])]
            kept[1].backward()
        optimizer.step()

    return step, x if isinstance(x, dict) else {"x": x}, optimizer


def compiled():
    net, x, optimizer, loss = _linear()
    return _as_measured(torch.compile(net), x, optimizer, loss)


def _wide_linear():
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(4096, 4096), nn.GELU()))).cuda()


def compiled_layers():
    net = torch.compile(_wide_linear())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return _as_measured(net, _rows(8192, 4096), optimizer, lambda out: out.square().mean())


def compiled_norms():
    parts = ((nn.LayerNorm(2048), nn.Linear(2048, 2048), nn.SiLU(), nn.Dropout(0.1)) for _ in range(8))
    net = torch.compile(nn.Sequential(*itertools.chain.from_iterable(parts)).cuda())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return _as_measured(net, _rows(8192, 2048), optimizer, lambda out: out.square().mean())


def compiled_gpt2():
    return _as_measured(*parallel_programs._words_of(torch.compile(parallel_programs._gpt2())))


def compiled_inference():
    return torch.compile(_wide_linear()), _rows(8192, 4096)


def _small(name):
    """A model of the tests, moved to the card."""
    net, x, optimizer, loss = estimate_models.MODELS[name]()
    net.cuda()  # in place: the optimizer keeps its parameters
    return net, x.detach().cuda().requires_grad_(x.requires_grad), optimizer, loss


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))
import parallel_programs  # noqa: E402

import estimate_models  # noqa: E402

CLASSES = {
    "small models": [f"small_{name}" for name in estimate_models.MODELS if name != "lstm"],
    "optimizers and order of a step": [
        "adamw", "adamw_fused", "adamw_loop", "adamw_capturable", "amsgrad", "sgd_gradients_kept", "set_to_zero",
        "teacher_and_average", "losses_kept",
    ],
    "language models": [
        "head_and_loss", "gpt2", "gpt2_autocast", "gpt2_eager", "llama", "llama_without_mask", "llama_checkpointed",
        "bert", "gpt2_inference", "gpt2_cached", "gpt2_clipped", "llama_low_rank", "qwen3", "t5", "whisper", "clip",
        "llama_decoded",
    ],
    "images": [
        "resnet50", "resnet50_channels_last", "vit_scaled", "conv_inference", "swin", "convnext", "efficientnet",
        "unet", "resnet50_deterministic",
    ],
    "several processes or streams": parallel_programs.NAMES,
    "recurrent networks": ["lstm", "small_lstm", "gru"],
    "torch.compile": [
        "compiled", "compiled_layers", "compiled_norms", "compiled_gpt2", "compiled_inference",
    ],
    "cudnn.benchmark, whose estimate says unknown": ["resnet50_benchmark"],
}  # fmt: skip
INFERENCE = {
    "conv_inference", "gpt2_inference", "gpt2_cached", "llama_decoded", "compiled_inference",
    *parallel_programs.INFERENCE,
}  # fmt: skip
globals().update({name: getattr(parallel_programs, name) for name in parallel_programs.NAMES})
NAMES = [name for names in CLASSES.values() for name in names]
globals().update({name: partial(_small, name.removeprefix("small_")) for name in NAMES if name.startswith("small_")})
