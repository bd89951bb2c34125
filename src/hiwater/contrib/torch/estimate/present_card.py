"""Answers programs that ask torch for the card: it is the one of the request. Many choose autocast, fused optimizers or
the device by `torch.cuda.is_available()`, and libraries refuse to train without.

The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

_ACCELERATOR = {
    "is_available": True, "device_count": 1, "current_accelerator": torch.device("cuda"), "current_device_index": 0,
    "current_device_idx": 0, "set_device_index": None, "set_device_idx": None, "synchronize": None,
}  # fmt: skip
"""Of `torch.accelerator`, with the names of torch 2.6 and later ones."""


def install(request: Mapping[str, Any]) -> None:
    """Let torch have the card that a request is for."""
    cuda, capability = torch.cuda, tuple(request["capability"])
    about = SimpleNamespace(
        name=request["device"],
        major=capability[0],
        minor=capability[1],
        total_memory=request["total_bytes"],
        multi_processor_count=request["processors"][0],
        max_threads_per_multi_processor=request["processors"][1],
        warp_size=32,
        regs_per_multiprocessor=65536,
        gcnArchName="",  # of AMD's
    )
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0,
        "get_device_name": about.name, "get_device_capability": capability, "get_device_properties": about,
        "is_bf16_supported": True, "mem_get_info": (about.total_memory, about.total_memory),
        "memory_stats": {}, "get_rng_state": torch.ByteTensor(16), "get_rng_state_all": [],
        "is_current_stream_capturing": False,
    }  # fmt: skip
    if hasattr(torch._C, "_set_only_lift_cpu_tensors"):  # as a fake mode does where there is no card
        torch._C._set_only_lift_cpu_tensors(True)
    for name, answer in answers.items():
        setattr(cuda, name, _answering(answer))
    if hasattr(torch, "accelerator"):  # builds of torch for the CPU have none, all others have, with a card or without
        for name, answer in _ACCELERATOR.items():
            setattr(torch.accelerator, name, _answering(answer))
    for name in ("set_rng_state", "set_rng_state_all", "reset_peak_memory_stats", "seed", "seed_all", "ipc_collect"):
        setattr(cuda, name, _answering(None))
    # A scaler reads whether gradients were finite, and skips the step if not.
    for name in ("torch.cuda.amp.common", "torch.cuda.amp.grad_scaler"):
        if hasattr(sys.modules.get(name), "amp_definitely_not_available"):
            setattr(sys.modules[name], "amp_definitely_not_available", _answering(True))  # noqa: B010 - a module


def _answering(answer: Any) -> Any:
    return lambda *_arguments, **_options: answer
