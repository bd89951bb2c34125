"""What allocates far more than an estimate can see. If it has run, the figures may be too low.

The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from traceback import FrameSummary
from typing import Any

import torch

from hiwater.contrib.torch.estimate.trace import LIBRARIES

_RECURRENT = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
_NATIVE = "the native workspace and reserve are not seen"
_COMPILED = "torch.compile"
_DYNAMO = "torch._dynamo.output_graph"
_SHOWN = 3  # lines in a note
_ran: set[tuple[str, str]] = set()


def install() -> None:
    """Note from now on when such an operator runs on the CPU."""
    for name, shown in _RECURRENT.items():
        setattr(torch._VF, name, _noticed(getattr(torch._VF, name), shown))


def note(shown: str) -> None:
    """Note that this recurrent network ran."""
    _ran.add((shown, _NATIVE))


def note_compiled(how: str) -> None:
    """Note how what the program compiles is estimated."""
    _ran.add((_COMPILED, how))


def note_graph() -> None:
    """Note that the program captures a CUDA graph."""
    _ran.add(("CUDA graphs", "what a graph keeps for its replays is not seen"))


def forget() -> None:
    """Forget what ran before the next estimate."""
    _ran.clear()
    if _DYNAMO in sys.modules:
        sys.modules[_DYNAMO].graph_break_reasons.clear()


def reasons(*, is_training: bool) -> list[str]:
    """Why the figures may be too low; empty if nothing of this kind ran. Compiled inference was met."""
    why: dict[str, list[str]] = {}
    for shown, reason in sorted(each for each in _ran if is_training or each[0] != _COMPILED):
        why.setdefault(reason, []).append(shown)
    return [f"{', '.join(shown)}: {reason}" for reason, shown in why.items()]


def splits() -> list[str]:
    """The lines where dynamo has split what the program compiles, in one note."""
    stacks = [each.user_stack for each in sys.modules[_DYNAMO].graph_break_reasons] if _DYNAMO in sys.modules else []
    found: dict[str, None] = {}
    for stack in stacks:
        if stack and not stack[-1].filename.startswith(os.path.dirname(__file__)):
            found[line_in(stack)] = None
    return [f"torch.compile: dynamo splits what is compiled at {listed(found)}"] if found else []


def line_in(stack: Sequence[FrameSummary]) -> str:
    """The innermost line of the user's, or else of a library, where a compiler was."""
    frame = next((each for each in reversed(stack) if not each.filename.startswith(LIBRARIES)), stack[-1])
    return f"{frame.filename}:{frame.lineno}"


def listed(lines: Iterable[str]) -> str:
    """The first of these lines, as the user names their files, and how many more there are."""
    shown = [os.path.relpath(line) if line.startswith(os.getcwd() + os.sep) else line for line in lines]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _noticed(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        note(shown)
        return function(*arguments, **options)

    return called
