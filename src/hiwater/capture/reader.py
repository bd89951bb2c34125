"""From a file to arrays: every record of a capture, checked so that nothing later can be led outside them.

The file may be damaged, hostile, or be growing while it is read. It is therefore read with `pread` and not mapped: what
was checked is what is used, a file cut under us is an error and not SIGBUS, and memory is bounded by the size of the
file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater._os import portable, trust
from hiwater.capture import bounds
from hiwater.capture.layout import (
    FIRST_BYTES,
    HeaderStart,
    Schema,
    Table,
    corrupt,
    parse_schema,
    read_start,
    truncated,
)
from hiwater.capture.process import STATE_ENDED, STATE_FAILED, STATE_RECORDING
from hiwater.capture.references import Records, check_references
from hiwater.errors import ForeignFile, MissingCapture

_HEADER_TRIES = 16
_MOST_OF_OTHERS = 1 << 30  # records of a table that this reader does not know


@dataclass(frozen=True, slots=True)
class Contents:
    """Header and tables of a capture, as recorded and already checked. Tables are structured arrays, read-only."""

    path: Path
    header: dict[str, Any]
    tables: dict[str, Records]


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a whole capture.

    Raises MissingCapture, ForeignFile, IncompatibleCapture, TruncatedCapture or CorruptCapture; never anything else for
    what a file holds.
    """
    place = Path(path)
    descriptor = open_file(place)
    try:
        return read_descriptor(place, descriptor)
    finally:
        os.close(descriptor)


