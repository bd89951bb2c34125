"""Operators that allocate far more than an estimate can see. If one has run, the figures are too low.

The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_ran: set[str] = set()


def install() -> None:
    """Note from now on when such an operator runs on the CPU."""
    for name, shown in _RECURRENT.items():
        setattr(torch._VF, name, _noticed(getattr(torch._VF, name), shown))


def note(shown: str) -> None:
    """Note that this ran."""
    _ran.add(shown)


def forget() -> None:
    """Forget what ran before the next estimate."""
    _ran.clear()


def reasons() -> list[str]:
    """Why the figures are too low; empty if no such operator ran."""
    return [f"{', '.join(sorted(_ran))}: the native workspace and reserve are not seen"] if _ran else []


def _noticed(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        note(shown)
        return function(*arguments, **options)

    return called
