"""All processes of a machine at one instant, as one capture: each process stands where a capture of one process has a
thread.

Nothing here adds up peaks. The stacks of a process are those of the slice of time around the instant, at the slice's
highest moment. Where the process held less at the instant, each of them counts for a part that is as much smaller: so
the lines add up to the sum that is shown beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from hiwater._os.ownership import LIBRARY
from hiwater.analysis import sums
from hiwater.analysis.call_tree import follow
from hiwater.capture import Capture, Slice, Snapshot
from hiwater.capture.assemble import empty, header
from hiwater.capture.at_once import Machine
from hiwater.capture.format import CODE_THREAD, KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Ints, sum_at
from hiwater.capture.reader import Contents
from hiwater.capture.tables import Tables
from hiwater.capture.untouched import never_touched

MOST_PROCESSES = 64
MOST_NODES = 1 << 18
"""Of more call paths, those that hold least are counted at their callers. A job of a thousand processes whose stacks
have nothing in common has more."""
_NAME = "all processes"
_PROCESSES = "processes"  # the fact that only these captures have
_CODE = np.dtype([("function", "<u4"), ("file", "<u4"), ("first_line", "<u4"), ("kind", "<u2"), ("owner", "<u2")])
_NOTHING_OF = ("strings", "string_bytes", "facts", "slices", "slice_entries", "timeline", "markers")
_LONGEST_PROGRAM = 60
_at_highest = WeakKeyDictionary[Machine, Capture | None]()  # a page needs it twice


def at_highest(machine: Machine) -> Capture | None:
    """The processes that ran at the instant of the highest sum of allocated bytes, as one capture; None if none of
    them held anything."""
    if machine not in _at_highest:
        instant = machine.allocated
        _at_highest[machine] = None if instant is None else at_instant(machine, instant.at_unix_ns)
    return _at_highest[machine]


def at_instant(machine: Machine, at_unix_ns: int) -> Capture | None:
    """The processes that ran at this instant, as one capture; None if none of them held anything. Beyond
    MOST_PROCESSES, the smallest processes stand together."""
    instant = np.array([at_unix_ns], np.int64)
    held = [(capture, int(track.lasting().at(instant)[0])) for capture, track in machine.allocated_tracks]
    held = sorted(((capture, count) for capture, count in held if count > 0), key=lambda pair: -pair[1])
    joined = _Joined()
    rest = f"{len(held) - MOST_PROCESSES:,} smaller processes"
    for place, (capture, count) in enumerate(held):
        piece = capture.of_slice(_slice(capture, at_unix_ns))
        joined.add(process_name(capture) if place < MOST_PROCESSES else rest, piece, count)
    return joined.capture([capture for capture, _ in held], at_unix_ns) if joined.accounts else None


def is_of_several(capture: Capture) -> bool:
    """Whether `at_instant` made it: it has the memory of several processes, and nothing that was freed before."""
    return _PROCESSES in capture.facts


def process_name(capture: Capture) -> str:
    """The process in a few words: its number and its program."""
    argv = [
        argument.rsplit("/", 1)[-1] if place == 0 else argument for place, argument in enumerate(capture.process.argv)
    ]
    return f"{capture.process.pid} {capture.facts.get('program') or ' '.join(argv)}"[:_LONGEST_PROGRAM].strip()


def _slice(capture: Capture, at_unix_ns: int) -> Slice:
    """The slice of a process's time around the instant."""
    at_ns = at_unix_ns - capture.process.started_unix_ns
    return next((one for one in reversed(capture.slices) if one.start_ns <= at_ns), capture.slices[0])


