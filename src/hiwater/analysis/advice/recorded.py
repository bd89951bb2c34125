"""What the rules of advice read of a capture: the accounts by line of the user's own code, and lower bounds of
savings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hiwater.analysis.advice.finding import ALLOCATED, ALLOCATED_PEAK, Figure, Saving, Unit
from hiwater.analysis.call_tree import follow
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import Group, rows_of_paths
from hiwater.capture import Capture
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Frame, Ints, sum_at

Bools = npt.NDArray[np.bool_]
WORTH_TELLING = 1 << 20  # bytes
PART_OF_PEAK = 20  # a finding saves at least the peak divided by this
_CERTAIN = 2  # standard errors that a sampled figure is lowered by


class Recorded:
    """A capture as the rules see it. Arrays have one element for each account."""

    def __init__(self, capture: Capture) -> None:
        tables = capture.tables
        self.capture, self.tables = capture, tables
        self.node: Ints = tables.account_node
        accounts = tables["accounts"]
        self.total_bytes: Ints = accounts["total_bytes"].astype(np.int64)
        found = rows_of_paths(tables, self.node, self.total_bytes)
        self.never_touched = {
            node: count
            for node, count in found.untouched.items()
            if found.rows[found.untouched_row[node]][0] == Group.line
        }
        self.row, self.frames = found.row, [frame for _, frame in found.rows]
        self.library = np.array([*found.libraries], dtype=object)[found.library]
        is_mine = np.array([group == Group.line for group, _ in found.rows], bool)
        self.is_mine: Bools = is_mine[self.row] if len(self.row) else np.zeros(0, bool)
        self.total_blocks: Ints = accounts["total_blocks"].astype(np.int64)
        self.peak, self.end = capture.peak, capture.end
        self.is_sampled = capture.process.mode == "sampled"
        self._sources = Sources.of(tables)

    @property
    def exactness(self) -> str:
        return "sampled" if self.is_sampled else "exact"

    def figure(self, name: str, value: int, when: str, unit: Unit = "bytes") -> Figure:
        """A figure of what was allocated at a moment."""
        return Figure(name, value, unit, f"allocated, {when}, {self.exactness}")

    def is_kind(self, *names: str) -> Bools:
        """Whether an account is of one of these kinds of memory."""
        is_one: Bools = np.isin(self.tables.account_kind, [KINDS.index(name) for name in names])
        return is_one

    def rows(self, wanted: Bools, weight: Ints | None = None, least: int = 0) -> Iterator[tuple[Frame, Bools]]:
        """The user's own lines whose wanted accounts weigh at least `least`, each with these accounts. The weight is
        what they held at the peak, and the least an eightieth of it, if nothing is given: so there are few lines,
        however many the program has."""
        wanted = wanted & self.is_mine
        if weight is None:
            weight, least = self.peak.bytes, max(WORTH_TELLING, self.peak.allocated_bytes // PART_OF_PEAK) // 4
        held = sum_at(len(self.frames), self.row[wanted], weight[wanted])
        for row in np.flatnonzero(held >= max(1, least)).tolist():
            yield self.frames[row], wanted & (self.row == row)

    def at_peak(self, accounts: Bools) -> int:
        """What these accounts held at the peak, in bytes."""
        return int(self.peak.bytes[accounts].sum())

    def blocks_at(self, at_ns: int) -> Ints:
        """The blocks of each account at the peak of the slice of this time."""
        pieces = self.capture.slices
        piece = next((one for one in pieces if one.start_ns <= at_ns < one.end_ns), pieces[-1])
        return self.capture.of_slice(piece).blocks

    def surely(self, count: int, accounts: Bools) -> int:
        """These bytes of these accounts, lowered by two standard errors if they were sampled."""
        sampled = accounts & self.tables.account_is_sampled
        estimated = max(0, int(self.peak.bytes[sampled].sum()))
        return max(0, count - math.ceil(_CERTAIN * math.sqrt(self.tables.header["sample_bytes"] * estimated)))

    def saved_at_peak(self, accounts: Bools, part: float = 1.0) -> Saving:
        """What the allocated peak falls by without `part` of what these accounts hold. It falls no lower than the
        highest of the other moments: `least_bytes` is its distance to what is highest then, at the peaks of the
        recording's slices."""
        most = int(self.peak.bytes[accounts].sum() * part)
        pieces = self.capture.slices
        highest = 0
        for piece, held in zip(pieces, self._held_by_slice(accounts), strict=True):
            highest = max(highest, piece.peak_bytes - max(0, int((held - piece.unlisted_bytes) * part)))
        least = min(most, self.peak.allocated_bytes - highest)
        return Saving(self.surely(max(0, least), accounts), most, ALLOCATED_PEAK)

    def _held_by_slice(self, accounts: Bools) -> list[int]:
        """What these accounts held at the peak of each slice, the open one last."""
        slices, entries = self.tables["slices"], self.tables["slice_entries"]
        count = slices["entry_count"].astype(np.int64)
        first = slices["first_entry"].astype(np.int64)
        count = np.clip(count, 0, np.maximum(len(entries) - first, 0))  # the process may still write them
        place = np.repeat(first - np.concatenate(([0], np.cumsum(count)[:-1])), count) + np.arange(int(count.sum()))
        slice_of, account = np.repeat(np.arange(len(slices)), count), entries["account"][place].astype(np.int64)
        wanted = accounts[account]
        slice_of, account, held = slice_of[wanted], account[wanted], entries["bytes"][place][wanted].astype(np.int64)
        order = np.lexsort((slice_of, account))
        same = np.zeros(len(order), bool)
        same[1:] = account[order][1:] == account[order][:-1]
        before = np.where(same, np.concatenate(([0], held[order][:-1])), 0) if len(order) else held
        changes = sum_at(len(slices), slice_of[order], held[order] - before)
        return [*np.cumsum(changes).tolist(), int(self.capture.of_slice(self.capture.slices[-1]).bytes[accounts].sum())]

    def through(self, is_wanted: Callable[[str, str], bool]) -> Bools:
        """Whether the call path of an account goes through a function for whose file and name `is_wanted` is true."""
        codes, parent = self.tables["codes"], self.tables.paths.parent
        is_code = [
            is_wanted(self.tables.string(file), self.tables.string(function))
            for file, function in zip(codes["file"].tolist(), codes["function"].tolist(), strict=True)
        ]
        is_at = np.array(is_code, bool)[self.tables["nodes"]["code"].astype(np.int64)]
        inside: Bools = is_at[follow(np.where(is_at, np.arange(len(parent)), parent))][self.node]
        return inside

    def least_worth(self, measures: str) -> int:
        """The smallest saving that is worth telling: 1 MiB, and 5 % of the peak of what is measured."""
        is_allocated = measures in (ALLOCATED, ALLOCATED_PEAK)
        peak = self.peak.allocated_bytes if is_allocated else self.capture.resident.program_peak_bytes
        return max(WORTH_TELLING, peak // PART_OF_PEAK)

    def source_line(self, frame: Frame) -> str:
        """The text of a frame's line; "" where it is unknown, or newer than the recording."""
        text = self._sources.line(frame.file, frame.line)
        return "" if frame.file in self._sources.changed else text

    @cached_property
    def counted(self) -> Bools:
        """Whether an account is of memory that counts as allocated."""
        counted: Bools = is_counted(self.tables.account_kind)
        return counted
