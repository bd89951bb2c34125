"""Where resident memory is: what Python, malloc and mappings hold of it, and what nobody can name.

Every page that smaps counts goes into one row, so the rows add up to resident memory; what differs, and what lies in memory that
allocators share with something unknown, is the row "unexplained", and is printed.

What pages hold is told from what allocators wrote at their beginnings, read through /proc/self/mem, and only of pages that
are in RAM already: looking must not touch what the program did not.
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from dataclasses import dataclass, field

from hiwater.errors import MeterUnavailable
from hiwater.meters.process import PAGE_BYTES
from hiwater.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MOST_LOOKS = 100_000
"""How many pages are looked at, at about 1 us each; what lies beyond counts as anonymous maps."""
_LARGE = 1 << 20
_POOL_BYTES = 16 * 1024  # of Python's object allocator since 3.10: pools of this size, in arenas of 1 MiB
_SIZE_CLASSES = 32
_MALLOC_ARENA = 64 << 20  # threads' heaps of glibc are aligned to this
_IS_MMAPPED, _CHUNK_FLAGS, _CHUNK_WORDS_BYTES = 2, 7, 16
_MOST_ALIGNMENT = 128


@dataclass(frozen=True, slots=True)
class Row:
    """One part of resident memory."""

    name: str
    resident_bytes: int
    untouched_bytes: int = 0
    """Address space that belongs to it and has never been written: allocated, not resident."""


@dataclass(frozen=True, slots=True)
class LargeBlock:
    """One large block or mapping."""

    kind: str
    """"malloc" for a block that malloc mapped for itself, "mapping" for any other anonymous mapping, else the file's path."""
    address: int
    bytes: int
    touched_bytes: int

    @property
    def untouched_bytes(self) -> int:
        return self.bytes - self.touched_bytes


@dataclass(frozen=True)
class Breakdown:
    """Resident memory by what it is for. `sum(row.resident_bytes for row in rows) == resident_bytes`, the unexplained included."""

    resident_bytes: int
    rows: tuple[Row, ...]
    large: tuple[LargeBlock, ...]
    at_ns: int
    took_seconds: float
    allocated: dict[str, int] = field(default_factory=dict)
    """What the engine counts as live now, where it counts: python, native and mapping bytes, requested."""
    notes: tuple[str, ...] = ()

    @property
    def unexplained_bytes(self) -> int:
        return self["unexplained"].resident_bytes

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, object]:
        """Return all of it as plain values."""
        return {
            "resident_bytes": self.resident_bytes,
            "rows": {
                row.name: {"resident_bytes": row.resident_bytes, "untouched_bytes": row.untouched_bytes}
                for row in self.rows
            },
            "large": [
                {
                    "kind": block.kind,
                    "address": block.address,
                    "bytes": block.bytes,
                    "touched_bytes": block.touched_bytes,
                }
                for block in self.large
            ],
            "allocated": self.allocated,
            "took_seconds": self.took_seconds,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"resident {format_size(self.resident_bytes)}, looked at in {self.took_seconds * 1e3:.0f} ms"]
        for row in self.rows:
            beside = f"  and {format_size(row.untouched_bytes)} never touched" if row.untouched_bytes else ""
            lines.append(f"  {row.name.ljust(width)}  {format_size(row.resident_bytes):>9}{beside}")
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


@dataclass(slots=True)
class Area:
    """One line of smaps."""

    start: int
    end: int
    mode: str
    path: str
    resident: int = 0
    previous_is_file: bool = False
    before_reserve: bool = False

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_shared(self) -> bool:
        return self.mode[3] == "s" or self.path.startswith(("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"))  # noqa: S108


