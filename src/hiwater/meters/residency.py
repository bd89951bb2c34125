"""Where resident memory is: in Python's allocators, in malloc, in mappings, or in none that can be named.

Every page that smaps counts is in exactly one row, so the rows add up to resident memory. The row "unexplained" has the
remaining difference and the memory that allocators share with something unknown; it is always printed. The engine does
the reading (native/residency/); a recording takes the same residency snapshots from a thread of its own.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from hiwater._os.sizes import format_size
from hiwater.errors import EngineUnavailable, MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


@dataclass(frozen=True, slots=True)
class ResidencyRow:
    """One part of resident memory."""

    name: str
    resident_bytes: int
    untouched_bytes: int = 0
    """Address space of this part that has never been written: allocated, but not resident."""


@dataclass(frozen=True, slots=True)
class LargeResidentBlock:
    """One large block or mapping."""

    kind: str
    """"malloc" for a block with a mapping of its own from malloc, "mapping" for any other anonymous or shared
    mapping."""
    address: int
    bytes: int
    touched_bytes: int

    @property
    def untouched_bytes(self) -> int:
        return self.bytes - self.touched_bytes


@dataclass(frozen=True)
class Breakdown:
    """Resident memory by use. `sum(row.resident_bytes for row in rows) == resident_bytes`, the unexplained included."""

    resident_bytes: int
    rows: tuple[ResidencyRow, ...]
    large: tuple[LargeResidentBlock, ...]
    at_ns: int
    took_seconds: float
    allocated: dict[str, int] = field(default_factory=dict)
    """Live bytes by the engine's count, where it counts: python, native, mapping and shared, as requested."""
    notes: tuple[str, ...] = ()

    @property
    def unexplained_bytes(self) -> int:
        return self["unexplained"].resident_bytes

    def __getitem__(self, name: str) -> ResidencyRow:
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, object]:
        """Return all of it as plain values."""
        return {
            "resident_bytes": self.resident_bytes,
            "rows": {
                row.name: {"resident_bytes": row.resident_bytes, "untouched_bytes": row.untouched_bytes}
                for row in self.rows
            },
            "large": [asdict(block) for block in self.large],
            "allocated": self.allocated,
            "took_seconds": self.took_seconds,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"resident {format_size(self.resident_bytes)}, read in {self.took_seconds * 1e3:.0f} ms"]
        for row in self.rows:
            untouched = f"  and {format_size(row.untouched_bytes)} never touched" if row.untouched_bytes else ""
            lines.append(f"  {row.name.ljust(width)}  {format_size(row.resident_bytes):>9}{untouched}")
        if self.large:
            lines.append("largest blocks: size, of which touched")
        lines += [
            f"  {format_size(block.bytes):>9}  {format_size(block.touched_bytes):>9}  {block.kind}"
            for block in self.large[:8]
        ]
        if self.allocated:
            counted = ", ".join(f"{name} {format_size(size)}" for name, size in self.allocated.items())
            lines.append(f"live by the engine's count: {counted}")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def breakdown() -> Breakdown:
    """Return where this process's resident memory is now. Takes some milliseconds, more in a large process.

    Raises MeterUnavailable where the kernel shows no smaps, or hiwater has no engine.
    """
    from hiwater.meters.heap import COUNTING

    core = _core()
    began = time.perf_counter_ns()
    try:
        resident, rows, large, *limits = core.residency_snapshot()
    except core.EngineFault as error:
        raise MeterUnavailable(
            f"the pages of this process cannot be read ({error})", "mount /proc, or use only the meter `resident`"
        ) from error
    took = (time.perf_counter_ns() - began) / 1e9
    parts = tuple(ResidencyRow(*row) for row in rows)
    blocks = tuple(LargeResidentBlock("malloc" if from_malloc else "mapping", *rest) for from_malloc, *rest in large)
    notes = tuple(_notes(*limits))
    return Breakdown(resident, parts, blocks, began, took, COUNTING.by_kind(), notes)


def touched_bytes(buffer: object) -> tuple[int, int]:
    """Return (resident bytes, total bytes) of an array, a tensor on the CPU, or a writable buffer. Counts whole pages
    at both ends.

    Raises TypeError for an object without memory of its own, MeterUnavailable where hiwater has no engine.
    """
    address, size = _where(buffer)
    return (int(_core().touched_bytes(address, size)) if size else 0), size


def _notes(unreadable: bool, page_limit_reached: bool, malloc_unknown: bool, not_found_bytes: int) -> list[str]:
    notes = []
    if unreadable:
        notes.append("the contents of memory cannot be read: allocators' large blocks are counted as anonymous maps")
    if page_limit_reached:
        notes.append("there are too many pages to read: the rest is counted as anonymous maps")
    if malloc_unknown:
        notes.append("this C library's malloc gives no figures: what is free in its heaps is counted as in use")
    if not_found_bytes:
        notes.append(f"{format_size(not_found_bytes)} of malloc's large blocks were not found: see anonymous maps")
    return notes


def _core() -> ModuleType:
    from hiwater._os import native

    try:
        return native.load()
    except EngineUnavailable as error:
        raise MeterUnavailable(error.problem, error.remedy) from error


def _where(buffer: Any) -> tuple[int, int]:
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:
        return int(interface["data"][0]), int(buffer.nbytes)
    if hasattr(buffer, "data_ptr"):
        return int(buffer.data_ptr()), int(buffer.nbytes)
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError("only arrays, tensors and writable buffers can be measured")
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0, view.nbytes
