"""The schema text in a capture: JSON that puts every field inside its record, next to its neighbours."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from recording import needs_engine, record

pytestmark = needs_engine


def bytes_named(fields: list[list[str | int]], record_bytes: int) -> int:
    """How many bytes of a record the fields have. A field is `[name, type, offset]`, of several values also their
    number; the type is "<u8", "<i4" or "S40"."""
    taken: set[int] = set()
    for name, kind, offset, *count in fields:
        assert str(kind).startswith(("<u", "<i", "S")), name
        size = int(str(kind).lstrip("<uiS")) * int(*count or [1])
        own = range(int(offset), int(offset) + size)
        assert own.stop <= record_bytes, name
        assert taken.isdisjoint(own), name
        taken.update(own)
    return len(taken)


def test_fields_do_not_overlap_and_name_every_byte(tmp_path: Path) -> None:
    data = record(tmp_path, "def main(): pass").path.read_bytes()
    _, header_bytes, _, offset, size = struct.unpack_from("<IIQQQ", data, 8)
    schema = json.loads(data[offset : offset + size])
    assert schema["format"] == "hiwater.capture"
    assert bytes_named(schema["header"], header_bytes) > 0
    for table in schema["tables"]:
        if table["name"] != "string_bytes":
            assert bytes_named(table["fields"], table["record_bytes"]) == table["record_bytes"], table["name"]
