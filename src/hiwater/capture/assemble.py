"""The bytes of a capture, from finished tables: for captures that no engine wrote, such as histories that other
libraries kept.

The same contents give the same bytes, so that merging finds out what it already has.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from hiwater.capture import writer
from hiwater.capture.format import COUNTED_KINDS, MAGIC, VERSION
from hiwater.capture.layout import Schema, parse_schema
from hiwater.capture.process import STATE_ENDED
from hiwater.capture.references import Records


@cache
def own_schema() -> Schema:
    """The record types of the captures that this hiwater writes from Python."""
    return parse_schema(json.dumps(writer.schema()).encode(), writer.HEADER_BYTES)


def empty(table: str, length: int) -> Records:
    """Records of a table, all zero."""
    return np.zeros(length, own_schema().tables[table].record)


def header(**values: Any) -> dict[str, Any]:
    """A whole header as the reader gives it: of a recording that ended, with these values and zeros otherwise."""
    fields = own_schema().header
    whole: dict[str, Any] = {name: np.zeros((), fields[name]).tolist() for name in fields.names or ()}
    whole.update(state=STATE_ENDED, counted_kinds=len(COUNTED_KINDS), generation=1, exit_code=-1)
    whole.update(values)
    return whole


def assemble(values: Mapping[str, Any], tables: Mapping[str, Records]) -> bytes:
    """The file of a capture with this header and these tables. Raises OverflowError where the format has no room for
    them."""
    schema, extents = own_schema(), list[tuple[int, bytes]]()
    counts = [0] * len(values["table_count"])
    for table in schema.tables.values():
        records = tables.get(table.name, np.zeros(0, table.record))
        counts[table.number] = len(records)
        in_extent = writer.EXTENT_BYTES // table.record.itemsize
        for chunk, first in enumerate(range(0, len(records), in_extent)):
            extents.append((table.number << 24 | chunk, records[first : first + in_extent].tobytes()))
    if len(extents) > writer.MAX_EXTENTS:
        raise OverflowError("a capture cannot grow beyond 3.5 GiB")
    directory = struct.pack(f"<{len(extents)}I", *(place for place, _ in extents))
    text = json.dumps(writer.schema(), separators=(",", ":")).encode().ljust(writer.SCHEMA_BYTES)
    start = _packed_header({**values, **_places(len(extents), len(schema.tables)), "table_count": counts})
    body = b"".join(data.ljust(writer.EXTENT_BYTES, b"\0") for _, data in extents)
    return (start + text + directory).ljust(writer.FIRST_EXTENT_OFFSET, b"\0") + body


def _places(extents: int, tables: int) -> dict[str, Any]:
    return {
        "magic": MAGIC, "version": VERSION, "header_bytes": writer.HEADER_BYTES,
        "extent_bytes": writer.EXTENT_BYTES, "schema_offset": writer.HEADER_BYTES, "schema_bytes": writer.SCHEMA_BYTES,
        "directory_offset": writer.DIRECTORY_OFFSET, "first_extent_offset": writer.FIRST_EXTENT_OFFSET,
        "max_extents": writer.MAX_EXTENTS, "extents_used": extents, "table_total": tables,
    }  # fmt: skip


def _packed_header(values: Mapping[str, Any]) -> bytes:
    packed = bytearray(writer.HEADER_BYTES)
    for name, (letter, count, offset) in writer.header_places().items():
        value = values.get(name, b"" if letter == "s" else 0)
        several = value if isinstance(value, (list, tuple)) else [value]
        struct.pack_into(f"<{count}{letter}", packed, offset, *several)
    return bytes(packed)
