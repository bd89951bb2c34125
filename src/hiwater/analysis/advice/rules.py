"""The rules of advice: columns of pandas with one Python object for each value; memory that was allocated and never
written to; and resident memory that no live object needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hiwater.analysis.advice.finding import ALLOCATED, PRIVATE, RESIDENT_END, Figure, Finding, Rule, Saving
from hiwater.analysis.advice.recorded import Bools, Recorded
from hiwater.capture import ResidencySnapshot
from hiwater.capture.paths import Frame, sum_at

_MANY, _SMALL_BYTES = 50_000, 256
_MAKERS = ("pandas/io/parsers/", "pandas/core/dtypes/astype.py", "pandas/core/arrays/string_.py")
_OTHERWISE = ("category", "pyarrow", "Categorical")
_EACH = 24
"""What each object needs beside its value, in bytes: at least 16 of header, and a pointer of 8 in the column."""


def object_columns(recorded: Recorded) -> Iterator[Finding]:
    """A line with very many small objects that pandas' parsers, or its conversion to text, made."""
    made = recorded.is_kind("python") & recorded.through(lambda file, _: any(part in file for part in _MAKERS))
    for frame, accounts in recorded.rows(made):
        held = recorded.at_peak(accounts)
        blocks = int(np.maximum(recorded.peak.blocks[accounts], 0).sum())
        said = recorded.source_line(frame)
        if blocks < _MANY or held > blocks * _SMALL_BYTES or any(word in said for word in _OTHERWISE):
            continue
        evidence = (
            recorded.figure("Python objects of a column", held, "at the peak"),
            recorded.figure("in", blocks, "at the peak", "blocks"),
        )
        bound = recorded.saved_at_peak(accounts, min(1.0, blocks * _EACH / max(1, held)))
        saving = Saving(bound.least_bytes, held, bound.measures)
        yield Finding(
            Rule.object_column, frame, evidence, saving,
            "Keep the values as numbers or dates if they are; otherwise read them with pyarrow as dtype"
            " string[pyarrow]. Where few values repeat, dtype category saves more.",
        )  # fmt: skip


_MANY_TIMES = 16  # so often a container was allocated anew while it grew
# Whose blocks have the size that the line asked for; buffers inside other libraries are their own affair.
_ASKED_FOR = ("", "numpy")
_CONDITION = "Leave it if the program reads the zeros there, or needs the room at other times: it takes no RAM."
_MEASURED = "allocated and in no residency snapshot in RAM, exact to a page"


def untouched(recorded: Recorded) -> Iterator[Finding]:
    """A line whose large blocks were never wholly in RAM. A container that grew step by step has a rule of its own."""
    if not recorded.never_touched or recorded.capture.process.ended != "exit":
        return
    is_asked_for = np.isin(recorded.library, _ASKED_FOR)
    for frame, accounts in recorded.rows(recorded.counted & is_asked_for):
        unused = _never_touched(recorded, accounts)
        if not unused:
            continue
        held = recorded.at_peak(accounts)
        has_grown = _has_grown(recorded, accounts)
        evidence = (
            recorded.figure("capacity" if has_grown else "allocated", held, "at the peak"),
            Figure("never touched", unused, "bytes", _MEASURED),
        )
        bound = recorded.saved_at_peak(accounts, min(1.0, unused / max(1, held)))
        saving = Saving(min(unused, bound.least_bytes), unused, ALLOCATED)
        if has_grown:
            change = "Give the container its final size from the start, or build it from an iterator of known length."
            yield Finding(Rule.over_allocated, frame, evidence, saving, change)
        else:
            yield Finding(Rule.untouched, frame, evidence, saving, "Allocate only what is used.", _CONDITION)


def _never_touched(recorded: Recorded, accounts: Bools) -> int:
    """The bytes of these accounts that no residency snapshot saw in RAM, of blocks that are live at the end: the
    snapshot there has seen them after the program's last write."""
    held = np.minimum(recorded.peak.bytes, recorded.end.bytes)
    nodes = set(recorded.node[accounts].tolist())
    return sum(
        min(unused, max(0, int(held[accounts & (recorded.node == node)].sum())))
        for node, unused in recorded.never_touched.items()
        if node in nodes
    )


