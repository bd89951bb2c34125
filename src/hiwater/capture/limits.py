"""How near a recorded process was to what limited it, what it shared with others, and what is known of how it died."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from hiwater._os.cgroup_files import event_counts, is_events_file
from hiwater._os.process_identity import current_boot_id
from hiwater.capture import program
from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables
from hiwater.capture.timeline import known_column

NEAR = 0.9
"""The share of a limit from which a killed process is said to have been near it."""
_LITTLE_LEFT = 256 << 20  # of a machine's memory


@dataclass(frozen=True, slots=True)
class Pressure:
    """One moment: bytes, None where there is no such limit or it was not known. The cgroup's usage is that of all its
    processes.

    `shared_excess_bytes` is RSS minus PSS: what other processes count of the pages that this one shares with them. It
    and `private_bytes` are known for processes that were forked or have forked, as of the last reading before the
    moment, unless there was a fork since.
    """

    at_ns: int
    address_space_bytes: int | None
    address_space_limit: int | None
    cgroup_bytes: int | None
    cgroup_limit: int | None
    available_bytes: int | None
    shared_excess_bytes: int | None
    private_bytes: int | None


_FIELDS = [one.name for one in fields(Pressure)]


def read_pressure(tables: Tables) -> tuple[Pressure, ...]:
    """All moments at which limits were looked at; the last is from a moment before the end, however it came."""
    rows = tables.get("pressure")
    if rows is None:
        return ()
    return tuple(
        Pressure(at_ns, *(value if value >= 0 else None for value in values))
        for at_ns, *values in rows[_FIELDS].tolist()
    )


def read_shared_excess(tables: Tables) -> tuple[Ints, Ints, Ints]:
    """The times of the process's own readings, what other processes count of its anonymous memory, too, and its private
    bytes."""
    rows = tables.get("pressure")
    if rows is None:
        return (np.zeros(0, np.int64),) * 3
    # A record repeats the last reading until the next one.
    is_new = rows[["shared_excess_bytes", "private_bytes"]] != np.roll(
        rows[["shared_excess_bytes", "private_bytes"]], 1
    )
    is_new[:1] = True
    rows = rows[is_new & (rows["shared_excess_bytes"] >= 0)]
    excess = known_column(rows, "shared_excess_bytes") - known_column(rows, "mapped_excess_bytes")
    return rows["at_ns"].astype(np.int64), excess, known_column(rows, "private_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class SeenFromOutside:
    """Readings of a process by the one that began its run: int64 arrays with one element for each, ascending in
    time. `at_unix_ns` is wall clock time; `shared_excess_bytes` is RSS minus PSS of anonymous memory, `shared_bytes`
    are all pages that others have, too, `mapped_bytes` resident pages of files and of shared memory, and
    `mapped_excess_bytes` their RSS minus PSS."""

    at_unix_ns: Ints
    resident_bytes: Ints
    shared_excess_bytes: Ints
    shared_bytes: Ints
    mapped_bytes: Ints
    mapped_excess_bytes: Ints


def read_relatives(tables: Tables) -> dict[int, SeenFromOutside]:
    """By process number, the readings that this process took of all processes of its run, itself among them. Those
    of process 0 have what all of them copied since the last reading at most, of what they shared."""
    rows = tables.get("relatives")
    if rows is None:
        return {}
    started = min(tables.header["started_unix_ns"], 1 << 62)
    rows = rows[np.argsort(rows["pid"], kind="stable")]
    pids, begins = np.unique(rows["pid"], return_index=True)
    found = {}
    for pid, readings in zip(pids.tolist(), np.split(rows, begins[1:]), strict=False):
        at, resident, excess = (
            readings[name].astype(np.int64) for name in ("at_ns", "resident_bytes", "shared_excess_bytes")
        )
        shared, mapped, mapped_excess = (
            known_column(readings, name) for name in ("shared_bytes", "mapped_bytes", "mapped_excess_bytes")
        )
        at = started + np.minimum(at, 1 << 61)
        found[pid] = SeenFromOutside(at, resident, excess - mapped_excess, shared, mapped, mapped_excess)
    return found


def kills_since(tables: Tables) -> int:
    """How many processes of its cgroup the kernel's OOM killer has ended since the recording began; 0 where that is not
    known.

    The count is read now, so it says nothing after a restart of the machine, or once the group is gone.
    """
    path, before = tables.facts.get("cgroup_events"), tables.number("oom_kills")
    try:
        same_boot = current_boot_id() == tables.header["boot_id"].decode("ascii", "replace")
    except OSError:
        return 0
    if not path or before is None or not same_boot or not is_events_file(path):
        return 0
    return max(0, event_counts(path).get("oom_kill", 0) - before)


def suspects(tables: Tables) -> list[str]:
    """What a process that was killed may have died of, in words, the surest first; empty for one that was not
    killed, or by a signal that its capture names: the kernel's OOM killer leaves none."""
    moments = read_pressure(tables)
    last = moments[-1] if moments else None
    if program.ended(tables) != "killed" or program.ended_by(tables) or last is None:
        return []
    found = []
    kills = kills_since(tables)
    if kills:
        found.append(f"the kernel's OOM killer has ended processes of its cgroup since the recording began: {kills}")
    if last.cgroup_bytes is not None and last.cgroup_limit and last.cgroup_bytes >= NEAR * last.cgroup_limit:
        found.append("its cgroup was near its limit, where the kernel kills")
    if last.available_bytes is not None and last.available_bytes < _LITTLE_LEFT:
        found.append("the machine had little memory left, where the kernel kills")
    return found
