"""Tools for torch: reports of tensors by name and storage, line profiles, estimates of a step without a card, reports
of refused memory, and lending the card's memory for a while.

The names below are the whole public interface. Each is imported at its first use, and torch with it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.torch.courtesy import Courtesy
    from hiwater.contrib.torch.estimate.api import estimate
    from hiwater.contrib.torch.line_decorators import clear_global_line_profiler, profile, profile_every, set_target_gpu
    from hiwater.contrib.torch.lines import LineProfiler
    from hiwater.contrib.torch.oom_guard import guard
    from hiwater.contrib.torch.reporter import MemReporter
    from hiwater.contrib.torch.watch import StorageWatch

__all__ = [
    "Courtesy", "LineProfiler", "MemReporter", "StorageWatch", "clear_global_line_profiler", "estimate", "guard",
    "profile", "profile_every", "set_target_gpu",
]  # fmt: skip

_HOMES = {
    "Courtesy": "hiwater.contrib.torch.courtesy",
    "MemReporter": "hiwater.contrib.torch.reporter",
    "StorageWatch": "hiwater.contrib.torch.watch",
    "LineProfiler": "hiwater.contrib.torch.lines",
    **dict.fromkeys(
        ("clear_global_line_profiler", "profile", "profile_every", "set_target_gpu"),
        "hiwater.contrib.torch.line_decorators",
    ),
    "estimate": "hiwater.contrib.torch.estimate",
    "guard": "hiwater.contrib.torch.oom_guard",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":  # torch is installed, but lacks a module: its own message says more
            raise
        from hiwater.errors import ExtraMissing

        raise ExtraMissing(f"hiwater.contrib.torch.{name} needs torch", "pip install 'hiwater[torch]'") from None
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
