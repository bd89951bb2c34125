"""From a file to arrays: every record of a capture, checked so that nothing later can be led outside them.

The file may be damaged, hostile, or be growing while it is read. It is therefore read with `pread` and not mapped: what was
checked is what is used, a file cut under us is an error and not SIGBUS, and memory is bounded by the size of the file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.capture import bounds
from hiwater.capture.format import KINDS
from hiwater.capture.layout import (
    FIRST_BYTES,
    NEEDED_FIELDS,
    OPTIONAL_FIELDS,
    HeaderStart,
    Schema,
    Table,
    corrupt,
    parse_schema,
    read_start,
    truncated,
)
from hiwater.capture.process import STATE_ENDED, STATE_FAILED, STATE_RECORDING
from hiwater.errors import ForeignFile, MissingCapture

Records = npt.NDArray[Any]

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

    Raises MissingCapture, ForeignFile, IncompatibleCapture, TruncatedCapture or CorruptCapture; never anything else for what a file holds.
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
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
    """The contents of a capture, from its header and all its tables. Raises CorruptCapture if they contradict each other."""
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
        part = os.pread(descriptor, size, offset)
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
    """The header, read until two readings have the same table counts: the program may write meanwhile."""
    header = _read_header(descriptor, schema)
    for _ in range(_HEADER_TRIES):
        again = _read_header(descriptor, schema)
        if again["table_count"] == header["table_count"]:
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
    stored = 512 * state.st_blocks or state.st_size  # some file systems do not count blocks
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
        got = os.preadv(descriptor, [window], offset)
        if got == 0:
            raise truncated()
        window = window[got:]
        offset += got


def check_references(header: dict[str, Any], tables: dict[str, Records]) -> None:
    """Every id points at a record, every parent is older than its child, every range lies inside its table."""
    counts = {name: len(records) for name, records in tables.items()}
    strings = tables["strings"]
    ends = strings["offset"].astype(np.float64) + strings["length"]  # a float cannot wrap; exact far beyond any file
    if counts["strings"] and float(ends.max()) > counts["string_bytes"]:
        raise corrupt("a string lies outside the strings")
    if int(strings["length"].sum(dtype=np.uint64)) > counts["string_bytes"]:
        raise corrupt("its strings overlap")  # and could be made to fill any memory
    nodes = tables["nodes"]
    if np.any(nodes["parent"][1:] >= np.arange(1, max(1, len(nodes)))):
        raise corrupt("a stack is its own ancestor")
    if len(nodes) and int(nodes["parent"][0]) != 0:
        raise corrupt("the node of nothing has a parent")
    for one in bounds.REFERENCES:
        if one.table not in tables:
            continue  # one that a capture may lack
        ids = tables[one.table][one.field]
        if len(ids) and int(ids.max()) >= counts.get(one.target, 0):
            raise corrupt(f"the {one.field} of a record of {one.table!r} does not exist")
        if one.most_bytes and int(strings["length"][ids].sum(dtype=np.uint64)) > one.most_bytes:
            raise corrupt(f"the texts in {one.field!r} of {one.table!r} come to more than {one.most_bytes >> 20} MiB")
    if header["stop_reason"] >= max(1, counts["strings"]):
        raise corrupt("its stop reason does not exist")
    if counts["accounts"] and int(tables["accounts"]["kind"].max()) >= len(KINDS):
        raise corrupt("an account is of no known kind of memory")
    if counts["account_peaks"] < counts["accounts"]:
        raise corrupt("accounts lack their peaks")
    _check_figures(tables)
    _check_slices(tables["slices"], counts["slice_entries"])
    at_ns = tables["timeline"]["at_ns"]
    if np.any(at_ns[1:] < at_ns[:-1]):
        raise corrupt("its timeline runs backwards")


def _check_figures(tables: dict[str, Records]) -> None:
    for name, fields in (NEEDED_FIELDS | OPTIONAL_FIELDS).items():
        for field in fields:
            if name not in tables or not len(tables[name]) or tables[name].dtype[field] != np.uint64:
                continue
            if int(tables[name][field].max()) > bounds.LARGEST_FIGURE:
                raise corrupt(f"a figure in {field!r} of {name!r} is beyond any")


def _check_slices(slices: Records, entries: int) -> None:
    first, count = slices["first_entry"].astype(np.float64), slices["entry_count"].astype(np.float64)
    if len(slices) and (float((first + count).max()) > entries or float(count.sum()) > entries):
        raise corrupt("a slice lies outside the entries")
    if np.any(slices["end_ns"] < slices["start_ns"]):
        raise corrupt("a slice ends before it starts")
