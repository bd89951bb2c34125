"""Operators that allocate far more than an estimate can see: where one has run, the figures are known to be too low.

Changes torch for good, so for the process made for the estimate alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_ran: set[str] = set()


def install() -> None:
    """Notice from now on when such an operator runs, whoever calls it."""
    for name, shown in _RECURRENT.items():
        setattr(torch._VF, name, _noticed(getattr(torch._VF, name), shown))


def forget() -> None:
    """Begin anew, for the next estimate."""
    _ran.clear()


def reasons() -> list[str]:
    """Why the figures are too low; empty where nothing says that they are."""
    return [f"{', '.join(sorted(_ran))}: the native workspace and reserve are not seen"] if _ran else []


def _noticed(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        _ran.add(shown)
        return function(*arguments, **options)

    return called