def open_file(path: Path) -> int:
    """A descriptor of a regular file. A pipe or a device would block or never end: they are refused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | trust.OPEN_FLAGS)
    except FileNotFoundError:
        raise MissingCapture(f"there is no capture {str(path)!r}", "check the path (`hiwater run` prints it)") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MissingCapture(
            f"the capture {str(path)!r} cannot be opened ({reason})", "check the path and its rights"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForeignFile(f"{str(path)!r} is not a file", "give a file that `hiwater run` wrote (*.hiw)")
    return descriptor


def read_descriptor(path: Path, descriptor: int) -> Contents:
    """Read the capture in an open file. `path` is what it is called; the errors are those of `read`."""
    start, schema = read_shape(descriptor)
    header = read_header(descriptor, start, schema)
    extents = read_extents(descriptor, start, header)
    tables = {
        table.name: read_records(descriptor, start, table, 0, header["table_count"][table.number], extents)
        for table in schema.tables.values()
    }
    return checked(path, header, tables)


def read_shape(descriptor: int) -> tuple[HeaderStart, Schema]:
    """The parts of a capture that never change: where everything lies, and the types of its records."""
    start = read_start(_pread(descriptor, FIRST_BYTES, 0, may_be_short=True))
    text = _pread(descriptor, start.schema_bytes, start.schema_offset)
    return start, parse_schema(text, start.header_bytes)


def read_header(descriptor: int, start: HeaderStart, schema: Schema) -> dict[str, Any]:
    """The header as it is now, checked."""
    header = _steady_header(descriptor, schema)
    _check_header(header, schema, start)
    _check_room(descriptor, start, header)
    return header


def checked(path: Path, header: dict[str, Any], tables: dict[str, Records]) -> Contents:
    """The contents of a capture, from its header and all its tables. Raises CorruptCapture if they contradict each
    other."""
    if len(tables["account_peaks"]) + 1 == len(tables["accounts"]):
        # Killed before the peaks of a new account were added; all of them are zero.
        tables["account_peaks"] = np.append(tables["account_peaks"], np.zeros(1, tables["account_peaks"].dtype))
    check_references(header, tables)
    return Contents(path, header, tables)


def _pread(descriptor: int, size: int, offset: int, *, may_be_short: bool = False) -> bytes:
    """Exactly `size` bytes, or TruncatedCapture."""
    _stay_inside(descriptor, size if not may_be_short else 0, offset)
    parts = []
    while size > 0:
        part = portable.read_at(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    if size > 0 and not may_be_short:
        raise truncated()
    return b"".join(parts)


def _stay_inside(descriptor: int, size: int, offset: int) -> None:
    """Refuse before memory is taken for bytes that are not there."""
    if offset + size > os.fstat(descriptor).st_size:
        raise truncated()


def _steady_header(descriptor: int, schema: Schema) -> dict[str, Any]:
    """The header, read until two readings have the same table counts and extents: the program may write meanwhile, and
    a copy may have a count without the extent that came before it."""
    header = _read_header(descriptor, schema)
    for _ in range(_HEADER_TRIES):
        again = _read_header(descriptor, schema)
        if all(again[name] == header[name] for name in ("table_count", "extents_used")):
            break
        header = again
    return header


def _read_header(descriptor: int, schema: Schema) -> dict[str, Any]:
    record = np.frombuffer(_pread(descriptor, schema.header.itemsize, 0), schema.header)[0]
    return {name: record[name].tolist() for name in schema.header.names or ()}


def _check_header(header: dict[str, Any], schema: Schema, start: HeaderStart) -> None:
    if header["extents_used"] > start.max_extents:
        raise corrupt("it uses more extents than it has")
    if header["state"] not in (STATE_RECORDING, STATE_ENDED, STATE_FAILED):
        raise corrupt(f"its state is {header['state']}")
    if header["epoch_index"] not in (0, 1):
        raise corrupt(f"its epoch is {header['epoch_index']}")
    if len(schema.tables) > len(header["table_count"]):
        raise corrupt("it has more tables than counts of their records")
    for name, value in header.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, int) and abs(number) > bounds.LARGEST_FIGURE for number in numbers):
            raise corrupt(f"its header's {name!r} is beyond any figure")
    for table in schema.tables.values():
        if header["table_count"][table.number] > bounds.MOST_RECORDS.get(table.name, _MOST_OF_OTHERS):
            raise corrupt(f"it counts more records of {table.name!r} than a capture can hold")


def _check_room(descriptor: int, start: HeaderStart, header: dict[str, Any]) -> None:
    """Refuse a file that is nearly all holes, which would take memory for zeros."""
    state = os.fstat(descriptor)
    stored = 512 * getattr(state, "st_blocks", 0) or state.st_size  # some file systems do not count blocks
    if header["extents_used"] * start.extent_bytes > bounds.most_unpacked(stored):
        raise corrupt(f"it uses {header['extents_used']} extents and is stored in {stored} bytes")


def read_extents(descriptor: int, start: HeaderStart, header: dict[str, Any]) -> dict[int, npt.NDArray[np.int64]]:
    """For each table number the extents of its chunks, in order. Two extents for one chunk, or a gap, is damage."""
    directory = np.frombuffer(_pread(descriptor, 4 * header["extents_used"], start.directory_offset), np.dtype("<u4"))
    numbers = directory >> 24
    chunks = directory & 0xFFFFFF
    extents = {}
    for number in np.flatnonzero(np.bincount(numbers)).tolist():  # np.unique() would import numpy.ma: 20 ms of CPU time
        mine = np.flatnonzero(numbers == number)
        order = np.argsort(chunks[mine], kind="stable")
        if not np.array_equal(chunks[mine][order], np.arange(len(mine))):
            raise corrupt("its directory names one chunk of a table twice, or leaves one out")
        extents[number] = mine[order]
    return extents


def read_records(
    descriptor: int, start: HeaderStart, table: Table, first: int, count: int, places: dict[int, npt.NDArray[np.int64]]
) -> Records:
    """The records of one table from number `first` to `count`, joined from its extents."""
    size = table.record.itemsize
    in_extent = start.extent_bytes // size
    extents = places.get(table.number, np.empty(0, np.int64))
    if in_extent == 0 or count > len(extents) * in_extent:
        raise corrupt(f"it counts {count} records of {table.name!r} and has no room for them")
    if first >= count:
        return np.zeros(0, table.record)
    parts = []  # (place in the file, first byte of the table, byte after its last)
    for chunk in range(first // in_extent, -(-count // in_extent)):
        begin = max(first, chunk * in_extent)
        offset = start.first_extent_offset + extents.item(chunk) * start.extent_bytes
        parts.append((offset + begin % in_extent * size, begin * size, min((chunk + 1) * in_extent, count) * size))
        _stay_inside(descriptor, parts[-1][2] - parts[-1][1], parts[-1][0])
    joined = np.empty((count - first) * size, np.uint8)
    window = memoryview(joined.data)
    for offset, begin_byte, end_byte in parts:
        _pread_into(descriptor, window[begin_byte - first * size : end_byte - first * size], offset)
    joined.flags.writeable = False
    return joined.view(table.record)


def _pread_into(descriptor: int, window: memoryview, offset: int) -> None:
    while len(window):
        got = portable.read_into(descriptor, window, offset)
        if got == 0:
            raise truncated()
        window = window[got:]
        offset += got
