"""Streams of a card that is not there: which one is current, for torch's allocator keeps free blocks apart by stream.

Work on a stream is never waited for, so events have nothing to record.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Self

import torch

_numbers = itertools.count()


class CardStream:
    """Stands for `torch.cuda.Stream`. The first is the default one."""

    def __init__(self, _device: Any = None, priority: int = 0, **_options: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.priority = priority
        self.stream_id = self.cuda_stream = next(_numbers)
        self._outer: list[CardStream] = []

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: CardEvent | None = None) -> CardEvent:
        return event or CardEvent()

    def __enter__(self) -> Self:
        self._outer.append(current())
        _select(self)
        return self

    def __exit__(self, *_: object) -> None:
        _select(self._outer.pop())


class CardEvent:
    """Stands for `torch.cuda.Event`."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: CardEvent) -> float:
        return 0.0


_default = CardStream()
_selected = [_default]


def current(_device: Any = None) -> CardStream:
    return _selected[0]


def _select(stream: CardStream) -> None:
    _selected[0] = stream


def _as_context(stream: CardStream | None) -> CardStream:
    return current() if stream is None else stream


def install() -> None:
    """Let programs find these under torch's names. Dynamo refuses to list a function under two."""
    for home in (torch.cuda, torch.cpu):  # the second for code that asks where its tensors are
        home.Stream, home.Event = CardStream, CardEvent
        home.stream, home.current_stream = partial(_as_context), lambda _device=None: current()
    torch.cuda.set_stream, torch.cuda.default_stream = _select, lambda _device=None: _default
    torch.accelerator.current_stream, torch.accelerator.set_stream = current, partial(_select)