def _has_grown(recorded: Recorded, accounts: Bools) -> bool:
    """Whether these are containers of Python's that were allocated anew again and again, each time larger."""
    grown = accounts & (recorded.library == "") & recorded.is_kind("python")
    grown &= recorded.total_blocks >= _MANY_TIMES * np.maximum(recorded.peak.blocks, 1)
    grown &= recorded.total_bytes >= 3 * recorded.peak.bytes
    return recorded.at_peak(grown) * 2 > recorded.at_peak(accounts)


_SMALL_OBJECT, _SMALL_BLOCK = 512, 128 << 10  # the largest of pymalloc's, and of those that malloc keeps in its heaps
_ARENA, _POOLS = 1 << 20, 32 * (16 << 10)  # one arena, and one pool of each of the 32 sizes
_PINNED = 2 * 4096  # the pages that one block of less than a page keeps in RAM
_OTHER_PRIVATE = 4 << 20  # stacks, and pages of libraries that were relocated
_IN_RAM = "resident, in the residency snapshot at the end"


def arenas(recorded: Recorded) -> Iterator[Finding]:
    """Arenas at the end with more slack than objects: one live object keeps an arena of 1 MiB."""
    snapshot = _at_end(recorded)
    if snapshot is None:
        return
    parts = _parts(snapshot)
    live, slack = parts.get("Python objects, live", 0), parts.get("Python's arenas, slack", 0)
    objects = recorded.is_kind("python") & (recorded.peak.bytes <= recorded.peak.blocks * _SMALL_OBJECT)
    fallen = _most_fallen(recorded, objects, slack)
    if slack <= live or fallen is None:
        return
    frame, freed = fallen
    evidence = (
        Figure("arenas without objects", slack, "bytes", _IN_RAM),
        Figure("live objects in the arenas", live, "bytes", _IN_RAM),
        recorded.figure("objects of this line that were freed", freed, "from the peak to the end"),
    )
    # Objects never fill arenas: the one in use, one more that is kept for the next, and the ends of pools.
    saving = Saving(max(0, slack - 2 * _ARENA - _POOLS - live // 4), slack, RESIDENT_END)
    yield Finding(
        Rule.arenas, frame, evidence, saving,
        "Do the temporary work in a child process, or create what stays before what this line creates: an arena goes"
        " back to the system only when no object is left in it.",
        "Where only the interpreter's free lists keep the arenas, as after many floats or tuples, the child process is"
        " what helps.",
    )  # fmt: skip


def malloc_trim(recorded: Recorded) -> Iterator[Finding]:
    """Free memory inside the heaps of the C library at the end, around blocks that are live."""
    snapshot = _at_end(recorded)
    if snapshot is None or "allocator" in recorded.capture.facts:
        return
    slack = _parts(snapshot).get("malloc, slack", 0)
    fallen = _most_fallen(recorded, _in_heaps(recorded), slack)
    if fallen is None:
        return
    frame, freed = fallen
    evidence = (
        Figure("free memory in malloc's heaps", slack, "bytes", _IN_RAM),
        recorded.figure("blocks of this line that were freed", freed, "from the peak to the end"),
    )
    saving = Saving(max(0, slack - _pinned(recorded)), slack, RESIDENT_END)
    yield Finding(
        Rule.malloc_trim, frame, evidence, saving,
        'Call ctypes.CDLL("libc.so.6").malloc_trim(0) after the blocks of this line were freed: it gives whole free'
        " pages back to the system.",
    )  # fmt: skip


def forked(recorded: Recorded) -> Iterator[Finding]:
    """A forked child that wrote to the pages of objects that it inherited: to change a reference count or what the
    collector keeps there is a write."""
    capture, snapshot = recorded.capture, _at_end(recorded)
    known = [moment.private_bytes for moment in capture.pressure if moment.private_bytes is not None]
    if capture.process.started_by != "fork" or snapshot is None or not known:
        return
    parts, private = _parts(snapshot), known[-1]
    pools = parts.get("Python objects, live", 0) + parts.get("Python's arenas, slack", 0)
    shared = max(0, snapshot.resident_bytes - private)
    own = recorded.at_peak(recorded.is_kind("python"))
    # All that is shared might be objects: what is more than that, and not the child's own, is surely inherited and
    # private.
    least = min(pools - shared - own, private - own - capture.resident.overhead_end_bytes) - _OTHER_PRIVATE
    frame = _busiest(recorded)
    if least <= 0 or frame is None:
        return
    collections = sum(marker.value for marker in capture.markers if marker.kind == "gc")
    evidence = (
        Figure("private memory of this child", private, "bytes", "resident and private, last reading before the end"),
        recorded.figure("Python objects that it allocated itself", own, "at its peak"),
        Figure("arenas of Python objects, inherited ones too", pools, "bytes", _IN_RAM),
        Figure("full garbage collections in this child", collections, "collections", "counted"),
    )
    change = "Keep what children read in arrays or other buffers: reading an object writes its reference count."
    if collections:
        change = f"Call gc.freeze() before the fork, so that collections leave inherited objects alone. {change}"
    yield Finding(Rule.forked, frame, evidence, Saving(least, min(pools, private), PRIVATE), change)


def _parts(snapshot: ResidencySnapshot) -> dict[str, int]:
    return {part.name: part.resident_bytes for part in snapshot.parts}


def _at_end(recorded: Recorded) -> ResidencySnapshot | None:
    """The residency snapshot that was taken when the recording ended; None where the process was killed or still
    runs."""
    snapshots = recorded.capture.residency_snapshots
    return snapshots[-1] if snapshots and recorded.capture.process.ended == "exit" else None


def _most_fallen(recorded: Recorded, wanted: Bools, slack: int) -> tuple[Frame, int] | None:
    """The user's own line whose blocks fell most from the peak to the end, and by how much. None where it is less
    than half of the slack: then other lines are the reason."""
    fallen = np.maximum(recorded.peak.bytes - np.maximum(recorded.end.bytes, 0), 0)
    found = [
        (frame, int(fallen[accounts].sum()))
        for frame, accounts in recorded.rows(wanted, fallen, max(_ARENA, slack) // 2)
    ]
    return max(found, key=lambda one: one[1], default=None)


def _in_heaps(recorded: Recorded) -> Bools:
    """Whether the blocks of an account are of a size that malloc keeps in its heaps."""
    held, blocks = recorded.total_bytes, np.maximum(recorded.total_blocks, 1)
    is_large_object: Bools = recorded.is_kind("python") & (held > blocks * _SMALL_OBJECT)
    return (recorded.is_kind("native") | is_large_object) & (held <= blocks * _SMALL_BLOCK)


def _pinned(recorded: Recorded) -> int:
    """The most that live blocks keep malloc_trim() from giving back: two pages for each block, and the slack that
    was there before the heaps grew, in the first residency snapshot, in the place of the blocks of that time."""
    heaps = _in_heaps(recorded)
    before = recorded.capture.residency_snapshots[0]
    at_first = recorded.blocks_at(before.at_ns)
    later = np.maximum(recorded.end.blocks - at_first, 0)
    early_blocks = int(np.minimum(recorded.end.blocks, at_first)[heaps].clip(0).sum())
    early = min(_parts(before).get("malloc, slack", 0) + _ARENA, early_blocks * _PINNED)
    return int(later[heaps].sum()) * _PINNED + early + _ARENA


def _busiest(recorded: Recorded) -> Frame | None:
    """The user's own line that allocated most over the run: the work of the child."""
    mine = recorded.counted & recorded.is_mine
    if not mine.any():
        return None
    allocated = sum_at(len(recorded.frames), recorded.row[mine], recorded.total_bytes[mine])
    return recorded.frames[int(np.argmax(allocated))]
