"""A device's history as the contents of a capture: the same tables that the engine writes, with memory of one kind.

All memory has the kind "device", and a thread stands for a stream of the device. The timeline also has the bytes that
the allocator reserved from the driver, as the kind "reserved". Resident memory is unknown. Each refused request has a
marker and an instant slice, as in a capture of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hiwater.capture.assemble import empty, header
from hiwater.capture.format import CODE_LABEL, CODE_PYTHON, CODE_THREAD, DEVICE_HISTORY, KINDS
from hiwater.capture.paths import Frame, Ints, sum_at
from hiwater.capture.reader import Contents
from hiwater.capture.references import Records
from hiwater.device_history.events import NO_STACK, DeviceHistory
from hiwater.device_history.replay import Replay, replay

BEFORE = Frame("[allocated before the history began]", "", 0)
UNKNOWN = Frame("[no stack was recorded]", "", 0)
_DEVICE, _RESERVED = KINDS.index("device"), KINDS.index("reserved")
_OUT_OF_MEMORY = 2
_MOST_SLICES = 512
_MOST_REFUSALS = 256  # with a slice of their own
_MOST_SAMPLES = 2048


def contents(
    path: Path, history: DeviceHistory, ended_unix_ns: int, facts: Mapping[str, str] | None = None
) -> Contents:
    """The capture of a history, under the name `path`. It gets `facts` in addition to those of the history.
    `ended_unix_ns` is when the history was saved; it is used only if the events have no times."""
    replayed = replay(history)
    texts, nodes = _Texts(), _Nodes()
    node_of_stack = _nodes_of_stacks(history, nodes)
    accounts = _Accounts(replayed, node_of_stack)
    slices = _slices(replayed, accounts)
    reserved = {} if history.reserved_bytes is None else {"reserved_peak_bytes": str(int(replayed.reserved.max()))}
    known = {
        "recorder": DEVICE_HISTORY, "device": history.device,
        "live_before_bytes": str(replayed.live_before if history.events else 0), "events": str(len(history.events)),
        "notes": "\n".join([*history.notes, *_notes(replayed)]), **reserved, **history.facts, **(facts or {}),
    }  # fmt: skip
    tables = {
        **accounts.tables(slices.peak_bytes, slices.peak_blocks), **slices.tables(), **nodes.tables(texts),
        "timeline": _timeline(replayed, accounts), "markers": _markers(replayed, node_of_stack),
        "facts": _pairs([(texts.number(key), texts.number(value)) for key, value in known.items()]),
    }  # fmt: skip
    tables |= texts.tables()
    tables |= {name: empty(name, 0) for name in ("processes", "process_samples", "scopes")}
    has_times = history.has_times and len(history.events) > 0
    started_ns = replayed.started_us * 1000 if has_times else ended_unix_ns - replayed.duration_ns
    return Contents(path, _header(replayed, slices, accounts, max(0, started_ns)), tables)


def _notes(replayed: Replay) -> list[str]:
    notes = []
    if replayed.unseen_frees:
        notes.append(f"{replayed.unseen_frees:,} blocks were freed at a time that the history does not show")
    if replayed.unmatched_ends:
        notes.append(
            f"{replayed.unmatched_ends:,} blocks that the history never frees are not among the live ones at its end"
        )
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
    """Call paths and the codes of their frames. Number 0 means none in both."""

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


def _nodes_of_stacks(history: DeviceHistory, nodes: _Nodes) -> Ints:
    """The node of every stack. The last element, index -1, is the node of the blocks from before the first event."""
    found = [nodes.path(thread, frames or (UNKNOWN,)) for thread, frames in history.stacks.paths]
    return np.array([*found, nodes.path("", (BEFORE,))], np.int64)


# The accounts: bytes and blocks of each stack


class _Accounts:
    """One account for each call path that ever had live bytes: the bytes at first, and their changes."""

    def __init__(self, replayed: Replay, node_of_stack: Ints) -> None:
        used, back = np.unique(
            node_of_stack[np.concatenate([replayed.stack_before, replayed.stack])], return_inverse=True
        )
        self.node = np.concatenate([[0], used])  # account 0 is nothing
        of_before, self.of_change = back[: len(replayed.stack_before)] + 1, back[len(replayed.stack_before) :] + 1
        self.bytes, self.blocks = replayed.bytes, replayed.blocks
        length = len(self.node)
        self.first_bytes = sum_at(length, of_before, replayed.bytes_before)
        self.first_blocks = sum_at(length, of_before, replayed.blocks_before)
        self.total_before = int(replayed.bytes_before.sum())
        self.running = self.total_before + np.cumsum(replayed.bytes)
        self.running_blocks = int(replayed.blocks_before.sum()) + np.cumsum(replayed.blocks)

    def live(self, place: int) -> tuple[int, int]:
        """Live bytes and blocks after the first `place` changes."""
        if place == 0:
            return self.total_before, int(self.first_blocks.sum())
        return int(self.running[place - 1]), int(self.running_blocks[place - 1])

    def apply(self, held: Ints, blocks: Ints, first: int, last: int) -> Ints:
        """Apply the changes from index `first` to `last` to the figures. Returns the indices of the accounts that
        changed."""
        touched, back = np.unique(self.of_change[first:last], return_inverse=True)
        held[touched] += sum_at(len(touched), back, self.bytes[first:last])
        blocks[touched] += sum_at(len(touched), back, self.blocks[first:last])
        return touched

    def tables(self, peak_bytes: Ints, peak_blocks: Ints) -> dict[str, Records]:
        length = len(self.node)
        accounts, peaks = empty("accounts", length), empty("account_peaks", length)
        grows = self.blocks > 0
        accounts["node"], accounts["kind"] = self.node, _DEVICE
        accounts["kind"][0] = 0
        accounts["live_bytes"] = self.first_bytes + sum_at(length, self.of_change, self.bytes)
        accounts["live_blocks"] = self.first_blocks + sum_at(length, self.of_change, self.blocks)
        accounts["total_bytes"] = self.first_bytes + sum_at(length, self.of_change[grows], self.bytes[grows])
        accounts["total_blocks"] = self.first_blocks + sum_at(length, self.of_change[grows], self.blocks[grows])
        peaks["peak_bytes"], peaks["peak_blocks"] = peak_bytes, peak_blocks
        return {"accounts": accounts, "account_peaks": peaks}


# Slices of time


@dataclass(slots=True)
class _Slices:
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


def _parts(replayed: Replay, most: int) -> int:
    """The number of parts of the time: at most `most`, and no more than there are changes."""
    return max(1, min(most, len(replayed.at_ns)))


def _intervals(replayed: Replay) -> Iterator[tuple[int, int, int, int]]:
    """(first change, change after the last, start, end) of each slice: equal intervals of time, split where memory
    was refused."""
    edges = np.linspace(0, replayed.duration_ns, _parts(replayed, _MOST_SLICES) + 1)[1:-1].astype(np.int64)
    cuts = [(int(place), int(at)) for place, at in zip(np.searchsorted(replayed.at_ns, edges), edges, strict=True)]
    refused = list(zip(replayed.oom_place.tolist(), replayed.oom_ns.tolist(), strict=True))[-_MOST_REFUSALS:]
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
    yield place, len(replayed.at_ns), at, replayed.duration_ns


def _slices(replayed: Replay, accounts: _Accounts) -> _Slices:
    """The slices, the figures of each account at the peak of each slice, and those at the highest peak."""
    length = len(accounts.node)
    held, blocks, done = accounts.first_bytes.copy(), accounts.first_blocks.copy(), 0
    listed, listed_blocks = np.zeros(length, np.int64), np.zeros(length, np.int64)
    slices = _Slices([], [], (-1, 0, 0), held, blocks)
    fresh, entries = np.arange(length), 0  # the accounts of the first blocks are listed once
    for first, last, start, end in _intervals(replayed):
        highest = first + int(np.argmax(np.concatenate([[accounts.live(first)[0]], accounts.running[first:last]])))
        touched = np.union1d(fresh, accounts.apply(held, blocks, done, highest))
        fresh, done = fresh[:0], highest
        changed = touched[(held[touched] != listed[touched]) | (blocks[touched] != listed_blocks[touched])]
        listed[changed], listed_blocks[changed] = held[changed], blocks[changed]
        slices.entries.append((changed, blocks[changed], held[changed]))
        peak_ns = max(start, int(replayed.at_ns[highest - 1])) if highest > first else start
        live = accounts.live(highest)
        slices.rows.append((start, end, peak_ns, *live, entries, len(changed)))
        entries += len(changed)
        if live[0] > slices.best[0]:
            slices.best = (*live, peak_ns)
            slices.peak_bytes, slices.peak_blocks = held.copy(), blocks.copy()
    return slices


# Time


def _timeline(replayed: Replay, accounts: _Accounts) -> Records:
    """Samples at the beginning, at the end, and in each interval at the peak of the live bytes and at the peak of
    the reserved bytes. Each sample has both figures."""
    edges = np.linspace(0, replayed.duration_ns, _parts(replayed, _MOST_SAMPLES) + 1).astype(np.int64)
    highest = [place + 1 for place in _highest(replayed.at_ns, accounts.running, edges)]
    at_highest = replayed.at_ns[np.array(highest, np.int64) - 1] if highest else replayed.at_ns[:0]
    of_reserved = np.array(_highest(replayed.reserved_at_ns, replayed.reserved[1:], edges), np.int64)
    also = np.setdiff1d(replayed.reserved_at_ns[of_reserved], [0, *at_highest, replayed.duration_ns])
    at = np.concatenate([[0], at_highest, also, [replayed.duration_ns]]).astype(np.int64)
    places = [0, *highest, *np.searchsorted(replayed.at_ns, also, side="right").tolist(), len(replayed.at_ns)]
    order = np.argsort(at, kind="stable")
    rows = empty("timeline", len(places))
    rows["at_ns"] = at[order]
    rows["live_bytes"][:, _DEVICE] = [accounts.live(places[number])[0] for number in order.tolist()]
    rows["live_bytes"][:, _RESERVED] = _reserved(replayed, at[order])
    return rows


def _highest(at_ns: Ints, values: Ints, edges: Ints) -> list[int]:
    """The index of the highest value of each interval between `edges` that has values."""
    first = np.searchsorted(at_ns, edges[:-1])
    last = np.append(first[1:], len(at_ns))
    return [
        begin + int(np.argmax(values[begin:end]))
        for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        if end > begin
    ]


def _reserved(replayed: Replay, at_ns: Ints) -> Ints:
    return replayed.reserved[np.searchsorted(replayed.reserved_at_ns, at_ns, side="right")]


def _markers(replayed: Replay, node_of_stack: Ints) -> Records:
    markers = empty("markers", len(replayed.oom_ns))
    markers["at_ns"], markers["value"], markers["kind"] = replayed.oom_ns, replayed.oom_bytes, _OUT_OF_MEMORY
    markers["node"] = np.where(replayed.oom_stack == NO_STACK, 0, node_of_stack[replayed.oom_stack])
    return markers


def _pairs(facts: list[tuple[int, int]]) -> Records:
    rows = empty("facts", len(facts))
    for number, (key, value) in enumerate(facts):
        rows[number] = (key, value)
    return rows


def _header(replayed: Replay, slices: _Slices, accounts: _Accounts, started_ns: int) -> dict[str, object]:
    live, blocks = accounts.live(len(replayed.at_ns))
    peak_bytes, peak_blocks, peak_ns = slices.best
    kinds = [0] * len(KINDS)
    kinds[_DEVICE], kinds[_RESERVED] = live, int(replayed.reserved[-1])
    return header(
        started_unix_ns=started_ns, ended_ns=replayed.duration_ns, heartbeat_ns=replayed.duration_ns,
        epoch0_peak_bytes=peak_bytes, epoch0_peak_blocks=peak_blocks, epoch0_peak_ns=peak_ns,
        epoch0_slice_start_ns=replayed.duration_ns, live_bytes=live, live_blocks=blocks, slice_peak_bytes=live,
        slice_peak_blocks=blocks, slice_peak_ns=replayed.duration_ns, kind_live_bytes=kinds,
    )  # fmt: skip
