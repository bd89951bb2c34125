"""What a step needs on the card of this machine, by torch's own peaks: the truth that estimates are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from hiwater.contrib.torch.estimate import failures, steps
from hiwater.errors import EstimateFailed

_LIBRARIES = ("transformers", "torchvision", "triton")


def measured(make: Callable[[], Callable[[int | None], Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """The card with the versions of what ran on it, and the row of the step. Raises EstimateFailed without a card."""
    if not torch.cuda.is_available():
        raise EstimateFailed(
            "torch finds no card on this machine, so nothing can be measured",
            "run it on a machine where torch.cuda.is_available(), or leave --record-row out",
        )
    with failures.explained():
        return {"about": about(), "row": row(make(), request)}


def row(make: Callable[[int | None], Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Build the step and run it; bytes of the peaks, of what was there before the first step, and at the end."""
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    function, inputs, optimizer, loss = make(request["batch_size"])
    job = steps.Workload(function, inputs, optimizer, loss, request)
    built = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    steps.run_really(job, "cuda")
    torch.cuda.synchronize()
    return {
        "model": type(job.function).__name__,
        **{option: request[option] for option in ("mode", "steps", "accumulate", "batch_size", "dtype", "autocast")},
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "built_allocated": built[0],
        "built_reserved": built[1],
        "end_allocated": torch.cuda.memory_allocated(),
        "end_reserved": torch.cuda.memory_reserved(),
    }


def about() -> dict[str, Any]:
    """The card and the versions of what runs on it."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name, "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count, "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "total_bytes": properties.total_memory,
        **{library: _version(library) for library in _LIBRARIES},
    }  # fmt: skip


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
