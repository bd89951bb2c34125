"""Estimates the memory of a step of training or inference on a card, without the card.

`hiwater.contrib.torch.estimate` is this package and also its function: importing a package binds its name in the
parent, so a function elsewhere could not keep the name.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.contrib.torch.estimate.api import Estimate, largest_batch
    from hiwater.contrib.torch.estimate.batch import Search
    from hiwater.contrib.torch.estimate.cards import CARDS, Card
    from hiwater.contrib.torch.estimate.tries import CHANGES

__all__ = ["CARDS", "CHANGES", "Card", "Estimate", "Search", "largest_batch"]

_HOMES = {
    "CARDS": "hiwater.contrib.torch.estimate.cards",
    "CHANGES": "hiwater.contrib.torch.estimate.tries",
    "Card": "hiwater.contrib.torch.estimate.cards",
    "Estimate": "hiwater.contrib.torch.estimate.api",
    "Search": "hiwater.contrib.torch.estimate.batch",
    "largest_batch": "hiwater.contrib.torch.estimate.api",
}


def __getattr__(name: str) -> object:
    if name == "estimate":  # what the package above looks for
        return sys.modules[__name__]
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Estimate:
        from hiwater.contrib.torch.estimate import api

        return api.estimate(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
