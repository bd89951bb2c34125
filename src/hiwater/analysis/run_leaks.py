"""The leaks of a run: each process is tested by itself, and what grows at one line in several of them, as in the
workers of a pool, is one leak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hiwater.analysis.growth import LEVEL, snapshots_by_name
from hiwater.analysis.leaks import Leak, ProcessLeaks, leaks_of_process
from hiwater.analysis.suppressions import Suppression
from hiwater.analysis.type_growth import TypeLeak
from hiwater.capture import Run
from hiwater.errors import BadRequest

_MOST_ROWS = 1000

_Found = TypeVar("_Found", Leak, TypeLeak)


@dataclass(frozen=True, slots=True)
class Leaks:
    """The result for the moments called `name`.

    `processes` are those that have snapshots of it; `untested` is the number of the others: without a snapshot, a
    capture, or a recording. `rows` are leaks, largest growth first; `suppressed` would be leaks, but for a suppression.
    `by_type` are types whose objects leak on call paths that do not show it one by one.
    """

    name: str
    processes: Sequence[ProcessLeaks]
    untested: int
    rows: Sequence[Leak]
    suppressed: Sequence[Leak]
    by_type: Sequence[TypeLeak]

    @property
    def has_found(self) -> bool:
        """Whether anything leaks."""
        return bool(self.rows or self.by_type)

    @property
    def longest(self) -> ProcessLeaks:
        """The process of which most snapshots were tested."""
        return max(self.processes, key=lambda one: one.tested_snapshots)

    @property
    def can_tell(self) -> bool:
        """False if most of the snapshots are of processes with too few for any leak to be significant, such as
        workers that are replaced often."""
        told = sum(one.tested_snapshots for one in self.processes if one.can_tell)
        return 2 * told >= sum(one.tested_snapshots for one in self.processes)

    @property
    def detectable_bytes(self) -> int:
        """The smallest growth for each moment that would have been found in each process of which anything can be
        told, if there is one."""
        told = [one for one in self.processes if one.can_tell]
        return max(one.detectable_bytes for one in told or self.processes)


def find_leaks(run: Run, *, name: str | None = None, suppressions: Sequence[Suppression] = ()) -> Leaks:
    """Test the call paths of all processes between the markers or phases called `name`; without a name, those of which
    the run has most.

    Raises BadRequest if the run has none, or none of that name.
    """
    counts = Counter[str]()
    for capture in run.captures:
        counts.update(snapshots_by_name(capture.tables))
    if not counts:
        raise BadRequest(
            "the capture has no markers or phases between which memory could grow",
            "call `hiwater.mark('name')` or use `hiwater.phase('name')` where one unit of work ends, record with"
            " `--snapshot-every 10s`, or run `hiwater leaks --repeat 30 FILE.py:FUNCTION`",
        )
    if name is not None and name not in counts:
        raise BadRequest(f"the capture has no marker or phase {name!r}", f"choose one of {', '.join(sorted(counts))}")
    name = name if name is not None else max(counts, key=counts.__getitem__)
    level = LEVEL / len(run.captures)
    tested = (leaks_of_process(capture, name, level, suppressions) for capture in run.captures)
    processes = [one for one in tested if one is not None]
    others = len(run.captures) - len(processes) + len(run.short) + len(run.unrecorded) + len(run.unreadable)
    rows = _joined((row for one in processes for row in one.rows), lambda row: (row.frame, row.suppression), _leak)
    return Leaks(
        name=name,
        processes=processes,
        untested=others,
        rows=[row for row in rows if row.suppression is None][:_MOST_ROWS],
        suppressed=[row for row in rows if row.suppression is not None][:_MOST_ROWS],
        by_type=_joined((row for one in processes for row in one.by_type), lambda row: row.type_name, _type_leak),
    )


def _joined(
    rows: Iterable[_Found], key: Callable[[_Found], Hashable], join: Callable[[Sequence[_Found]], _Found]
) -> list[_Found]:
    """The rows of all processes, those with one key as one, largest growth first."""
    alike: dict[Hashable, list[_Found]] = {}
    for row in sorted(rows, key=lambda row: -row.bytes_per_moment):
        alike.setdefault(key(row), []).append(row)
    return sorted(map(join, alike.values()), key=lambda row: -row.bytes_per_moment * len(row.pids))


def _leak(rows: Sequence[Leak]) -> Leak:
    return replace(
        _with_sums(rows),
        live_blocks=sum(row.live_blocks for row in rows),
        paths=max(row.paths for row in rows),
        kinds=tuple(sorted({kind for row in rows for kind in row.kinds})),
        types=tuple(dict.fromkeys(name for row in rows for name in row.types)),
        headers=tuple(dict.fromkeys(frame for row in rows for frame in row.headers)),
    )


def _type_leak(rows: Sequence[TypeLeak]) -> TypeLeak:
    return replace(_with_sums(rows), line_count=max(row.line_count for row in rows))


def _with_sums(rows: Sequence[_Found]) -> _Found:
    """The first row, which grows most, with the figures of all."""
    return replace(
        rows[0],
        pids=tuple(pid for row in rows for pid in row.pids),
        bytes_per_moment=sum(row.bytes_per_moment for row in rows) / len(rows),
        lower_bytes_per_moment=sum(row.lower_bytes_per_moment for row in rows) / len(rows),
        live_bytes=sum(row.live_bytes for row in rows),
        grown_bytes=sum(row.grown_bytes for row in rows),
        oldest=min(row.oldest for row in rows),
        p=min(row.p for row in rows),
    )
