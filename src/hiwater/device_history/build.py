"""A device's history as the contents of a capture: the same tables that the engine writes, with memory of one kind.

Everything is of the kind "device", and a thread is a stream of the device. The timeline has what the allocator had reserved from the
driver beside it, as the kind "reserved"; of resident memory nothing is known. Where memory was refused there is a marker and an instant slice, as in a capture of the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hiwater.capture.assemble import empty, header
from hiwater.capture.format import CODE_LABEL, CODE_PYTHON, CODE_THREAD, DEVICE_HISTORY, KINDS
from hiwater.capture.paths import Frame, Ints
from hiwater.capture.reader import Contents, Records
from hiwater.device_history.events import NO_STACK, DeviceHistory
from hiwater.device_history.replay import Replay, replay

BEFORE = Frame("[allocated before the history began]", "", 0)
UNKNOWN = Frame("[no stack was recorded]", "", 0)
_DEVICE, _RESERVED = KINDS.index("device"), KINDS.index("reserved")
_OUT_OF_MEMORY = 2
_MOST_SLICES = 512
_MOST_REFUSALS = 256  # with a slice of their own
_MOST_POINTS = 2048


def contents(
    path: Path, history: DeviceHistory, ended_unix_ns: int, facts: Mapping[str, str] | None = None
) -> Contents:
    """The capture of a history, called `path`. `facts` go into it beside those of the history; `ended_unix_ns` is when the history
    was taken, which counts where it has no times of its own."""
    told = replay(history)
    texts, nodes = _Texts(), _Nodes()
    node_of_stack = _plant(history, nodes)
    accounts = _Accounts(told, node_of_stack)
    pieces = _slices(told, accounts)
    reserved = {} if history.reserved_bytes is None else {"reserved_peak_bytes": str(int(told.reserved.max()))}
    known = {
        "recorder": DEVICE_HISTORY, "device": history.device, "live_before_bytes": str(told.live_before if history.events else 0),
        "events": str(len(history.events)), "notes": "\n".join([*history.notes, *_notes(told)]), **reserved, **history.facts, **(facts or {}),
    }  # fmt: skip
    tables = {
        **accounts.tables(pieces.peak_bytes, pieces.peak_blocks), **pieces.tables(), **nodes.tables(texts),
        "timeline": _timeline(told, accounts), "markers": _markers(told, node_of_stack),
        "facts": _pairs([(texts.number(key), texts.number(value)) for key, value in known.items()]),
    }  # fmt: skip
    tables |= texts.tables()
    tables |= {name: empty(name, 0) for name in ("processes", "process_samples", "scopes")}
    has_times = history.has_times and len(history.events) > 0
    started_ns = told.started_us * 1000 if has_times else ended_unix_ns - told.duration_ns
    return Contents(path, _header(told, pieces, accounts, max(0, started_ns)), tables)


def _notes(told: Replay) -> list[str]:
    notes = []
    if told.unseen_frees:
        notes.append(f"{told.unseen_frees:,} blocks were freed without the history telling when")
    if told.unmatched_ends:
        notes.append(f"{told.unmatched_ends:,} blocks that the history never frees are not among those held at its end")
    return notes


# Names and call paths


class _Texts:
    """Strings, each once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def tables(self) -> dict[str, Records]:
        encoded = [text.encode("utf-8", "replace") for text in self._numbers]
        strings = empty("strings", len(encoded))
        strings["length"] = [len(text) for text in encoded]
        strings["offset"] = np.cumsum(strings["length"], dtype=np.uint64) - strings["length"]
        return {"strings": strings, "string_bytes": np.frombuffer(b"".join(encoded), np.uint8)}


