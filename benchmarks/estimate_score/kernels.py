"""What the benchmark of Liger-Kernel measures with its plain providers, as its published rows have it: forward and
backward in a loop, gradients kept, and a second module that is made and not used.

Each function builds one as `hiwater estimate` asks for it; its `batch_size` is the row's size.
"""

from __future__ import annotations

import torch
from torch import nn

TURNS = 3  # the benchmark makes ten; nothing changes after the second


def _repeated(layer, idle, turn):
    def step(*inputs):
        for _ in range(TURNS):
            turn(layer, *inputs)
        return idle

    return step


def _turn(layer, x):
    y = layer(x)
    y.backward(torch.randn_like(y), retain_graph=True)


def _turn_of_loss(layer, *inputs):
    layer(*inputs).backward()


def _turn_of_norm(layer, x, gradient):
    layer(x).backward(gradient, retain_graph=True)


class Mlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def _mlp(batch, rows, width, inner):
    layer = Mlp(width, inner).to("cuda", torch.bfloat16)
    x = torch.randn(batch, rows, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return _repeated(layer, None, _turn), (x,)


def swiglu(batch_size=1024):
    return _mlp(4, batch_size, 4096, 11008)


def small_swiglu(batch_size=1024):
    return _mlp(2, batch_size, 2048, 4096)


class HeadAndLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y):
        logits = self.head(x)
        return self.loss(logits, y)


def head_and_cross_entropy(batch_size=4096):
    x = torch.randn(batch_size, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    y = torch.randint(128256, (batch_size, 1), device="cuda").squeeze(1)
    return _repeated(HeadAndLoss().cuda(), HeadAndLoss().cuda(), _turn_of_loss), (x, y)


class HeadsAndDivergence(nn.Module):
    """The Jensen-Shannon divergence of a student's and a teacher's words."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = (
            nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16, device="cuda") for _ in range(2)
        )
        self.divergence = nn.KLDivLoss(reduction="none", log_target=True)

    def forward(self, s, t):
        student_logits, teacher_logits = self.student(s), self.teacher(t)
        student = torch.log_softmax(student_logits / 1.0, dim=-1)
        teacher = torch.log_softmax(teacher_logits / 1.0, dim=-1)
        return self._between(student, teacher)

    def _between(self, log_q, log_p):
        log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
        m = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
        loss = 0.5 * self.divergence(torch.log(m), log_p).sum(dim=-1) + (1 - 0.5) * self.divergence(
            torch.log(m), log_q
        ).sum(dim=-1)
        return (loss / log_q.shape[0]).sum().to(torch.bfloat16)


def heads_and_divergence(batch_size=1024):
    s = torch.rand(batch_size, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    t = torch.rand(batch_size, 4096, dtype=torch.bfloat16, device="cuda")
    return _repeated(HeadsAndDivergence(), None, _turn_of_loss), (s, t)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(kind)


def rms_norm(batch_size=1024):
    x = torch.randn(2048, batch_size, dtype=torch.bfloat16, device="cuda")
    step = _repeated(RmsNorm(batch_size).cuda(), RmsNorm(batch_size).cuda(), _turn_of_norm)
    return step, (x.requires_grad_(True), torch.randn_like(x))


def layer_norm(batch_size=1024):
    x = torch.randn(4096, batch_size, device="cuda")
    step = _repeated(nn.LayerNorm(batch_size).cuda(), nn.LayerNorm(batch_size).cuda(), _turn_of_norm)
    return step, (x.requires_grad_(True), torch.randn_like(x))


def cross_entropy(batch_size=4096):
    x = torch.randn(8 * 2048, batch_size, requires_grad=True, device="cuda")
    y = torch.randint(batch_size, (8 * 2048, 1), device="cuda").squeeze(1)
    return _repeated(nn.CrossEntropyLoss(), None, _turn_of_loss), (x, y)
