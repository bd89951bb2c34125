"""Captures with something wrong in them: what a failing disk, a bad copy or an ill-meaning hand may leave.

Each mutation knows the layout and changes what it names, so that files get past the first checks: a mutant is mostly a
good capture.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from hiwater.capture.layout import FIRST_BYTES, Table, parse_schema, read_start

START_FIELDS = {  # of the fixed start: offset and struct code
    "version": (8, "I"), "header_bytes": (12, "I"), "extent_bytes": (16, "Q"), "schema_offset": (24, "Q"),
    "schema_bytes": (32, "Q"), "directory_offset": (40, "Q"), "first_extent_offset": (48, "Q"),
    "max_extents": (56, "I"),
}  # fmt: skip
TELLING = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 127, 128, 255, 256, 4095, 4096, 2**15, 2**16, 2**24, 2**31 - 1, 2**31,
    2**32 - 1,
           2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 4096, 2**64 - 1)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, "", "x", "<u8", "<i8", "<u1", "|u1", "<f8", "<f4", "S1", "S9999",
    "O", "V8", "M8[ns]",
    [], {}, [[]], ["x", "<u4", 0], ["x", "<u4", 0, 3],
)  # fmt: skip


class Original:
    """A good capture, and where everything in it lies."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.start = read_start(content[:FIRST_BYTES])
        self.schema = parse_schema(self.schema_text, self.start.header_bytes)
        header = np.frombuffer(content, self.schema.header, 1)[0]
        self.counts: list[int] = header["table_count"].tolist()
        used = int(header["extents_used"])
        self.directory = np.frombuffer(content, "<u4", used, self.start.directory_offset).tolist()

    @property
    def schema_text(self) -> bytes:
        return self.content[self.start.schema_offset :][: self.start.schema_bytes]

    @property
    def used_bytes(self) -> int:
        return self.start.first_extent_offset + len(self.directory) * self.start.extent_bytes

    def record_offset(self, table: Table, number: int) -> int:
        chunk, place = divmod(number, self.start.extent_bytes // table.record.itemsize)
        extent = self.directory.index(table.number << 24 | chunk)
        return self.start.first_extent_offset + extent * self.start.extent_bytes + place * table.record.itemsize

    def mutant(self, random: Random, most: int = 3) -> tuple[bytes, str]:
        """A copy with up to `most` things changed, and what they are."""
        content = bytearray(self.content)
        done = [random.choice(MUTATIONS)(self, content, random) for _ in range(random.randint(1, most))]
        return bytes(content), "; ".join(done)


def put(content: bytearray, offset: int, width: int, random: Random) -> str:
    """Another value in place of the number there: a telling one, one nearby, or the same with a bit flipped."""
    if offset + width > len(content):
        return "nothing: it is cut off"
    before = int.from_bytes(content[offset : offset + width], "little")
    after = random.choice(
        (random.choice(TELLING), before + random.choice((-8, -1, 1, 8)), before ^ 1 << random.randrange(width * 8))
    ) % (1 << 8 * width)
    content[offset : offset + width] = after.to_bytes(width, "little")
    return f"{before} -> {after}"


def in_the_start(original: Original, content: bytearray, random: Random) -> str:
    name = random.choice(list(START_FIELDS))
    offset, code = START_FIELDS[name]
    return f"{name} {put(content, offset, struct.calcsize(code), random)}"


def in_the_header(original: Original, content: bytearray, random: Random) -> str:
    record = original.schema.header
    return f"header.{in_a_record(record, content, 0, random)}"


def in_a_table(original: Original, content: bytearray, random: Random) -> str:
    filled = [table for table in original.schema.tables.values() if original.counts[table.number]]
    table = random.choice(filled)
    number = random.choice((0, 1, original.counts[table.number] - 1, random.randrange(original.counts[table.number])))
    number = min(number, original.counts[table.number] - 1)
    offset = original.record_offset(table, number)
    return f"{table.name}[{number}].{in_a_record(table.record, content, offset, random)}"


def in_a_record(record: np.dtype[Any], content: bytearray, offset: int, random: Random) -> str:
    if record.names is None:
        return f"byte {put(content, offset, 1, random)}"
    fields: Any = record.fields
    name = random.choice(record.names)
    kind, place = fields[name][:2]
    count = kind.shape[0] if kind.shape else 1
    element = random.randrange(count)
    return (
        f"{name}[{element}] "
        f"{put(content, offset + place + element * kind.base.itemsize, min(8, kind.base.itemsize), random)}"
    )


def in_the_counts(original: Original, content: bytearray, random: Random) -> str:
    fields: Any = original.schema.header.fields
    number = random.randrange(len(original.counts))
    return f"count {number} {put(content, fields['table_count'][1] + 8 * number, 8, random)}"


def in_the_directory(original: Original, content: bytearray, random: Random) -> str:
    one, other = (original.start.directory_offset + 4 * random.randrange(len(original.directory) + 1) for _ in range(2))
    if random.random() < 0.5:
        return f"directory {put(content, one, 4, random)}"
    content[one : one + 4], content[other : other + 4] = content[other : other + 4], content[one : one + 4]
    return "directory: two extents exchanged"


def in_the_schema(original: Original, content: bytearray, random: Random) -> str:
    """Any value replaced by another, any entry left out or said twice."""
    said = json.loads(original.schema_text.rstrip(b"\0 \n"))
    target, keys = said, []
    while isinstance(target, dict | list) and target and (len(keys) < 2 or random.random() < 0.7):
        keys.append(random.choice(list(target) if isinstance(target, dict) else range(len(target))))
        parent, target = target, target[keys[-1]]
    manner = random.randrange(3)
    if manner == 0:
        parent[keys[-1]] = random.choice(JSON_VALUES)
    elif manner == 1:
        del parent[keys[-1]]
    elif isinstance(parent, list):
        parent.append(target)
    text = json.dumps(said).encode()
    start = original.start.schema_offset
    content[start : start + original.start.schema_bytes] = text.ljust(original.start.schema_bytes)[
        : original.start.schema_bytes
    ]
    return f"schema {keys}: {('replaced', 'left out', 'twice')[manner]}"


def anywhere(original: Original, content: bytearray, random: Random) -> str:
    for _ in range(random.randint(1, 8)):
        content[random.randrange(min(len(content), original.used_bytes))] = random.randrange(256)
    return "bytes anywhere"


def a_cut(original: Original, content: bytearray, random: Random) -> str:
    length = random.choice((random.randrange(len(content)), len(content) - random.randint(1, 300)))
    del content[max(1, length) :]
    return f"cut to {length}"


def an_extent_of_another(original: Original, content: bytearray, random: Random) -> str:
    one, other = (
        original.start.first_extent_offset + random.randrange(len(original.directory)) * original.start.extent_bytes
        for _ in range(2)
    )
    length = random.choice((16, 64, 4096, original.start.extent_bytes))
    content[one : one + length] = content[other : other + length]
    return f"{length} bytes of an extent come from another"


FIELDS = (in_the_header, in_a_table)
MUTATIONS: tuple[Callable[[Original, bytearray, Random], str], ...] = (
    in_the_start, in_the_header, in_a_table, in_a_table, in_a_table, in_the_counts, in_the_directory, in_the_schema,
    anywhere, a_cut, an_extent_of_another,
)  # fmt: skip