class _Nodes:
    """Call paths and the codes of their frames; number 0 is nothing in both."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str, int], int] = {("", "", CODE_PYTHON): 0}
        self._nodes: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}

    def path(self, thread: str, frames: Sequence[Frame]) -> int:
        node = self._node(0, (thread, "", CODE_THREAD), 0) if thread else 0
        for frame in frames:
            kind = CODE_PYTHON if frame.file else CODE_LABEL
            node = self._node(node, (frame.function, frame.file, kind), frame.line)
        return node

    def _node(self, parent: int, code: tuple[str, str, int], line: int) -> int:
        key = (parent, self._codes.setdefault(code, len(self._codes)), line)
        return self._nodes.setdefault(key, len(self._nodes))

    def tables(self, texts: _Texts) -> dict[str, Records]:
        codes, nodes = empty("codes", len(self._codes)), empty("nodes", len(self._nodes))
        codes["function"], codes["file"], codes["kind"] = np.array(
            [(texts.number(function), texts.number(file), kind) for function, file, kind in self._codes]
        ).T
        nodes["parent"], nodes["code"], nodes["line"] = np.array(list(self._nodes)).T
        return {"codes": codes, "nodes": nodes}


def _plant(history: DeviceHistory, nodes: _Nodes) -> Ints:
    """The node of every stack; the last one, which -1 means, is that of what was there before the first event."""
    found = [nodes.path(thread, frames or (UNKNOWN,)) for thread, frames in history.stacks.paths]
    return np.array([*found, nodes.path("", (BEFORE,))], np.int64)


# Who held what


class _Accounts:
    """One account for each call path that ever held something: what it held before, and how that changed."""

    def __init__(self, told: Replay, node_of_stack: Ints) -> None:
        used, back = np.unique(node_of_stack[np.concatenate([told.stack_before, told.stack])], return_inverse=True)
        self.node = np.concatenate([[0], used])  # account 0 is nothing
        of_before, self.of_change = back[: len(told.stack_before)] + 1, back[len(told.stack_before) :] + 1
        self.bytes, self.blocks = told.bytes, told.blocks
        length = len(self.node)
        self.first_bytes = _sums(of_before, told.bytes_before, length)
        self.first_blocks = _sums(of_before, told.blocks_before, length)
        self.total_before = int(told.bytes_before.sum())
        self.running = self.total_before + np.cumsum(told.bytes)
        self.running_blocks = int(told.blocks_before.sum()) + np.cumsum(told.blocks)

    def live(self, place: int) -> tuple[int, int]:
        """Bytes and blocks after so many changes."""
        if place == 0:
            return self.total_before, int(self.first_blocks.sum())
        return int(self.running[place - 1]), int(self.running_blocks[place - 1])

    def apply(self, held: Ints, blocks: Ints, first: int, last: int) -> Ints:
        """Bring figures from one number of changes to a later one; the accounts that were touched."""
        touched, back = np.unique(self.of_change[first:last], return_inverse=True)
        held[touched] += _sums(back, self.bytes[first:last], len(touched))
        blocks[touched] += _sums(back, self.blocks[first:last], len(touched))
        return touched

    def tables(self, peak_bytes: Ints, peak_blocks: Ints) -> dict[str, Records]:
        length = len(self.node)
        accounts, peaks = empty("accounts", length), empty("account_peaks", length)
        grows = self.blocks > 0
        accounts["node"], accounts["kind"] = self.node, _DEVICE
        accounts["kind"][0] = 0
        accounts["live_bytes"] = self.first_bytes + _sums(self.of_change, self.bytes, length)
        accounts["live_blocks"] = self.first_blocks + _sums(self.of_change, self.blocks, length)
        accounts["total_bytes"] = self.first_bytes + _sums(self.of_change[grows], self.bytes[grows], length)
        accounts["total_blocks"] = self.first_blocks + _sums(self.of_change[grows], self.blocks[grows], length)
        peaks["peak_bytes"], peaks["peak_blocks"] = peak_bytes, peak_blocks
        return {"accounts": accounts, "account_peaks": peaks}


def _sums(index: Ints, values: Ints, length: int) -> Ints:
    summed = np.zeros(length, np.int64)
    np.add.at(summed, index, values)
    return summed


# Slices of time


@dataclass(slots=True)
class _Pieces:
    rows: list[tuple[int, ...]]
    entries: list[tuple[Ints, Ints, Ints]]
    best: tuple[int, int, int]  # bytes, blocks, time
    peak_bytes: Ints
    peak_blocks: Ints

    def tables(self) -> dict[str, Records]:
        slices = empty("slices", len(self.rows))
        names = ("start_ns", "end_ns", "peak_ns", "peak_bytes", "peak_blocks", "first_entry", "entry_count")
        for name, column in zip(names, zip(*self.rows, strict=True), strict=False):
            slices[name] = column
        entries = empty("slice_entries", sum(len(account) for account, _, _ in self.entries))
        for number, name in enumerate(("account", "blocks", "bytes")):
            if self.entries:
                entries[name] = np.concatenate([columns[number] for columns in self.entries])
        return {"slices": slices, "slice_entries": entries}


def _parts(told: Replay, most: int) -> int:
    """Into how many parts time is cut: no more than there are changes."""
    return max(1, min(most, len(told.at_ns)))


def _cuts(told: Replay) -> Iterator[tuple[int, int, int, int]]:
    """(first change, change after the last, start, end) of each slice: equal stretches of time, cut where memory was refused."""
    edges = np.linspace(0, told.duration_ns, _parts(told, _MOST_SLICES) + 1)[1:-1].astype(np.int64)
    cuts = [(int(place), int(at)) for place, at in zip(np.searchsorted(told.at_ns, edges), edges, strict=True)]
    refused = list(zip(told.oom_place.tolist(), told.oom_ns.tolist(), strict=True))[-_MOST_REFUSALS:]
    instants = set(refused)
    place, at = 0, 0
    for next_place, next_at in sorted(set(cuts) | instants):
        if next_place < place or next_at < at:
            continue  # an edge in the middle of events of one time
        if next_place > place or next_at > at:
            yield place, next_place, at, next_at
        if (next_place, next_at) in instants:
            yield next_place, next_place, next_at, next_at
        place, at = next_place, next_at
    yield place, len(told.at_ns), at, told.duration_ns


def _slices(told: Replay, accounts: _Accounts) -> _Pieces:
    """The slices, what each account held at the highest moment of each, and that at the highest of all."""
    length = len(accounts.node)
    held, blocks, done = accounts.first_bytes.copy(), accounts.first_blocks.copy(), 0
    listed, listed_blocks = np.zeros(length, np.int64), np.zeros(length, np.int64)
    pieces = _Pieces([], [], (-1, 0, 0), held, blocks)
    fresh, entries = np.arange(length), 0  # all that was there at first is listed once
    for first, last, start, end in _cuts(told):
        highest = first + int(np.argmax(np.concatenate([[accounts.live(first)[0]], accounts.running[first:last]])))
        touched = np.union1d(fresh, accounts.apply(held, blocks, done, highest))
        fresh, done = fresh[:0], highest
        changed = touched[(held[touched] != listed[touched]) | (blocks[touched] != listed_blocks[touched])]
        listed[changed], listed_blocks[changed] = held[changed], blocks[changed]
        pieces.entries.append((changed, blocks[changed], held[changed]))
        peak_ns = max(start, int(told.at_ns[highest - 1])) if highest > first else start
        live = accounts.live(highest)
        pieces.rows.append((start, end, peak_ns, *live, entries, len(changed)))
        entries += len(changed)
        if live[0] > pieces.best[0]:
            pieces.best = (*live, peak_ns)
            pieces.peak_bytes, pieces.peak_blocks = held.copy(), blocks.copy()
    return pieces


# Time


def _timeline(told: Replay, accounts: _Accounts) -> Records:
    """Of each stretch of time the highest moment and that at which most was reserved, each with what the other was then; and the beginning and
    the end."""
    edges = np.linspace(0, told.duration_ns, _parts(told, _MOST_POINTS) + 1).astype(np.int64)
    highest = [place + 1 for place in _highest(told.at_ns, accounts.running, edges)]
    at_highest = told.at_ns[np.array(highest, np.int64) - 1] if highest else told.at_ns[:0]
    of_reserved = np.array(_highest(told.reserved_at_ns, told.reserved[1:], edges), np.int64)
    also = np.setdiff1d(told.reserved_at_ns[of_reserved], [0, *at_highest, told.duration_ns])
    at = np.concatenate([[0], at_highest, also, [told.duration_ns]]).astype(np.int64)
    places = [0, *highest, *np.searchsorted(told.at_ns, also, side="right").tolist(), len(told.at_ns)]
    order = np.argsort(at, kind="stable")
    rows = empty("timeline", len(places))
    rows["at_ns"] = at[order]
    rows["live_bytes"][:, _DEVICE] = [accounts.live(places[number])[0] for number in order.tolist()]
    rows["live_bytes"][:, _RESERVED] = _reserved(told, at[order])
    return rows


def _highest(at_ns: Ints, values: Ints, edges: Ints) -> list[int]:
    """Which of these is the highest of each stretch of time in which there is one."""
    first = np.searchsorted(at_ns, edges[:-1])
    last = np.append(first[1:], len(at_ns))
    return [
        begin + int(np.argmax(values[begin:end]))
        for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        if end > begin
    ]


def _reserved(told: Replay, at_ns: Ints) -> Ints:
    return told.reserved[np.searchsorted(told.reserved_at_ns, at_ns, side="right")]


def _markers(told: Replay, node_of_stack: Ints) -> Records:
    markers = empty("markers", len(told.oom_ns))
    markers["at_ns"], markers["value"], markers["kind"] = told.oom_ns, told.oom_bytes, _OUT_OF_MEMORY
    markers["node"] = np.where(told.oom_stack == NO_STACK, 0, node_of_stack[told.oom_stack])
    return markers


def _pairs(facts: list[tuple[int, int]]) -> Records:
    rows = empty("facts", len(facts))
    for number, (key, value) in enumerate(facts):
        rows[number] = (key, value)
    return rows


def _header(told: Replay, pieces: _Pieces, accounts: _Accounts, started_ns: int) -> dict[str, object]:
    live, blocks = accounts.live(len(told.at_ns))
    peak_bytes, peak_blocks, peak_ns = pieces.best
    kinds = [0] * len(KINDS)
    kinds[_DEVICE], kinds[_RESERVED] = live, int(told.reserved[-1])
    return header(
        started_unix_ns=started_ns, ended_ns=told.duration_ns, heartbeat_ns=told.duration_ns,
        epoch0_peak_bytes=peak_bytes, epoch0_peak_blocks=peak_blocks, epoch0_peak_ns=peak_ns,
        epoch0_slice_start_ns=told.duration_ns, live_bytes=live, live_blocks=blocks, slice_peak_bytes=live, slice_peak_blocks=blocks,
        slice_peak_ns=told.duration_ns, kind_live_bytes=kinds,
    )  # fmt: skip
