"""A second reader of captures, written from `native/capture/format.h` alone and with nothing but the standard library.

It is slow and simple on purpose: the product's reader and this one check each other.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b"\x89HIW\r\n\x1a\n"
KINDS = ("python", "native", "mapping", "device", "shared", "file", "attached", "reserved", "slack")
COUNTED = KINDS[:5]
CODE_KINDS = ("python", "thread", "native_thread", "label")
CODES = {"u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q", "f8": "d"}


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int
    kind: str = "python"


@dataclass(frozen=True)
class Stack:
    kind: str
    thread: str
    frames: tuple[Frame, ...]  # root first
    bytes: int
    blocks: int

    @property
    def leaf(self) -> Frame | None:
        """The innermost Python frame."""
        return next((frame for frame in reversed(self.frames) if frame.kind == "python"), None)

    def passes(self, function: str) -> bool:
        return any(frame.function == function for frame in self.frames)


def unpack(data: bytes, base: int, dtype: str, count: int = 1) -> Any:
    kind = dtype.lstrip("<>|=")
    if kind.startswith("S"):
        return data[base : base + int(kind[1:])].split(b"\0", 1)[0]
    values = struct.unpack_from(f"<{count}{CODES[kind]}", data, base)
    return values[0] if count == 1 else list(values)


def records(data: bytes, record_bytes: int, fields: list[list[Any]]) -> list[dict[str, Any]]:
    """The records of a table. Those of numbers alone, the large ones, are unpacked a record at a time."""
    if any(len(field) > 3 or "S" in field[1] for field in fields):
        return [
            {name: unpack(data, base + offset, dtype, *count) for name, dtype, offset, *count in fields}
            for base in range(0, len(data), record_bytes)
        ]
    in_order, layout = sorted(fields, key=lambda field: field[2]), "<"
    for _, dtype, offset in in_order:
        layout += f"{offset - struct.calcsize(layout)}x{CODES[dtype.lstrip('<>|=')]}"
    layout += f"{record_bytes - struct.calcsize(layout)}x"
    names = [name for name, _, _ in in_order]
    return [dict(zip(names, values, strict=True)) for values in struct.iter_unpack(layout, data)]


@dataclass
class NaiveCapture:
    data: bytes
    header: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    text: bytes = b""
    _calls: dict[int, tuple[int, Frame]] = field(default_factory=dict)

    # Reading the file

    def load(self) -> None:
        assert self.data[:8] == MAGIC, self.data[:8]
        version, _header_bytes, extent_bytes, schema_offset, schema_bytes, directory_offset, first_extent_offset = (
            struct.unpack_from("<IIQQQQQ", self.data, 8)
        )
        assert version == 3, version
        schema = json.loads(self.data[schema_offset : schema_offset + schema_bytes].rstrip(b"\0 "))
        for name, dtype, offset, *count in schema["header"]:
            self.header[name] = unpack(self.data, offset, dtype, *count)
        directory = struct.unpack_from(f"<{self.header['extents_used']}I", self.data, directory_offset)
        extents = [first_extent_offset + number * extent_bytes for number in range(len(directory))]
        for index, table in enumerate(schema["tables"]):
            starts = {
                entry & 0xFFFFFF: at for entry, at in zip(directory, extents, strict=True) if entry >> 24 == index
            }
            raw = self._table_bytes(self.header["table_count"][index], table["record_bytes"], starts, extent_bytes)
            if table["name"] == "string_bytes":
                self.text = raw
            else:
                self.tables[table["name"]] = records(raw, table["record_bytes"], table["fields"])

    def _table_bytes(self, count: int, record_bytes: int, starts: dict[int, int], extent_bytes: int) -> bytes:
        """The table's records, joined. None lies across two extents; the rest of an extent is left empty."""
        per_extent = extent_bytes // record_bytes
        pieces = []
        for chunk in range((count + per_extent - 1) // per_extent):
            records = min(per_extent, count - chunk * per_extent)
            pieces.append(self.data[starts[chunk] : starts[chunk] + records * record_bytes])
        joined = b"".join(pieces)
        assert len(joined) == count * record_bytes, f"a table is cut: {len(joined)} of {count * record_bytes} bytes"
        return joined

    # What it says

    def string(self, index: int) -> str:
        record = self.tables["strings"][index]
        return self.text[record["offset"] : record["offset"] + record["length"]].decode()

    @property
    def facts(self) -> dict[str, str]:
        return {self.string(fact["key"]): self.string(fact["value"]) for fact in self.tables["facts"]}

    @property
    def peak_bytes(self) -> int:
        return max(int(self.header["slice_peak_bytes"]), self._epoch("peak_bytes"))

    @property
    def peak_blocks(self) -> int:
        return self._epoch("peak_blocks") if self._peak_is_past() else int(self.header["slice_peak_blocks"])

    def _epoch(self, name: str) -> int:
        return int(self.header[f"epoch{self.header['epoch_index']}_{name}"])

    def _peak_is_past(self) -> bool:
        return int(self.header["slice_peak_bytes"]) <= self._epoch("peak_bytes")

    def frames(self, node: int) -> tuple[str, tuple[Frame, ...]]:
        """The thread's name and the frames of a node, root first."""
        found: list[Frame] = []
        thread = ""
        while node:
            parent, frame = self._calls.get(node) or self._call(node)
            if frame.kind == "thread":
                thread = frame.function
            else:
                found.append(frame)
            node = parent
        return thread, tuple(reversed(found))

    def _call(self, node: int) -> tuple[int, Frame]:
        """The node's parent and its own frame, kept: most stacks have the frames next to the root in common."""
        record = self.tables["nodes"][node]
        assert record["parent"] < node, "a node is older than its parent"
        code = self.tables["codes"][record["code"]]
        frame = Frame(
            self.string(code["function"]), self.string(code["file"]), record["line"], CODE_KINDS[code["kind"]]
        )
        self._calls[node] = record["parent"], frame
        return self._calls[node]

    def accounts(self, at: str) -> Iterator[tuple[dict[str, Any], int, int]]:
        """Every account with the bytes and blocks it held at the "peak" or at the "end"."""
        for index, account in enumerate(self.tables["accounts"]):
            if index == 0:
                continue
            if at == "end":
                yield account, account["live_bytes"], account["live_blocks"]
            elif self._peak_is_past():
                peaks = self.tables["account_peaks"][index]
                yield account, peaks["peak_bytes"], peaks["peak_blocks"]
            else:
                source = "saved" if account["generation"] == self.header["generation"] else "live"
                yield account, account[f"{source}_bytes"], account[f"{source}_blocks"]

    def stacks(self, at: str) -> list[Stack]:
        """What was held, largest first; stacks that held nothing are left out."""
        found = []
        for account, held, blocks in self.accounts(at):
            if held or blocks:
                thread, frames = self.frames(account["node"])
                found.append(Stack(KINDS[account["kind"]], thread, frames, held, blocks))
        return sorted(found, key=lambda stack: -stack.bytes)

    # Whether it is right

    def check(self, in_flight_bytes: int = 0) -> None:
        """The equations of format.h. `in_flight_bytes`: how far one unfinished event may set the sums apart."""
        for at, total in (("peak", self.peak_bytes), ("end", self.header["live_bytes"])):
            held = sum(size for account, size, _ in self.accounts(at) if KINDS[account["kind"]] in COUNTED)
            assert abs(held - total) <= in_flight_bytes, f"{at}: stacks hold {held}, the header says {total}"
        kinds = [0] * len(KINDS)
        for account, size, _ in self.accounts("end"):
            kinds[account["kind"]] += size
        for name, held, total in zip(KINDS, kinds, self.header["kind_live_bytes"], strict=True):
            assert abs(held - total) <= in_flight_bytes, f"{name}: stacks hold {held}, the header says {total}"
        assert self.header["live_bytes"] <= self.peak_bytes + in_flight_bytes
        for at in ("peak", "end"):
            for account, size, blocks in self.accounts(at):
                assert (size >= 0 and blocks >= 0) or -size <= in_flight_bytes, self.frames(account["node"])


def read(path: str | Path) -> NaiveCapture:
    capture = NaiveCapture(Path(path).read_bytes())
    capture.load()
    return capture
