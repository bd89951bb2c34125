"""What is made for one framework or one other tool. It may import all of hiwater; nothing outside it imports it.

`hiwater.contrib.torch` is looked up at first use, as all public names are.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib import torch

__all__ = ["torch"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    __import__(f"{__name__}.{name}")
    return globals()[name]
