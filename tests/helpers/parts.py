"""Captures taken apart and put together again by their own schema: whole columns, counts, texts and facts can be
changed, and the file stays one."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from random import Random
from typing import Any

import numpy as np

from hiwater.capture import bounds
from hiwater.capture.layout import FIRST_BYTES, OPTIONAL_FIELDS, is_signed, parse_schema, read_start
from mutants import START_FIELDS, TELLING

MOST_GROWN_BYTES = 16 << 20
TEXTS = (
    "", "0", "-1", "9" * 400, "9" * 6000, "1e999", "٣", "0x10", "NaN", "[" * 3000, "[]", "{}", "[1, null, {}]",
    '{"a": 1}', '{"a.py": [["f", 1]]}', "null", '"x"', "a\nb", "\x1b]0;title\x07", "\u202egnp.exe",
    "</script><script>alert(1)</script>", "/etc/shadow", "/dev/zero", "/", "../..", "fork", "exec", "sample",
    "device history", "cuda:0", "spark", "1:2", "9999999999999999999:1", "x" * 100_000, "%s{0}", "=cmd|' /C calc'!A0",
)  # fmt: skip


class Parts:
    """A capture's header and tables, as arrays that may be changed."""

    def __init__(self, content: bytes, extent_bytes: int | None = None) -> None:
        """`extent_bytes` is the size of the extents that `to_bytes()` makes, if it is another one."""
        self._content, self._extent_bytes = content, extent_bytes
        self._start = start = read_start(content[:FIRST_BYTES])
        self.schema = parse_schema(content[start.schema_offset :][: start.schema_bytes], start.header_bytes)
        self.header = np.frombuffer(content, self.schema.header, 1).copy()
        used = int(self.header["extents_used"][0])
        directory = np.frombuffer(content, "<u4", used, start.directory_offset).tolist()
        counts = self.header["table_count"][0].tolist()
        self.tables: dict[str, Any] = {}
        for table in self.schema.tables.values():
            size = table.record.itemsize
            extents = sorted(
                (place & 0xFFFFFF, number) for number, place in enumerate(directory) if place >> 24 == table.number
            )
            begins = [start.first_extent_offset + number * start.extent_bytes for _, number in extents]
            whole = b"".join(content[begin : begin + start.extent_bytes // size * size] for begin in begins)
            self.tables[table.name] = np.frombuffer(whole[: counts[table.number] * size], table.record).copy()

    def add_strings(self, texts: Sequence[bytes]) -> Any:
        """The numbers of these texts, which are added."""
        strings, content = self.tables["strings"], self.tables["string_bytes"]
        added = np.zeros(len(texts), strings.dtype)
        added["length"] = [len(text) for text in texts]
        added["offset"] = len(content) + np.cumsum(added["length"]) - added["length"]
        self.tables["string_bytes"] = np.concatenate([content, np.frombuffer(b"".join(texts), np.uint8)])
        self.tables["strings"] = np.concatenate([strings, added])
        return np.arange(len(strings), len(strings) + len(texts))

    def add_facts(self, *facts: tuple[str, str]) -> None:
        added = np.zeros(len(facts), self.tables["facts"].dtype)
        for field, texts in zip(("key", "value"), zip(*facts, strict=True), strict=True):
            added[field] = self.add_strings([text.encode("utf-8", "surrogatepass") for text in texts])
        self.tables["facts"] = np.concatenate([self.tables["facts"], added])  # of several of a name the last one counts

    def to_bytes(self) -> bytes:
        start, directory, extents = self._start, list[int](), list[bytes]()
        extent_bytes = self._extent_bytes or start.extent_bytes
        for table in self.schema.tables.values():
            records = self.tables[table.name]
            in_extent = extent_bytes // table.record.itemsize
            self.header["table_count"][0][table.number] = len(records)
            for chunk in range(-(-len(records) // in_extent)):
                directory.append(table.number << 24 | chunk)
                extents.append(records[chunk * in_extent :][:in_extent].tobytes().ljust(extent_bytes, b"\0"))
        self.header["extents_used"] = len(directory)
        most_extents = len(directory) + 64
        first_extent = -(-(start.directory_offset + 4 * most_extents) // 4096) * 4096
        head = bytearray(self._content[: start.directory_offset].ljust(first_extent, b"\0"))
        fields: Any = self.schema.header.fields
        for name, (kind, offset, *_) in fields.items():
            head[offset : offset + kind.itemsize] = np.ascontiguousarray(self.header[name]).tobytes()
        struct.pack_into("<Q", head, START_FIELDS["extent_bytes"][0], extent_bytes)
        struct.pack_into("<Q", head, START_FIELDS["first_extent_offset"][0], first_extent)
        struct.pack_into("<I", head, START_FIELDS["max_extents"][0], most_extents)
        head[start.directory_offset : start.directory_offset + 4 * len(directory)] = struct.pack(
            f"<{len(directory)}I", *directory
        )
        return bytes(head) + b"".join(extents)


def complete(content: bytes) -> bytes:
    """The capture with every table that a reader knows: those that it lacks get four records."""
    start = read_start(content[:FIRST_BYTES])
    said = json.loads(content[start.schema_offset :][: start.schema_bytes].rstrip(b"\0 \n"))
    made = {}
    for name, fields in OPTIONAL_FIELDS.items():
        if all(table["name"] != name for table in said["tables"]):
            places = [
                [field, "<i8" if is_signed(name, field) else "<u8", 8 * place] for place, field in enumerate(fields)
            ]
            said["tables"].append({"name": name, "record_bytes": 8 * len(fields), "fields": places})
            made[name] = _example(name, fields)
    count = next(place for place in said["header"] if place[0] == "table_count")
    counts = np.frombuffer(content, "<u8", count[3], count[2])
    count[2:] = [start.header_bytes - 8 * 64, 64]
    changed = bytearray(content)
    changed[count[2] : count[2] + 8 * len(counts)] = counts.tobytes()
    changed[start.schema_offset : start.schema_offset + start.schema_bytes] = (
        json.dumps(said, separators=(",", ":")).encode().ljust(start.schema_bytes)
    )
    parts = Parts(bytes(changed), extent_bytes=4096)
    for name, columns in made.items():
        parts.tables[name] = np.zeros(4, parts.tables[name].dtype)
        for field, values in columns.items():
            parts.tables[name][field] = values
    return parts.to_bytes()


def _example(name: str, fields: Sequence[str]) -> dict[str, Any]:
    """Four records that say something: times ascend, numbers of other records exist."""
    named = {one.field for one in bounds.REFERENCES if one.table == name}
    columns: dict[str, Any] = {
        field: np.arange(4) * 1_000_000 if field.endswith("_ns") else [1000, 3000, 2000, 1500] for field in fields
    }
    columns |= {field: 0 if field in ("process", "device") else 1 for field in named}
    exact = {
        "holder_searches": {"first_path": 0, "first_block": 0, "first_reference": 0, "paths": 4, "blocks": 4,
            "references_between": 4, "target": 2, "failure": 0},
        "holder_paths": {"parent": 0, "dominator": 0, "kind": 1, "shared": 0}, "holder_blocks": {"path": 1},
        "holder_references": {"from": 1, "to": 2},
        "live_snapshots": {"slice": 0, "first_account": 1}, "scopes": {"depth": 0},
        "processes": {"pid": [1, 2, 3, 4], "exit_status": 0},
    }  # fmt: skip
    return columns | exact.get(name, {})


def mutant(content: bytes, random: Random, most: int = 3) -> tuple[bytes, str]:
    """The capture with up to `most` of its parts changed, and what they are."""
    parts = Parts(content)
    done = [random.choice(MUTATIONS)(parts, random) for _ in range(random.randint(1, most))]
    return parts.to_bytes(), "; ".join(done)


def _filled(parts: Parts, random: Random) -> str:
    return random.choice([name for name, records in parts.tables.items() if len(records) and records.dtype.names])


def _value(kind: np.dtype[Any], random: Random) -> Any:
    value = random.choice(TELLING) % (1 << 8 * kind.base.itemsize)
    return np.array([value], f"<u{kind.base.itemsize}").view(kind.base)[0]


def a_column(parts: Parts, random: Random) -> str:
    """One value in all records, or in each the one of another record, or ascending."""
    name = _filled(parts, random)
    records = parts.tables[name]
    field = random.choice(records.dtype.names)
    manner = random.randrange(4)
    if manner == 0:
        records[field] = _value(records.dtype[field], random)
    elif manner == 1:
        records[field] = records[field][
            np.random.default_rng(random.randrange(1 << 30)).integers(0, len(records), len(records))
        ]
    elif manner == 2:
        records[field] = records[field][::-1].copy()
    else:
        step = np.arange(len(records)) * random.choice((1, 2, 1000, 10**9))
        records[field] = step.reshape(-1, *[1] * (records[field].ndim - 1)).astype(records.dtype[field].base)
    return f"{name}.{field} {('set', 'mixed', 'reversed', 'ascending')[manner]}"


def a_table_grown(parts: Parts, random: Random) -> str:
    """The records of a table again and again, up to what it may hold and beyond; of an empty one, zeros."""
    name = random.choice([name for name, records in parts.tables.items() if records.dtype.names])
    records, most = parts.tables[name], bounds.MOST_RECORDS.get(name, 1 << 20)
    wanted = random.choice((100, 1000, 1000, 10_000, 10_000, 100_000, most, most + 1))
    count = max(1, min(wanted, MOST_GROWN_BYTES // records.dtype.itemsize))
    if len(records):
        parts.tables[name] = np.tile(records, -(-count // len(records)))[:count]
    else:
        parts.tables[name] = np.zeros(count, records.dtype)
    return f"{name} of {count} records"


def a_table_emptied(parts: Parts, random: Random) -> str:
    name = _filled(parts, random)
    left = random.choice((0, 1, len(parts.tables[name]) // 2))
    parts.tables[name] = parts.tables[name][:left]
    return f"{name} of {left} records"


def a_long_text(parts: Parts, random: Random) -> str:
    """One text in the place of all that a field names."""
    among = [one for one in bounds.REFERENCES if one.target == "strings" and len(parts.tables.get(one.table, ()))]
    one = random.choice(among)
    length = random.choice((5_000, 100_000, 100_000, 1 << 20, 1 << 23))
    text = random.choice((b"x", b"\n", b"\xff", "\u202e".encode(), b"/a", b"[", b"\0")) * length
    parts.tables[one.table][one.field] = parts.add_strings([text[:length]])
    return f"{one.table}.{one.field}: a text of {length} bytes"


def a_fact(parts: Parts, random: Random) -> str:
    key, value = random.choice(list(bounds.FACTS)), random.choice(TEXTS)
    parts.add_facts((key, value))
    return f"fact {key} = {value[:20]!r}"


def many_facts(parts: Parts, random: Random) -> str:
    count = random.choice((100, 2000))
    name = random.choice(("cell {}.py", "fact {}"))
    parts.add_facts(*((name.format(number), f"cell [{number}]\nx = 1") for number in range(count)))
    return f"{count} facts"


def a_header_field(parts: Parts, random: Random) -> str:
    field = random.choice([name for name in parts.schema.header.names or () if name not in ("table_count", "boot_id")])
    kind = parts.schema.header[field]
    parts.header[field] = _value(kind, random)
    return f"header.{field}"


MUTATIONS: tuple[Callable[[Parts, Random], str], ...] = (
    a_column, a_column, a_column, a_table_grown, a_table_emptied, a_long_text, a_fact, a_fact, many_facts,
    a_header_field, a_header_field,
)  # fmt: skip


# Files around captures


def merged_mutant(content: bytes, random: Random) -> tuple[bytes, str]:
    """A merged capture with its index, a member or its bytes changed."""
    manner = random.randrange(4)
    if manner == 0:
        return bytes_changed(content, random)
    with zipfile.ZipFile(BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    names = list(members)
    index = json.loads(members[names[0]])
    entry = random.choice([*index["captures"], *([index["rows"]] if "rows" in index else [])])
    name = entry["name"]
    if manner == 1:
        entry[random.choice(list(entry))] = random.choice(
            ("", "../x", names[0], -1, 0, 1, 1 << 32, 1 << 63, None, [], {}, "x" * 9999)
        )
    elif manner == 2:
        zeros = random.choice((1 << 16, 9 << 20, 40 << 20))
        members[name] = members[name][: random.choice((0, 1 << 18))] + bytes(zeros)
        entry["bytes"] = len(members[name])
    else:
        members[name] = members[name][: random.randrange(len(members[name]) + 1)]
    members[names[0]] = json.dumps(index).encode()
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number, (member, data) in enumerate(members.items()):
            archive.writestr(zipfile.ZipInfo(member), data, zipfile.ZIP_DEFLATED if number else zipfile.ZIP_STORED, 1)
    return stream.getvalue(), f"merged: {('', 'index', 'zeros', 'truncated')[manner]} of {name}"


def rows_mutant(content: bytes, random: Random) -> tuple[bytes, str]:
    """The index of a run with rows changed, or many more of them."""
    if random.random() < 0.3:
        return bytes_changed(content, random)
    rows = [json.loads(line) for line in content.splitlines() if line.strip()]
    row = random.choice(rows)
    key = random.choice(list(row))
    row[key] = random.choice((*TEXTS[:-6], -1, 0, 1 << 31, 1 << 61, 1 << 64, None, [], {}, True))
    rows += [dict(row, pid=number) for number in range(random.choice((0, 0, 100, 2000)))]
    lines = [json.dumps(one).encode()[:511].ljust(511) + b"\n" for one in rows]
    return b"".join(lines), f"index: {key} of {row.get('event')!r:.20}, {len(rows)} rows"


def bytes_changed(content: bytes, random: Random) -> tuple[bytes, str]:
    changed = bytearray(content)
    for _ in range(random.randint(1, 6)):
        at = random.choice(
            (
                random.randrange(len(changed)),
                max(0, len(changed) - random.randint(1, 300)),
                random.randrange(min(400, len(changed))),
            )
        )
        changed[at] = random.randrange(256)
    if random.random() < 0.2:
        del changed[random.randrange(len(changed)) :]
    return bytes(changed), "bytes of it"