def breakdown() -> Breakdown:
    """Say where this process's resident memory is now. Takes some milliseconds, more in a large process.

    Raises MeterUnavailable where the kernel shows no smaps.
    """
    began = time.perf_counter_ns()
    try:
        areas = list(_areas())
    except OSError as error:
        raise MeterUnavailable(
            f"the process's mappings cannot be read ({error})", "this needs Linux with /proc"
        ) from error
    parts = _Parts(areas)
    parts.sort_out()
    rows = parts.rows()
    resident = _resident_now()
    # Pages beside an allocator's that it did not mark; and what came between the readings: these lines are Python too.
    rows.append(Row("unexplained", resident - sum(row.resident_bytes for row in rows)))
    large = sorted(parts.large, key=lambda block: -block.bytes)
    took = (time.perf_counter_ns() - began) / 1e9
    return Breakdown(resident, tuple(rows), tuple(large), began, took, _engine_count(), tuple(parts.notes))


def touched_bytes(buffer: object) -> tuple[int, int]:
    """Return (bytes in RAM, bytes in all) of an array, a tensor on the CPU, or a writable buffer, in whole pages at its ends.

    Raises TypeError for what has no memory of its own to look at.
    """
    address, size = _where(buffer)
    if size == 0:
        return 0, 0
    pages = 0
    for area in _areas():
        if area.start < address + size and address < area.end:
            first, last = max(address, area.start) - area.start, min(address + size, area.end) - area.start
            pages += _present(area).count(1, first // PAGE_BYTES, -(-last // PAGE_BYTES))
    return min(size, pages * PAGE_BYTES), size


class _Parts:
    """Sorts the pages of all areas into parts."""

    def __init__(self, areas: list[Area]) -> None:
        self.areas = areas
        self.notes: list[str] = []
        self.large: list[LargeBlock] = []
        self.files = self.shared = self.stacks = self.maps = self.maps_untouched = 0
        self.heap = self.pools = self.chunks = self.chunks_touched = 0
        self._looks = _MOST_LOOKS
        self._memory = -1

    def sort_out(self) -> None:
        """Go through all areas."""
        stack_pointers = sorted(_stack_pointers())
        try:
            self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.notes.append(
                f"memory cannot be looked into ({error.strerror}): allocators' large blocks are under anonymous maps"
            )
        try:
            for area in _joined(self.areas, stack_pointers):
                self._sort(area, stack_pointers)
        finally:
            if self._memory >= 0:
                os.close(self._memory)
        if self._looks <= 0:
            self.notes.append(f"more than {_MOST_LOOKS:,} pages to look at: the rest is under anonymous maps")

    def rows(self) -> list[Row]:
        """Return the parts, but for the unexplained."""
        in_use, mapped = _malloc_in_use()
        small_blocks = min(self.heap, in_use)
        objects = _pymalloc_in_use()
        if objects is None:
            self.notes.append("Python's object allocator does not tell what is in use: its arenas are all under live")
            objects = self.pools
        objects = min(objects, self.pools)
        untouched = max(0, in_use - self.heap) + max(0, self.chunks - self.chunks_touched)
        if mapped - self.chunks > _LARGE:
            self.notes.append(
                f"{format_size(mapped - self.chunks)} of malloc's large blocks were not found: see anonymous maps"
            )
        return [
            Row("Python objects, live", objects),
            Row("Python's arenas, slack", self.pools - objects),
            Row("malloc, live", small_blocks + self.chunks_touched, untouched),
            Row("malloc, slack", self.heap - small_blocks),
            Row("anonymous maps", self.maps, self.maps_untouched),
            Row("files and libraries", self.files),
            Row("shared", self.shared),
            Row("stacks", self.stacks),
        ]

    def _sort(self, area: Area, stack_pointers: list[int]) -> None:
        if area.is_shared:
            self.shared += area.resident
        elif area.path.startswith("/") or (area.previous_is_file and area.path == "" and area.size < _LARGE):
            self.files += area.resident  # a library's zeroed data follows its file without a name
        elif area.path.startswith("[stack") or any(area.start <= pointer < area.end for pointer in stack_pointers):
            self.stacks += area.resident
        elif area.path == "[heap]" or (area.start % _MALLOC_ARENA == 0 and area.before_reserve):
            self.heap += area.resident
        elif area.path == "" and area.mode.startswith("rw"):
            self._look_into(area)
        elif "r" in area.mode or area.resident:
            self.maps += area.resident

    def _look_into(self, area: Area) -> None:
        """Tell malloc's own mappings and Python's pools from other anonymous memory, page by page."""
        present = _present(area) if self._memory >= 0 else b""
        found = 0
        position, pages = 0, len(present)
        other = 0
        while position < pages and self._looks > 0:
            step = present.find(1, position)
            if step < 0:
                break
            position = step
            address = area.start + position * PAGE_BYTES
            head = self._head(address)
            length = _chunk_bytes(head, area.end - address) // PAGE_BYTES
            if length:
                touched = present.count(1, position, position + length) * PAGE_BYTES
                self.chunks += length * PAGE_BYTES
                self.chunks_touched += touched
                found += touched
                if length * PAGE_BYTES >= _LARGE:
                    self.large.append(LargeBlock("malloc", address, length * PAGE_BYTES, touched))
            elif address % _POOL_BYTES == 0 and _is_pool(head):
                length = _POOL_BYTES // PAGE_BYTES
                touched = present.count(1, position, position + length) * PAGE_BYTES
                self.pools += touched
                found += touched
            else:
                length = 1
                other += PAGE_BYTES
            position += length
        rest = max(0, area.resident - found)
        if found and self._looks > 0:
            return  # the rest lies beside an allocator's memory, so perhaps is the allocator's: unexplained
        self.maps += rest
        self.maps_untouched += area.size - area.resident if not found else 0
        if area.size >= _LARGE and not found:
            self.large.append(LargeBlock("mapping", area.start, area.size, area.resident))

    def _head(self, address: int) -> bytes:
        self._looks -= 1
        try:
            return os.pread(self._memory, _MOST_ALIGNMENT + 16, address)
        except OSError:
            return b""  # unmapped meanwhile, by another thread


def _joined(areas: list[Area], stack_pointers: list[int]) -> Iterator[Area]:
    """Put neighbouring anonymous areas together: advice about huge pages, which NumPy gives, cuts a block in two."""
    run: Area | None = None
    for area in areas:
        plain = area.path == "" and area.mode == "rw-p" and not area.previous_is_file and not area.before_reserve
        plain = plain and not any(area.start <= pointer < area.end for pointer in stack_pointers)
        if run is not None and plain and run.end == area.start:
            run.end = area.end
            run.resident += area.resident
            continue
        if run is not None:
            yield run
        run = area if plain else None
        if run is None:
            yield area
    if run is not None:
        yield run


def _chunk_bytes(head: bytes, room: int) -> int:
    """Return the whole size of a block that malloc mapped for itself, if `head` begins one; else 0.

    glibc keeps two words before such a block: how far it is from the mapping's begin, and its size with the flag IS_MMAPPED.
    Up to glibc 2.42 those two words are part of that size, from 2.43 on they are not.
    """
    words = array("Q", head[: len(head) // 8 * 8])
    for i in range(0, len(words) - 1, 2):
        before, size = words[i], words[i + 1]
        whole = before + (size & ~_CHUNK_FLAGS)
        if whole % PAGE_BYTES == PAGE_BYTES - _CHUNK_WORDS_BYTES:
            whole += _CHUNK_WORDS_BYTES
        if (
            size & _CHUNK_FLAGS == _IS_MMAPPED
            and before == i * 8
            and whole % PAGE_BYTES == 0
            and PAGE_BYTES < whole <= room
        ):
            return whole
    return 0


def _is_pool(head: bytes) -> bool:
    """Whether `head` begins a pool of Python's object allocator: its numbers must agree with each other."""
    if len(head) < 48:
        return False
    used, (size_class, next_offset, last_offset) = int.from_bytes(head[:4], "little"), array("I", head[36:48])
    if size_class >= _SIZE_CLASSES:
        return False
    block = (size_class + 1) * 16
    return last_offset == _POOL_BYTES - block and next_offset <= _POOL_BYTES and used <= _POOL_BYTES // block


def _areas() -> Iterator[Area]:
    found: list[Area] = []
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line[: line.find(" ")]
            if "-" in first and not first.endswith(":"):
                words = line.split(None, 5)
                start, end = (int(text, 16) for text in first.split("-"))
                area = Area(start, end, words[1], words[5].strip() if len(words) > 5 else "")
                if found and found[-1].end == start:
                    area.previous_is_file = found[-1].path.startswith("/")
                    found[-1].before_reserve = area.mode.startswith("---")
                found.append(area)
            elif line.startswith("Rss:"):
                found[-1].resident = int(line.split()[1]) * 1024
    yield from found


_PRESENT, _NOT_ANONYMOUS, _MINE_ALONE = 1 << 63, 1 << 61, 1 << 56  # of an entry in pagemap
_KIND = _PRESENT | _NOT_ANONYMOUS | _MINE_ALONE
_SLIP = 64 * PAGE_BYTES  # what may have been touched between smaps and pagemap


def _present(area: Area) -> bytes:
    """Return a byte for each page of private anonymous memory: 1 where it is in RAM, as smaps counts it.

    A page that was only ever read stands for the kernel's page of zeros: present, and nobody's memory. A huge one is marked as
    not anonymous; a small one looks like a page shared with a forked child, so smaps' own count has to tell which they are.
    """
    surely, perhaps = bytearray(), bytearray()
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(area.start // PAGE_BYTES * 8)
            left = area.size // PAGE_BYTES * 8
            while left > 0:
                data = file.read(min(left, 1 << 20))
                if not data:
                    break
                left -= len(data)
                entries = array("Q", data)
                surely += bytes([entry & _KIND == _PRESENT | _MINE_ALONE for entry in entries])
                perhaps += bytes([entry & (_PRESENT | _NOT_ANONYMOUS) == _PRESENT for entry in entries])
    except OSError:
        return b""
    return bytes(perhaps if perhaps.count(1) * PAGE_BYTES <= area.resident + _SLIP else surely)


def _stack_pointers() -> Iterator[int]:
    """Where the stacks of waiting threads are; a thread that is running does not say."""
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/syscall") as file:
                words = file.read().split()
        except OSError:
            continue
        if len(words) >= 2 and words[-2].startswith("0x"):
            yield int(words[-2], 16)


_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2.split()]


def _malloc_in_use() -> tuple[int, int]:
    """Return (bytes in use inside malloc's heaps, bytes of the blocks it mapped for themselves); (0, 0) for another malloc."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0, 0
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return info.uordblks, info.hblkhd


def _pymalloc_in_use() -> int | None:
    """Return the bytes of Python's live small objects, rounded to their size classes.

    The interpreter's own report of its allocator, written into memory instead of to stderr.
    """
    try:
        report = ctypes.pythonapi._PyObject_DebugMallocStats
        libc = ctypes.CDLL(None)
        libc.open_memstream.restype = ctypes.c_void_p
    except AttributeError:
        return None
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    if not stream:
        return None
    report(stream)
    libc.fclose(stream)
    lines = ctypes.string_at(text, size.value).decode().splitlines()
    libc.free(text)
    for line in lines:
        if line.startswith("# bytes in allocated blocks"):
            return int(line.split("=")[1].replace(",", ""))
    return None


def _where(buffer: Any) -> tuple[int, int]:
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:
        return int(interface["data"][0]), int(buffer.nbytes)
    if hasattr(buffer, "data_ptr"):
        return int(buffer.data_ptr()), int(buffer.nbytes)
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError("only arrays, tensors and writable buffers can be looked at")
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0, view.nbytes


def _resident_now() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def _engine_count() -> dict[str, int]:
    from hiwater.meters.heap import COUNTING

    return COUNTING.by_kind()
