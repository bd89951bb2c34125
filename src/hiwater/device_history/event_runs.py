"""Runs of events in the bytes of a pickle, taken in without going through their instructions one by one.

Picklers write most events alike: an empty dict, its number in the memo, keys that are fetched from the memo, and values that are numbers,
short texts, pairs of small numbers, or frames that are known. A pattern for such a layout, which names the keys as they are written, finds the
values of an event in one step. What no layout matches is left to the machine; both mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hiwater.device_history.pickle_machine import FORGOTTEN
from hiwater.device_history.trace import AllocatorTrace

if TYPE_CHECKING:
    from hiwater.device_history.snapshot_stream import SnapshotMachine

GET = rb"(?:h.|j....)"
KNOWN_FRAMES = rb"\]\x94(?:\(" + GET + rb"++e|" + GET + rb"a)"
_LONGS = b"|".join(b"\\x%02x.{%d}[\\x00-\\x7f]" % (width, width - 1) for width in range(5, 10))
_NUMBER = rb"(?:K.|\x8a(?:" + _LONGS + rb")|M..|J...[\x00-\x7f])"  # none below zero
_TEXT = b"|".join(b"\\x8c\\x%02x.{%d}\\x94" % (length, length) for length in range(48))
_OTHER = rb"(?:" + b"|".join((GET, b"N", rb"K.K.\x86\x94", _TEXT, KNOWN_FRAMES, rb"\]\x94")) + rb")"
_BEGIN, _END = rb"\}\x94\(", b"u"
_EVENT = re.compile(_BEGIN + b"(?:" + GET + b"(?:" + _NUMBER + b"|" + _OTHER + b"))+" + _END, re.DOTALL)
_PAIR = re.compile(b"(" + GET + b")(?:(" + _OTHER + b")|" + _NUMBER + b")", re.DOTALL)
_BEFORE_PAIRS = 3
_MOST_LAYOUTS = 16
_NUMBERS = ("addr", "size", "stream", "time_us")
_LONG1, _BININT, _BININT1, _BININT2, _BINGET, _LONG_BINGET, _EMPTY_LIST, _SHORT_BINUNICODE = b"\x8aJKMhj]\x8c"
_PAIR_BEGINS = 2  # bytes of a small number; a pair has more


class EventRuns:
    """Takes events for a machine, which calls `take` where an event begins."""

    def __init__(self) -> None:
        self._layouts: list[_Layout] = []
        # Objects by how they are written, and whether that gives them a number in the memo.
        self._known: dict[bytes, tuple[Any, bool]] = {}

    def take(self, machine: SnapshotMachine, trace: AllocatorTrace) -> bool:
        """All events from here on that a layout matches. False where there is none."""
        buffer, place, end = machine.buffer, machine.place, machine.frame_end
        while place < machine.enough:
            for layout in self._layouts:
                found = layout.match(buffer, place, end)
                if found is not None:
                    break
            else:
                if self._learn(machine, place):
                    continue
                break
            trace.add(self._event(machine, layout, found.groups()))
            place = found.end()
        is_any, machine.place = place > machine.place, place
        return is_any

    def _learn(self, machine: SnapshotMachine, place: int) -> bool:
        """A new layout from the event that begins at `place`."""
        buffer = machine.buffer
        found = _EVENT.match(buffer, place, machine.frame_end)
        if found is None or len(self._layouts) == _MOST_LAYOUTS:
            return False
        pairs = _PAIR.findall(buffer, place + _BEFORE_PAIRS, found.end() - 1)
        keys = [(get, self._new(machine, get), not other) for get, other in pairs]
        names = {name for _, name, _ in keys}
        if len(names) < len(keys) or not all(type(name) is str for name in names):
            return False
        layout = _Layout(keys)
        self._layouts.append(layout)
        return layout.match(buffer, place, machine.frame_end) is not None

    def _event(self, machine: SnapshotMachine, layout: _Layout, values: Sequence[bytes]) -> dict[str, Any]:
        """What of an event matters, and its part of the memo. Millions of values come by here."""
        event, known_as = {}, self._known.get
        machine.memo.append(FORGOTTEN)
        for name, written in zip(layout.names, values, strict=True):
            known = known_as(written)
            if known is None:
                event[name] = self._new(machine, written)
                continue
            event[name] = known[0]
            if known[1]:
                machine.memo.append(known[0])
        return event

    def _new(self, machine: SnapshotMachine, written: bytes) -> Any:
        """An object that is not known by these instructions; the memo has it if they say so."""
        first = written[0]
        if first == _LONG1:
            return int.from_bytes(written[2:], "little")
        if first == _BININT:
            return int.from_bytes(written[1:], "little")
        if first == _LONG_BINGET:
            value = machine.fetch(int.from_bytes(written[1:], "little"))
            if type(value) is str:
                self._known[written] = value, False
            return value
        value, is_in_memo = self._known[written] = self._make(machine, written)
        if is_in_memo:
            machine.memo.append(value)
        return value

    def _make(self, machine: SnapshotMachine, written: bytes) -> tuple[Any, bool]:
        first = written[0]
        if first == _BINGET:
            return machine.fetch(written[1]), False
        if first == _EMPTY_LIST:
            return machine.frames_as_written(written), True
        if first == _SHORT_BINUNICODE:
            return machine.text(str(written[2:-1], "utf-8", "surrogatepass")), True
        if first == _BININT1:
            return (
                (machine.numbers((written[1], written[3])), True)
                if len(written) > _PAIR_BEGINS
                else (written[1], False)
            )
        if first == _BININT2:
            return int.from_bytes(written[1:], "little"), False
        return None, False


class _Layout:
    """Events with the same keys in the same order: (as written, name, whether its value is a number). `names` are those of the values that are
    needed: all that may be in the memo, and the numbers of an event."""

    def __init__(self, keys: Sequence[tuple[bytes, str, bool]]) -> None:
        pairs = []
        self.names = []
        for get, name, is_number in keys:
            value = _NUMBER if is_number else _OTHER
            if not is_number or name in _NUMBERS:
                self.names.append(name)
                value = b"(" + value + b")"
            pairs.append(re.escape(get) + value)
        self.match = re.compile(_BEGIN + b"".join(pairs) + _END, re.DOTALL).match