class _Joined:
    """The tables of the joined capture, while they grow."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._codes: dict[tuple[int, int, int, int, int], int] = {(0, 0, 0, 0, 0): 0}
        self._nodes: list[tuple[Ints, Ints, Ints]] = [(np.zeros(1, np.int64),) * 3]  # parent, code, line
        self._count = 1
        self.accounts: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []  # node, kind, sampled, bytes, blocks
        self._untouched: dict[int, int] = {}  # node, bytes

    def add(self, name: str, snapshot: Snapshot, most: int) -> None:
        """A process with all stacks that held something, together at most `most` bytes."""
        tables = snapshot.tables
        held = np.flatnonzero(is_counted(tables.account_kind) & (snapshot.bytes > 0))
        if not len(held):
            return
        part = min(1.0, most / int(snapshot.bytes[held].sum()))
        root = self._root(name)
        number = np.zeros(len(tables["nodes"]), np.int64)
        kept = _with_callers(tables, tables.account_node[held])
        is_thread = tables.paths.is_thread[kept]
        number[kept[is_thread]] = root
        frames = kept[~is_thread]
        number[frames] = self._count + np.arange(len(frames))
        nodes = tables["nodes"][frames]
        above = number[nodes["parent"].astype(np.int64)]
        self._append(
            np.where(above == 0, root, above), self._code_numbers(tables, nodes["code"]), nodes["line"].astype(np.int64)
        )
        node = number[tables.account_node[held]]
        self.accounts.append((
            np.where(node == 0, root, node), tables.account_kind[held],
            tables.account_is_sampled[held].astype(np.int64),
            _reduced(snapshot.bytes[held], part), _reduced(snapshot.blocks[held], part),
        ))  # fmt: skip
        never = never_touched(tables)
        self._add_untouched((int(number[node]), int(never[node] * part)) for node in never if number[node])
        if self._count > 2 * MOST_NODES:
            self._unite()

    def _add_untouched(self, found: Iterable[tuple[int, int]]) -> None:
        for node, count in found:
            self._untouched[node] = self._untouched.get(node, 0) + count

    def _unite(self) -> None:
        """Have each call path and each account once, and at most MOST_NODES call paths."""
        parent, code, line, same = _united_nodes(*(np.concatenate(column) for column in zip(*self._nodes, strict=True)))
        node, kind, sampled, held, blocks = (np.concatenate(column) for column in zip(*self.accounts, strict=True))
        if len(parent) > MOST_NODES:
            kept, place = _largest(parent, sum_at(len(parent), same[node], held))
            parent, code, line, same = place[parent[kept]], code[kept], line[kept], place[same]
        self._nodes, self._count = [(parent, code, line)], len(parent)
        what, back = np.unique((same[node] * len(KINDS) + kind) * 2 + sampled, return_inverse=True)
        place = what // 2
        self.accounts = [(
            place // len(KINDS), place % len(KINDS), what % 2,
            sum_at(len(what), back, held), sum_at(len(what), back, blocks),
        )]  # fmt: skip
        apart, self._untouched = self._untouched, {}
        self._add_untouched((int(same[node]), count) for node, count in apart.items())

    def _root(self, name: str) -> int:
        code = self._code(self._string(name), 0, 0, CODE_THREAD, LIBRARY)
        self._append(*(np.array([value], np.int64) for value in (0, code, 0)))
        return self._count - 1

    def _append(self, parent: Ints, code: Ints, line: Ints) -> None:
        self._nodes.append((parent, code, line))
        self._count += len(parent)

    def _code_numbers(self, tables: Tables, codes: npt.NDArray[np.uint32]) -> Ints:
        distinct, back = np.unique(codes, return_inverse=True)
        rows = tables["codes"][distinct][["function", "file", "first_line", "kind"]].tolist()
        texts = dict.fromkeys(number for row in rows for number in row[:2])
        string = {number: self._string(tables.string(number)) for number in texts}
        owners = tables.code_owner[distinct].tolist()
        numbers = [
            self._code(string[function], string[file], line, kind, owner)
            for (function, file, line, kind), owner in zip(rows, owners, strict=True)
        ]
        return np.array(numbers, np.int64)[back]

    def _code(self, *what: int) -> int:
        function, file, line, kind, owner = what
        return self._codes.setdefault((function, file, line, kind, owner), len(self._codes))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def capture(self, captures: Sequence[Capture], at_unix_ns: int) -> Capture:
        """The joined capture: it lasts as long as the processes, and its peak is the instant."""
        start = min(capture.process.started_unix_ns for capture in captures)
        lasted = max(capture.process.started_unix_ns + capture.process.duration_ns for capture in captures) - start
        self._unite()
        ((parent, code, line),) = self._nodes
        ((node, kind, sampled, held, blocks),) = self.accounts
        nodes, accounts = empty("nodes", len(parent)), empty("accounts", len(node))
        nodes["parent"], nodes["code"], nodes["line"] = parent, code, line
        accounts["node"], accounts["kind"], accounts["sampled"] = node, kind, sampled
        accounts["live_bytes"] = accounts["total_bytes"] = held
        accounts["live_blocks"] = accounts["total_blocks"] = blocks
        facts = {name: captures[0].facts.get(name, "") for name in ("cwd", "host", "python", "hiwater")}
        facts |= {"program": _NAME, _PROCESSES: str(len(captures))}
        whole = header(
            started_unix_ns=start, ended_ns=max(1, lasted), heartbeat_ns=lasted, boot_id=captures[0].header["boot_id"],
            sample_bytes=max(capture.process.sample_bytes for capture in captures),
        )  # fmt: skip
        records = {"nodes": nodes, "codes": np.array([*self._codes], _CODE), "accounts": accounts}
        records["account_peaks"] = empty("account_peaks", len(node))
        records |= {name: empty(name, 0) for name in _NOTHING_OF}
        tables = Tables(Contents(Path(_NAME), whole, records), strings=[*self._strings], facts=facts.items())
        tables.untouched = self._untouched
        found, at_ns = Capture(tables), at_unix_ns - start
        total, count = int(held.sum()), int(blocks.sum())
        found.peak = Snapshot(tables, "peak", at_ns, at_ns, at_ns, held, blocks, total, count)
        found.end = replace(found.peak, name="end")
        return found


def _reduced(counts: Ints, part: float) -> Ints:
    """This part of each count; together they are this part of the sum."""
    return counts if part == 1 else np.diff(np.rint(np.cumsum(counts) * part).astype(np.int64), prepend=0)


def _united_nodes(parent: Ints, code: Ints, line: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The columns of the nodes with each call path once, and for each node its number among these."""
    depth = np.zeros(len(parent), np.int64)
    ancestor = parent
    same = np.zeros(len(parent), np.int64)
    while len(below := np.flatnonzero(ancestor)):
        depth[below] += 1
        ancestor = np.where(ancestor == 0, 0, parent[ancestor])
    first = [np.zeros(1, np.int64)]
    count = 1
    order = np.argsort(depth[1:], kind="stable") + 1
    frames, frame = np.unique((code << 32) | line, return_inverse=True)
    for level in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        keys = same[parent[level]] * len(frames) + frame[level]
        _, place, back = np.unique(keys, return_index=True, return_inverse=True)
        same[level] = count + back
        first.append(level[place])
        count += len(place)
    kept = np.concatenate(first)
    return same[parent[kept]], code[kept], line[kept], same


def _largest(parent: Ints, held: Ints) -> tuple[Ints, Ints]:
    """The MOST_NODES nodes that hold most with all that they called, and for each node the place among these of the
    nearest one at or above it."""
    whole = sums.sum_upwards(parent, held)
    # Of equal ones the callers, which come first.
    kept = np.sort(np.lexsort((np.arange(len(parent)), -whole))[:MOST_NODES])
    is_kept = np.zeros(len(parent), bool)
    is_kept[kept] = True
    nearest = follow(np.where(is_kept, np.arange(len(parent)), parent))
    return kept, np.searchsorted(kept, nearest)


def _with_callers(tables: Tables, nodes: Ints) -> Ints:
    """These nodes and all nodes that they are below, ascending."""
    parent = tables["nodes"]["parent"].astype(np.int64)
    is_kept = np.zeros(len(parent), bool)
    while len(nodes := np.unique(nodes[~is_kept[nodes] & (nodes != 0)])):
        is_kept[nodes] = True
        nodes = parent[nodes]
    return np.flatnonzero(is_kept)
