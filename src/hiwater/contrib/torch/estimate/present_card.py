"""Answers programs that ask torch for the card: it is the one of the request. Many choose autocast, fused optimizers or
the device by `torch.cuda.is_available()`, and libraries refuse to train without.

What programs ask of torch's allocator is 0, and what they tell the card does nothing. The changes to torch are
permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_KEPT = frozenset({
    "stream", "current_stream", "default_stream", "set_stream", "make_graphed_callables", "is_initialized",
})  # fmt: skip
"""Functions that `streams` has replaced, or that run on what it and `graphs` have, as context managers do; and the one
that says truly that this process uses no card."""
_FUNCTIONS = types.FunctionType, types.BuiltinFunctionType
_UNLISTED = ("_exchange_device", "_maybe_exchange_device", "_record_memory_history", "_dump_snapshot", "_snapshot")


def install(request: Mapping[str, Any]) -> None:
    """Let torch have the card that a request is for."""
    answers = _answers(request)
    cuda = torch.cuda
    homes = [cuda, cuda.graphs, cuda.memory, cuda.random, cuda.nvtx, cuda.profiler, torch.accelerator]
    homes += filter(None, [getattr(torch.accelerator, "memory", None)])  # since torch 2.9
    for home in homes:
        for name in {*getattr(home, "__all__", vars(home)), *_UNLISTED} - _KEPT:
            function = getattr(home, name, None)
            if isinstance(function, _FUNCTIONS) and not hasattr(function, "__wrapped__"):
                setattr(home, name, _answering(answers.get(name)))
    if hasattr(torch._C, "_set_only_lift_cpu_tensors"):  # as a fake mode does where there is no card
        torch._C._set_only_lift_cpu_tensors(True)
    torch.Tensor.is_cuda = property(lambda self: isinstance(self, FakeTensor))
    torch.Tensor.get_device = lambda self: 0 if isinstance(self, FakeTensor) else -1
    torch.Tensor.record_stream = _answering(None)
    # A scaler reads whether gradients were finite, and skips the step if not.
    for name in ("torch.cuda.amp.common", "torch.cuda.amp.grad_scaler"):
        if hasattr(sys.modules.get(name), "amp_definitely_not_available"):
            setattr(sys.modules[name], "amp_definitely_not_available", _answering(True))  # noqa: B010 - a module


def _answers(request: Mapping[str, Any]) -> dict[str, Any]:
    """What torch's functions return, by their names; None is not listed."""
    capability = tuple(request["capability"])
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
    zeros = (
        "memory_allocated", "memory_reserved", "memory_cached", "max_memory_allocated", "max_memory_reserved",
        "max_memory_cached", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate", "current_device",
        "current_device_idx", "current_device_index", "device_memory_used", "initial_seed", "range_push", "range_pop",
        "range_start", "get_sync_debug_mode", "_exchange_device", "_maybe_exchange_device",
    )  # fmt: skip
    free = (about.total_memory, about.total_memory)
    return dict.fromkeys(zeros, 0) | {
        "is_available": True, "device_count": 1, "current_accelerator": torch.device("cuda"),
        "get_device_name": about.name, "get_device_capability": capability, "get_device_properties": about,
        "get_arch_list": [f"sm_{about.major}{about.minor}"], "is_bf16_supported": True, "is_tf32_supported": True,
        "can_device_access_peer": False, "mem_get_info": free, "get_memory_info": free,
        "get_per_process_memory_fraction": 1.0, "memory_stats": _Zeros(), "memory_stats_as_nested_dict": {},
        "host_memory_stats": _Zeros(), "memory_summary": "", "list_gpu_processes": "",
        "get_allocator_backend": "native", "memory_snapshot": [],
        "_snapshot": {"segments": [], "device_traces": []}, "cudart": _Runtime(), "graph_pool_handle": (0, 0),
        "get_rng_state": torch.ByteTensor(16), "get_rng_state_all": [], "is_current_stream_capturing": False,
    }  # fmt: skip


class _Zeros(dict[str, int]):
    """Counters, all of them 0."""

    def __missing__(self, name: str) -> int:
        return 0


class _Runtime:
    """CUDA's functions, each of which succeeds."""

    def __getattr__(self, name: str) -> Any:
        return _answering(0)


def _answering(answer: Any) -> Any:
    return lambda *_arguments, **_options: answer
