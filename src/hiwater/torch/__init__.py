"""What torch holds, and why: tensors by name and storage, what autograd saved, and lending the card for a while;
and what a step would hold, without a card.

The names below are the whole public interface. Each is looked up at first use, and torch is imported then, not before.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.torch.courtesy import Courtesy
    from hiwater.torch.estimate.api import estimate
    from hiwater.torch.lending import courtesy_listen
    from hiwater.torch.line_decorators import clear_global_line_profiler, profile, profile_every, set_target_gpu
    from hiwater.torch.lines import LineProfiler
    from hiwater.torch.oom_guard import guard
    from hiwater.torch.reporter import MemReporter
    from hiwater.torch.watch import StorageWatch

__all__ = [
    "Courtesy", "LineProfiler", "MemReporter", "StorageWatch", "clear_global_line_profiler", "courtesy_listen", "estimate",
    "guard", "profile", "profile_every", "set_target_gpu",
]  # fmt: skip

_HOMES = {
    "Courtesy": "hiwater.torch.courtesy",
    "MemReporter": "hiwater.torch.reporter",
    "StorageWatch": "hiwater.torch.watch",
    "LineProfiler": "hiwater.torch.lines",
    **dict.fromkeys(
        ("clear_global_line_profiler", "profile", "profile_every", "set_target_gpu"), "hiwater.torch.line_decorators"
    ),
    "courtesy_listen": "hiwater.torch.lending",
    "estimate": "hiwater.torch.estimate",
    "guard": "hiwater.torch.oom_guard",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":  # torch is there, and something that it needs is not: its own message says more
            raise
        from hiwater.errors import ExtraMissing

        raise ExtraMissing(f"hiwater.torch.{name} needs torch", "pip install 'hiwater[torch]'") from None
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
