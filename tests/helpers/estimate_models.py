"""Steps to estimate, and what they really need on a CPU, by torch's own profiler: every request and release of its
allocator."""

from __future__ import annotations

import json
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint


class Mlp(nn.Module):
    def __init__(self, width=512, depth=3):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())])

    def forward(self, x):
        return self.layers(x)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.relu(self.second(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant=False):
        super().__init__()
        self.blocks = nn.ModuleList(Mlp(256, 2) for _ in range(4))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


class Inplace(nn.Module):
    """Views, in-place operations, a tie and a resize."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(256, 256)
        self.two = nn.Linear(256, 256, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        x = self.one(x).view(-1, 4, 64).transpose(1, 2)
        x = x.contiguous().add_(1).relu_()
        return self.two(x.reshape(-1, 256)).chunk(2, dim=1)[0].clone()


def mlp(batch_size=128):
    net = Mlp()
    return net, torch.randn(batch_size, 512), torch.optim.AdamW(net.parameters()), squares


def conv(batch_size=8):
    net = ConvNet()
    return net, torch.randn(batch_size, 3, 64, 64), torch.optim.SGD(net.parameters(), momentum=0.9, lr=0.1), squares


def encoder(batch_size=4):
    net = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    return net, torch.randn(batch_size, 64, 256), torch.optim.Adam(net.parameters()), squares


def lstm(batch_size=8):
    net = Recurrent()
    return net, torch.randn(batch_size, 50, 128), torch.optim.SGD(net.parameters(), lr=0.1), squares


def checkpointed(batch_size=256):
    net = Checkpointed()
    return net, torch.randn(batch_size, 256, requires_grad=True), torch.optim.SGD(net.parameters(), lr=0.1), squares


def checkpointed_reentrant(batch_size=256):
    net = Checkpointed(use_reentrant=True)
    return net, torch.randn(batch_size, 256, requires_grad=True), torch.optim.SGD(net.parameters(), lr=0.1), squares


def inplace(batch_size=512):
    net = Inplace()
    return net, torch.randn(batch_size, 256), torch.optim.SGD(net.parameters(), lr=0.1), squares


class Attention(nn.Module):
    """Several gradients meet: of queries, keys and values, and of a residual."""

    def __init__(self, width=256, heads=4, masked=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.masked = masked

    def forward(self, x):
        masks = {}
        if self.masked:
            batch, rows, _ = x.shape
            masks = {
                "key_padding_mask": torch.zeros(batch, rows, dtype=torch.bool, device=x.device),
                "attn_mask": torch.zeros(rows, rows, dtype=torch.bool, device=x.device),
            }
        return x + self.attention(x, x, x, need_weights=False, **masks)[0]


def attention(batch_size=8):
    net = Attention()
    return net, torch.randn(batch_size, 256, 256), torch.optim.SGD(net.parameters(), lr=0.1), squares


def masked_attention(batch_size=8):
    net = Attention(masked=True)
    return net, torch.randn(batch_size, 256, 256), torch.optim.SGD(net.parameters(), lr=0.1), squares


def encoders(batch_size=16):
    """Six layers without dropout, whose peak is in the backward of an attention."""
    layer = nn.TransformerEncoderLayer(128, 4, 128, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return net, torch.randn(batch_size, 128, 128), torch.optim.SGD(net.parameters(), lr=0.1), squares


def gpt(batch_size=2):
    net = Gpt(width=128, heads=2, depth=2, words=1000, length=64)
    tokens = torch.randint(0, 1000, (batch_size, 64))
    return net, tokens, torch.optim.AdamW(net.parameters()), next_words


def next_words(output):
    words = torch.zeros(output.shape[:-1], dtype=torch.long, device=output.device)
    return F.cross_entropy(output.flatten(0, -2), words.flatten())


def squares(output):
    return output.square().mean()


MODELS = {
    f.__name__: f
    for f in (
        mlp, conv, encoder, encoders, attention, masked_attention, gpt, checkpointed, checkpointed_reentrant, inplace,
        lstm,
    )
}  # fmt: skip


def train(made, steps=3, accumulate=1):
    """A plain loop, written as users write it."""
    net, x, optimizer, criterion = made
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(accumulate):
            output = net(x)
            loss = criterion(output)
            loss.backward()
        optimizer.step()


def infer(made, steps=2):
    net, x, *_ = made
    net.eval()
    for _ in range(steps):
        with torch.no_grad():
            output = net(x)
    del output


def real_peak(make, run):
    """The most bytes that torch's CPU allocator had out at once while `run` ran, what `make` left there included."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        made = make()
        with torch.profiler.record_function("the run"):
            run(made)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8") as stream:
            events = json.load(stream)["traceEvents"]
    begin = next(event["ts"] for event in events if event.get("name") == "the run")
    now = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        if event["ts"] >= begin:
            peak = max(peak, now)
    return peak


class GptBlock(nn.Module):
    """A block with attention written out, as the formulas of the literature have it."""

    def __init__(self, width, heads, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        weights = F.dropout(torch.softmax(q @ k.transpose(-2, -1) / 8, -1), self.dropout)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(mixed), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout)


class Gpt(nn.Module):
    """GPT-2's shape: tied embeddings, learned positions."""

    def __init__(self, width=768, heads=12, depth=12, words=50257, length=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[GptBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))
