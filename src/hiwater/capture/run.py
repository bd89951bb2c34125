"""A run: the captures of all its processes, and what is known of processes without a capture."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hiwater.capture import run_files, run_index
from hiwater.capture.at_once import Machine, machines
from hiwater.capture.in_memory import TablesInMemory
from hiwater.capture.model import Capture
from hiwater.capture.process import QUIET_IN_CHILD_NS, is_being_written, is_waiting_child
from hiwater.capture.run_index import Row, ShortProcess, Unrecorded
from hiwater.capture.tracks import seen_from_outside


@dataclass(frozen=True)
class Run:
    """The processes of one run or of several. `hiwater.open_run()` makes it."""

    captures: Sequence[Capture]
    """The main process first, then its children in the order of their starts."""
    short: Sequence[ShortProcess] = ()
    """Children of which only figures are left: short ones, whose captures became a row each."""
    unrecorded: Sequence[Unrecorded] = ()
    """Python processes that were started and not recorded."""
    signals: Mapping[int, int] = field(default_factory=dict)
    """By process number, the signal that ended a process, if its parent learned it."""
    unreadable: Sequence[str] = ()
    """For each capture in a run's folder that cannot be read: its path and why."""

    @cached_property
    def is_of_several(self) -> bool:
        """Whether there is more to tell of than one process."""
        return len(self.captures) + len(self.short) + len(self.unrecorded) + len(self.unreadable) > 1

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The machines on which the processes ran, each with the highest sums of its processes at one instant. None
        of captures of devices."""
        return () if any(capture.device for capture in self.captures) else machines(self.captures, self.short)

    @property
    def highest(self) -> Machine | None:
        """The machine with the highest sum of allocated bytes; None where there is no such sum."""
        return max(self.machines, key=lambda one: one.allocated.bytes if one.allocated else -1, default=None)


def read_run(*paths: str | os.PathLike[str]) -> Run:
    """All processes of the runs at `paths`. Raises what `hiwater.open()` raises."""
    in_memory = TablesInMemory()
    found = [run_files.read_files(path, in_memory) for path in paths]
    return of_captures(
        [one for files in found for one in files.captures],
        [row for files in found for row in files.rows],
        [problem for files in found for problem in files.unreadable],
    )


def _missed(one: Capture, captures: Sequence[Capture], last_sign: int) -> list[int]:
    """When others were read after its last sign of life, and it was not."""
    pid, boot = one.process.pid, one.header["boot_id"]
    found = []
    for reader in captures:
        own = reader.relatives.get(reader.process.pid)
        if own is not None and reader.header["boot_id"] == boot:
            seen = reader.relatives[pid].at_unix_ns[-1] if pid in reader.relatives else 0
            found += own.at_unix_ns[own.at_unix_ns > max(last_sign, seen)].tolist()
    return sorted(found)


def _note_resident(captures: Sequence[Capture]) -> None:
    """Processes that were killed between two readings of their own, as others read them."""
    if not any(one.died_unread for one in captures):
        return
    for one, seen in zip(captures, seen_from_outside(captures), strict=True):
        if one.died_unread and len(seen.at_ns):
            one.note_resident(int(seen.resident_bytes.max()))


def of_captures(captures: Sequence[Capture], rows: Sequence[Row], unreadable: Sequence[str] = ()) -> Run:
    """The run of these captures, with the rows of its index."""
    deaths, now = run_index.deaths(captures, rows), time.time_ns()
    for place, one in enumerate(captures):
        if place in deaths and not one.header["ended_ns"]:
            waits = is_waiting_child(one.header, one.facts.get("started_by", ""))  # and gives no sign of life
            last_sign = one.process.started_unix_ns + one.process.duration_ns
            known = min([deaths[place][0], *_missed(one, captures, last_sign)[:1]])
            one.note_life(known if waits else min(known, last_sign + QUIET_IN_CHILD_NS))
        elif is_being_written(one.header) and not one.header.get("snapshot_ns"):
            one.note_life(now)
    _note_resident(captures)
    return Run(
        captures,
        run_index.short_processes(captures, rows),
        run_index.unrecorded(captures, rows),
        {captures[place].header["pid"]: signal for place, (_, signal) in deaths.items()},
        unreadable,
    )
