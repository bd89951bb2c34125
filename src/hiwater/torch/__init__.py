"""What torch holds, and why; and what a step will hold, without a card.

The names below are the whole public interface. Each is looked up at first use, and torch is imported then, not before.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.torch.estimate.api import estimate

__all__ = ["estimate"]

_HOMES = {
    "estimate": "hiwater.torch.estimate",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
