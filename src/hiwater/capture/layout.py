"""What a capture file says about itself: the fixed start of its header and the schema text, as numpy record types.

The other end is `native/capture/format.h`. Only the first 60 bytes, where things lie in the file, are fixed for ever;
every other field is found by the name the schema text gives it, so that fields and tables may be added within a
version.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hiwater.capture import bounds
from hiwater.capture.format import COUNTED_KINDS, KINDS, MAGIC, NATIVE_VERSION, VERSION
from hiwater.capture.record_fields import ENGINE_TABLES, EVENTS_HEADER, HEADER, SAMPLED_TABLES, TABLES, Fields
from hiwater.errors import CorruptCapture, ForeignFile, IncompatibleCapture, TruncatedCapture


def _names(tables: Mapping[str, Fields]) -> dict[str, tuple[str, ...]]:
    return {
        table: tuple(name for name, _, _ in fields if name != "reserved") for table, fields in tables.items() if fields
    }


# What this reader needs of a capture; whatever else the schema names is read and left alone.
NEEDED_FIELDS = _names(TABLES)
OPTIONAL_FIELDS = _names(SAMPLED_TABLES | ENGINE_TABLES)
"""Of tables that a capture may lack."""
NEEDED_HEADER = tuple(name for name, _, _ in (*HEADER, *EVENTS_HEADER) if name not in ("counted_kinds", "table_total"))
# A figure may be a difference; ids and places above all are unsigned.
_SIGNED = {
    (table, name)
    for table, fields in ({"header": (*HEADER, *EVENTS_HEADER)} | TABLES | SAMPLED_TABLES | ENGINE_TABLES).items()
    for name, letter, _ in fields
    if letter in "iq"
}

_START = struct.Struct("<8sIIQQQQQI")  # magic, version, and the fields of HeaderStart
FIRST_BYTES = _START.size
_DTYPE = re.compile(r"^(?:[<|][ui][1248]|<f[48]|\|?S[1-9][0-9]{0,3})$")


@dataclass(frozen=True, slots=True)
class HeaderStart:
    """The format's version, and where everything lies: offsets in bytes from the start of the file."""

    version: int
    header_bytes: int
    extent_bytes: int
    schema_offset: int
    schema_bytes: int
    directory_offset: int
    first_extent_offset: int
    max_extents: int


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its place in the directory's numbering and the type of its records (a plain byte when it has no
    fields)."""

    number: int
    name: str
    record: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Schema:
    """The record types of one capture: its header's and, by name, its tables'."""

    header: np.dtype[Any]
    tables: dict[str, Table]


def corrupt(problem: str) -> CorruptCapture:
    """The error for a capture that contradicts itself."""
    return CorruptCapture(f"the capture is damaged: {problem}", "record again, or use another copy of the file")


def read_start(first_bytes: bytes) -> HeaderStart:
    """The fixed start of the file. Raises ForeignFile, IncompatibleCapture, TruncatedCapture or CorruptCapture."""
    if first_bytes[: len(MAGIC)] != MAGIC[: len(first_bytes)] or not first_bytes:
        what = "the file is empty" if not first_bytes else "the file is not a capture of hiwater's"
        raise ForeignFile(what, "give a file that `hiwater run` wrote (*.hiw)")
    if len(first_bytes) < _START.size:
        raise truncated()
    _, version, *places = _START.unpack_from(first_bytes)
    start = HeaderStart(version, *places)
    if version not in (VERSION, NATIVE_VERSION):
        raise incompatible("the capture", version, VERSION)
    has_header = _START.size <= start.header_bytes <= bounds.LARGEST_TEXT_BYTES
    if not has_header or not 2 <= start.schema_bytes <= bounds.LARGEST_TEXT_BYTES:
        raise corrupt(f"a header of {start.header_bytes} bytes and a schema of {start.schema_bytes} bytes cannot be")
    if not bounds.SMALLEST_EXTENT_BYTES <= start.extent_bytes <= bounds.LARGEST_EXTENT_BYTES:
        raise corrupt(f"extents of {start.extent_bytes} bytes cannot be")
    return start


def incompatible(what: str, version: int, own: int) -> IncompatibleCapture:
    """The error for a file in another version of the format."""
    problem = f"{what} has format version {version}, this hiwater reads version {own}"
    return IncompatibleCapture(problem, "read it with the version of hiwater that wrote it, or record again")


def truncated() -> TruncatedCapture:
    """The error for a file that ends too early."""
    return TruncatedCapture(
        "the capture is truncated: the file ends before its last record", "copy it again whole, or record again"
    )


def is_counted(kind: Any) -> Any:
    """Whether a kind of memory, given as its number, is part of what is called allocated. Of an array of kinds: an
    array of answers."""
    return kind < len(COUNTED_KINDS)


@lru_cache(maxsize=8)  # of the many captures of one run, all have the same
def parse_schema(text: bytes, header_bytes: int) -> Schema:
    """Record types from the schema text. Raises CorruptCapture for anything but a complete schema."""
    try:
        said = json.loads(text.rstrip(b"\0 \n").decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise corrupt("its schema is not JSON") from error
    is_schema = isinstance(said, dict) and said.get("format") == "hiwater.capture"
    if not is_schema or not isinstance(said.get("tables"), list):
        raise corrupt("its schema does not describe a capture")
    header = _record_type("header", said.get("header"), header_bytes)
    _need("header", header, NEEDED_HEADER)
    tables = {}
    for number, table in enumerate(said["tables"]):
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            raise corrupt("its schema holds a table without a name")
        name = table["name"]
        tables[name] = Table(number, name, _record_type(name, table.get("fields"), _record_bytes(table)))
    for name in NEEDED_FIELDS:
        if name not in tables:
            raise corrupt(f"its schema lacks the table {name!r}")
    for name, fields in (NEEDED_FIELDS | OPTIONAL_FIELDS).items():
        if name in tables:
            _need(name, tables[name].record, fields)
    if "string_bytes" not in tables or tables["string_bytes"].record.itemsize != 1:
        raise corrupt("its schema lacks the bytes of its strings")
    return Schema(header, tables)


def _record_bytes(table: dict[str, Any]) -> int:
    size = table.get("record_bytes")
    if not isinstance(size, int) or not 1 <= size <= 1 << 16:
        raise corrupt(f"its schema gives the table {table['name']!r} records of {size!r} bytes")
    return size


def _record_type(name: str, fields: Any, record_bytes: int) -> np.dtype[Any]:
    """The numpy type of [[name, dtype, offset] or [name, dtype, offset, count], ...] in a record of this size."""
    if not isinstance(fields, list) or (not fields and record_bytes != 1):
        raise corrupt(f"its schema has no fields for {name!r}")
    if not fields:
        return np.dtype(np.uint8)
    names, formats, offsets = [], [], []
    for field in fields:
        if not isinstance(field, list) or len(field) not in (3, 4) or not isinstance(field[0], str):
            raise corrupt(f"its schema has a field of {name!r} that is not [name, type, offset]")
        base, offset, count = field[1], field[2], field[3] if len(field) == 4 else 1
        if not isinstance(base, str) or not _DTYPE.match(base) or type(offset) is not int or type(count) is not int:
            raise corrupt(f"its schema has a field of {name!r} of unknown type")
        one = np.dtype(base)
        is_inside = 1 <= count <= record_bytes and 0 <= offset <= record_bytes - one.itemsize * count
        if not is_inside or field[0] in names:
            raise corrupt(f"its schema has a field outside the record of {name!r}")
        names.append(field[0])
        formats.append(one if len(field) == 3 else np.dtype((one, (count,))))
        offsets.append(offset)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": record_bytes})


def is_signed(table: str, field: str) -> bool:
    """Whether the field of a table may be negative."""
    return (table, field) in _SIGNED


def _need(name: str, record: np.dtype[Any], fields: tuple[str, ...]) -> None:
    """Whole numbers under these names, signed as they should be, or raise."""
    have: Any = record.fields or {}
    for field in fields:
        if field not in have:
            raise corrupt(f"its schema lacks the field {field!r} of {name!r}")
        kind = have[field][0]
        is_array = (name, field) in (
            ("header", "table_count"),
            ("header", "kind_live_bytes"),
            ("timeline", "live_bytes"),
        )
        wanted = "S" if field == "boot_id" else "i" if is_signed(name, field) else "u"
        if kind.base.kind != wanted or (kind.shape != ()) != is_array:
            raise corrupt(f"its schema gives the field {field!r} of {name!r} an unexpected type")
        if field in ("kind_live_bytes", "live_bytes") and is_array and kind.shape[0] < len(KINDS):
            raise corrupt(f"its schema gives {field!r} fewer than {len(KINDS)} kinds of memory")
