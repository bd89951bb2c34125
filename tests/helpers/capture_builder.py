"""A writer of captures in Python: the second, readable definition of `native/capture/format.h`, for tests and
benchmarks.

`Recording` follows the engine's rules event by event, the lazily saved mark included, and can stop after any single
store. `assemble` lays finished tables out as a file.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAGIC = b"\x89HIW\r\n\x1a\n"
EXTENT_BYTES = 128 * 1024
HEADER_BYTES = 4096
SCHEMA_BYTES = 12 * 1024
MAX_EXTENTS = 28 * 1024
DIRECTORY_OFFSET = HEADER_BYTES + SCHEMA_BYTES
FIRST_EXTENT_OFFSET = 256 * 1024
KINDS = ("python", "native", "mapping", "device", "shared", "file", "attached", "reserved", "slack")
COUNTED_KINDS = KINDS[:5]

RECORDING, ENDED, FAILED = 1, 2, 3
PYTHON_CODE, THREAD, NATIVE_THREAD, LABEL = range(4)

RECORDS: dict[str, list[tuple[Any, ...]]] = {
    "strings": [("offset", "<u8"), ("length", "<u4"), ("reserved", "<u4")],
    "codes": [("function", "<u4"), ("file", "<u4"), ("first_line", "<u4"), ("kind", "<u4")],
    "nodes": [("parent", "<u4"), ("code", "<u4"), ("line", "<u4"), ("reserved", "<u4")],
    "accounts": [
        ("live_bytes", "<i8"), ("live_blocks", "<i8"), ("saved_bytes", "<i8"), ("saved_blocks", "<i8"),
        ("generation", "<u8"), ("total_bytes", "<u8"), ("total_blocks", "<u8"), ("node", "<u4"), ("kind", "<u2"),
        ("sampled", "<u2"),
    ],
    "account_peaks": [("peak_bytes", "<i8"), ("peak_blocks", "<i8"), ("entered_bytes", "<i8"), ("temporaries", "<u8")],
    "slices": [
        ("start_ns", "<u8"), ("end_ns", "<u8"), ("peak_ns", "<u8"), ("peak_bytes", "<i8"), ("peak_blocks", "<i8"),
        ("first_entry", "<u8"), ("entry_count", "<u8"), ("unlisted_bytes", "<i8"),
    ],
    "slice_entries": [("account", "<u4"), ("blocks", "<u4"), ("bytes", "<i8")],
    "timeline": [("at_ns", "<u8"), ("resident_bytes", "<i8"), ("live_bytes", "<i8", (9,))],
    "facts": [("key", "<u4"), ("value", "<u4")],
    "markers": [("at_ns", "<u8"), ("value", "<u8"), ("kind", "<u4"), ("node", "<u4")],
    "pressure": [
        ("at_ns", "<u8"), ("address_space_bytes", "<i8"), ("address_space_limit", "<i8"), ("cgroup_bytes", "<i8"),
        ("cgroup_limit", "<i8"), ("available_bytes", "<i8"), ("shared_excess_bytes", "<i8"), ("private_bytes", "<i8"),
    ],
}  # fmt: skip
TABLES = ("string_bytes", *RECORDS)
DTYPES = {name: np.dtype([(f[0], f[1], *f[2:]) for f in fields]) for name, fields in RECORDS.items()}


def _epoch(number: int) -> list[tuple[str, Any]]:
    return [
        (f"epoch{number}_peak_bytes", ctypes.c_int64), (f"epoch{number}_peak_blocks", ctypes.c_int64),
        (f"epoch{number}_peak_ns", ctypes.c_uint64), (f"epoch{number}_slice_start_ns", ctypes.c_uint64),
    ]  # fmt: skip


class HeaderBeforeEvents(ctypes.Structure):
    """The header up to the part that changes with every event, which begins at the next multiple of 64."""

    _fields_ = (
        ("magic", ctypes.c_char * 8), ("version", ctypes.c_uint32), ("header_bytes", ctypes.c_uint32),
        ("extent_bytes", ctypes.c_uint64), ("schema_offset", ctypes.c_uint64), ("schema_bytes", ctypes.c_uint64),
        ("directory_offset", ctypes.c_uint64), ("first_extent_offset", ctypes.c_uint64),
        ("max_extents", ctypes.c_uint32), ("extents_used", ctypes.c_uint32), ("state", ctypes.c_uint32),
        ("pid", ctypes.c_uint32), ("process_start_ticks", ctypes.c_uint64), ("boot_id", ctypes.c_char * 40),
        ("started_unix_ns", ctypes.c_uint64), ("started_ns", ctypes.c_uint64), ("heartbeat_ns", ctypes.c_uint64),
        ("ended_ns", ctypes.c_uint64), ("exit_code", ctypes.c_int32), ("counted_kinds", ctypes.c_uint32),
        ("sample_bytes", ctypes.c_uint64), ("lost_events", ctypes.c_uint64), ("stop_reason", ctypes.c_uint32),
        ("table_total", ctypes.c_uint32), ("resident_start_bytes", ctypes.c_int64),
        ("resident_last_bytes", ctypes.c_int64), ("resident_peak_bytes", ctypes.c_int64),
        ("resident_error_bytes", ctypes.c_int64), ("resident_exact", ctypes.c_uint32), ("epoch_index", ctypes.c_uint32),
        *_epoch(0), *_epoch(1), ("overhead_bytes", ctypes.c_uint64), ("table_count", ctypes.c_uint64 * 16),
        ("exact_total_bytes", ctypes.c_uint64), ("exact_total_blocks", ctypes.c_uint64),
        ("inherited_bytes", ctypes.c_uint64),
    )  # fmt: skip


class HeaderOfEvents(ctypes.Structure):
    _fields_ = (
        ("live_bytes", ctypes.c_int64), ("live_blocks", ctypes.c_int64), ("slice_peak_bytes", ctypes.c_int64),
        ("slice_peak_blocks", ctypes.c_int64), ("generation", ctypes.c_uint64), ("slice_peak_ns", ctypes.c_uint64),
        ("kind_live_bytes", ctypes.c_int64 * 9),
    )  # fmt: skip


EVENTS_OFFSET = -(-ctypes.sizeof(HeaderBeforeEvents) // 64) * 64


# The first 60 bytes say where things lie; they are fixed, and the schema leaves them out.
FIXED = (
    "magic", "header_bytes", "extent_bytes", "schema_offset", "schema_bytes", "directory_offset", "first_extent_offset",
    "max_extents",
)  # fmt: skip


def header_fields() -> list[list[Any]]:
    """The schema's description of the header: [name, dtype, offset] or [name, dtype, offset, count]."""
    fields = []
    parts: tuple[tuple[Any, int], ...] = ((HeaderBeforeEvents, 0), (HeaderOfEvents, EVENTS_OFFSET))
    for part, base in parts:
        for name, kind in part._fields_:
            if name in FIXED:
                continue
            offset = base + getattr(part, name).offset
            if issubclass(kind, ctypes.Array) and kind._type_ is ctypes.c_char:
                fields.append([name, f"S{ctypes.sizeof(kind)}", offset])
            elif issubclass(kind, ctypes.Array):
                fields.append([name, np.dtype(kind._type_).str, offset, kind._length_])
            else:
                fields.append([name, np.dtype(kind).str, offset])
    return fields


def schema() -> dict[str, Any]:
    tables: list[dict[str, Any]] = [{"name": "string_bytes", "record_bytes": 1, "fields": []}]
    for name, record in DTYPES.items():
        fields = []
        for field_name in record.names or ():
            fields_of: Any = record.fields
            kind, offset = fields_of[field_name][:2]
            fields.append([field_name, kind.base.str, offset, *kind.shape])
        tables.append({"name": name, "record_bytes": record.itemsize, "fields": fields})
    return {"format": "hiwater.capture", "version": 3, "header": header_fields(), "tables": tables}


def assemble(
    header: Mapping[str, Any], tables: Mapping[str, np.ndarray[Any, Any]], *, shuffle: int | None = None
) -> bytes:
    """The bytes of a capture. `shuffle` seeds a mixing of the extents, as when tables grow side by side."""
    extents: list[tuple[int, int, bytes]] = []
    counts = [0] * 16
    for number, name in enumerate(TABLES):
        records = tables.get(name, np.zeros(0, DTYPES.get(name, np.dtype("u1"))))
        counts[number] = len(records)
        in_extent = EXTENT_BYTES // records.dtype.itemsize
        for chunk, first in enumerate(range(0, len(records), in_extent)):
            extents.append((number, chunk, records[first : first + in_extent].tobytes()))
    if shuffle is not None:
        np.random.default_rng(shuffle).shuffle(extents)
    directory = struct.pack(f"<{len(extents)}I", *(number << 24 | chunk for number, chunk, _ in extents))
    text = json.dumps(schema()).encode().ljust(SCHEMA_BYTES, b"\0")
    fixed = {
        "magic": MAGIC, "version": 3, "header_bytes": HEADER_BYTES, "extent_bytes": EXTENT_BYTES,
        "schema_offset": HEADER_BYTES, "schema_bytes": SCHEMA_BYTES, "directory_offset": DIRECTORY_OFFSET,
        "first_extent_offset": FIRST_EXTENT_OFFSET, "max_extents": MAX_EXTENTS, "extents_used": len(extents),
        "counted_kinds": len(COUNTED_KINDS), "table_total": len(TABLES), "table_count": counts, "state": ENDED,
        "exit_code": 0,
    }  # fmt: skip
    body = b"".join(data.ljust(EXTENT_BYTES, b"\0") for _, _, data in extents)
    start = _pack_header({**fixed, **header}) + text + directory
    return start.ljust(FIRST_EXTENT_OFFSET, b"\0") + body


def _pack_header(values: Mapping[str, Any]) -> bytes:
    before, events = HeaderBeforeEvents(), HeaderOfEvents()
    for name, value in values.items():
        target: Any = events if any(name == known for known, _ in HeaderOfEvents._fields_) else before
        kind = dict(target._fields_)[name]
        setattr(target, name, kind(*value) if isinstance(value, (list, tuple)) else value)
    return (bytes(before).ljust(EVENTS_OFFSET, b"\0") + bytes(events)).ljust(HEADER_BYTES, b"\0")


@dataclass
class Account:
    node: int
    kind: int
    live: list[int] = field(default_factory=lambda: [0, 0])  # bytes, blocks
    saved: list[int] = field(default_factory=lambda: [0, 0])
    peak: list[int] = field(default_factory=lambda: [0, 0])
    total: list[int] = field(default_factory=lambda: [0, 0])
    generation: int = 0
    entered: int = 0
    temporaries: int = 0


class Recording:
    """A recorder of pretended events. Each public method that records is an iterator's worth of single stores;
    `on_store`, when given, is called after every one of them."""

    def __init__(self, on_store: Callable[[], None] | None = None) -> None:
        self._on_store = on_store or (lambda: None)
        self.strings: dict[str | bytes, int] = {"": 0}
        self.codes: dict[tuple[int, int, int, int], int] = {(0, 0, 0, 0): 0}
        self.nodes: dict[tuple[int, int, int], int] = {(0, 0, 0): 0}
        self.accounts: dict[tuple[int, int], Account] = {(0, 0): Account(0, 0)}
        self.slices: list[tuple[int, ...]] = []
        self.entries: list[tuple[int, int, int]] = []
        self.timeline: list[tuple[Any, ...]] = []
        self.mapped_bytes: list[int] = []
        self.facts: list[tuple[int, int]] = []
        self.markers: list[tuple[int, int, int, int]] = []
        self.pressure: list[tuple[int, ...]] = []
        self.now_ns = 0
        self.header: dict[str, Any] = {
            "live_bytes": 0, "live_blocks": 0, "slice_peak_bytes": 0, "slice_peak_blocks": 0, "generation": 1,
            "slice_peak_ns": 0,
            "kind_live_bytes": [0] * len(KINDS), "epoch_index": 0, "state": RECORDING, "pid": 4242, "exit_code": -1,
            "started_unix_ns": 1_700_000_000_000_000_000, "boot_id": b"a-boot-long-ago", "process_start_ticks": 77,
            "resident_exact": 1, "resident_peak_bytes": 64 << 20, "resident_start_bytes": 16 << 20,
            "resident_last_bytes": 32 << 20,
        }  # fmt: skip

    def string(self, text: str | bytes) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def code(self, function: str, file: str = "", first_line: int = 0, kind: int = PYTHON_CODE) -> int:
        key = (self.string(function), self.string(file), first_line, kind)
        return self.codes.setdefault(key, len(self.codes))

    def node(self, parent: int, code: int, line: int = 0) -> int:
        return self.nodes.setdefault((parent, code, line), len(self.nodes))

    def thread(self, name: str = "MainThread") -> int:
        return self.node(0, self.code(name, kind=THREAD))

    def path(self, *frames: tuple[str, str, int], thread: str = "MainThread") -> int:
        """The node of (function, file, line) frames, root first."""
        node = self.thread(thread)
        for function, file, line in frames:
            node = self.node(node, self.code(function, file, 1), line)
        return node

    def fact(self, key: str, value: str) -> None:
        self.facts.append((self.string(key), self.string(value)))

    def allocate(self, node: int, size: int, kind: str = "python", blocks: int = 1) -> None:
        account = self._account(node, kind)
        account.total[0] += size
        account.total[1] += blocks
        self._change(account, size, blocks)

    def free(self, node: int, size: int, kind: str = "python", blocks: int = 1) -> None:
        self._change(self._account(node, kind), -size, -blocks)

    def _account(self, node: int, kind: str) -> Account:
        number = KINDS.index(kind)
        return self.accounts.setdefault((node, number), Account(node, number))

    def _change(self, account: Account, size: int, blocks: int) -> None:
        """One event, store by store."""
        for _ in self._stores(account, size, blocks):
            self._on_store()
        self.now_ns += 1_000_000

    def _stores(self, account: Account, size: int, blocks: int) -> Iterator[None]:
        header = self.header
        if account.generation != header["generation"]:
            account.saved = list(account.live)
            yield
            account.generation = header["generation"]
            yield
        account.live[0] += size
        account.live[1] += blocks
        yield
        header["kind_live_bytes"][account.kind] += size
        if account.kind >= len(COUNTED_KINDS):
            return
        header["live_bytes"] += size
        header["live_blocks"] += blocks
        yield
        if header["live_bytes"] > header["slice_peak_bytes"]:
            header["slice_peak_bytes"], header["slice_peak_blocks"] = header["live_bytes"], header["live_blocks"]
            header["slice_peak_ns"] = self.now_ns
            yield
            header["generation"] += 1
            yield

    def at_slice_peak(self, account: Account) -> list[int]:
        return list(account.saved if account.generation == self.header["generation"] else account.live)

    def close_slice(self) -> None:
        """End the open slice: list what changed, keep its peak when it is the highest, begin the next."""
        header = self.header
        first = len(self.entries)
        prefix, other = f"epoch{header['epoch_index']}_", f"epoch{1 - header['epoch_index']}_"
        best = header.get(prefix + "peak_bytes", 0)
        is_best = header["slice_peak_bytes"] > best
        for number, account in enumerate(self.accounts.values()):
            size, blocks = self.at_slice_peak(account)
            if size != account.entered:
                self.entries.append((number, blocks, size))
                account.entered = size
            if is_best:
                account.peak = [size, blocks]
        start = header.get(prefix + "slice_start_ns", 0)
        self.slices.append(
            (
                start,
                self.now_ns,
                header["slice_peak_ns"],
                header["slice_peak_bytes"],
                header["slice_peak_blocks"],
                first,
                len(self.entries) - first,
                0,
            )
        )
        for name, source in (
            ("peak_bytes", "slice_peak_bytes"),
            ("peak_blocks", "slice_peak_blocks"),
            ("peak_ns", "slice_peak_ns"),
        ):
            header[other + name] = header[source] if is_best else header.get(prefix + name, 0)
        header[other + "slice_start_ns"] = self.now_ns
        header["epoch_index"] = 1 - header["epoch_index"]
        self._on_store()
        header["slice_peak_bytes"], header["slice_peak_blocks"], header["slice_peak_ns"] = (
            header["live_bytes"],
            header["live_blocks"],
            self.now_ns,
        )
        header["generation"] += 1
        self._on_store()

    def sample(self, resident_bytes: int, mapped_bytes: int = 0) -> None:
        """The latter is not in the file, as in those of `hiwater sample`: see `with_mapped_pages`."""
        self.mapped_bytes.append(mapped_bytes)
        self.timeline.append((self.now_ns, resident_bytes, list(self.header["kind_live_bytes"])))

    def look_at_shared(self, excess_bytes: int, private_bytes: int) -> None:
        """A reading of the pages that other processes count, too, and of those that they do not have. -1: there was
        none since the last fork."""
        self.pressure.append((self.now_ns, *[-1] * 5, excess_bytes, private_bytes))

    def end(self, exit_code: int = 0) -> None:
        self.header.update(state=ENDED, ended_ns=self.now_ns, exit_code=exit_code)

    def tables(self) -> dict[str, np.ndarray[Any, Any]]:
        texts = [text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass") for text in self.strings]
        strings, offset = [], 0
        for text in texts:
            strings.append((offset, len(text), 0))
            offset += len(text)
        sampled = 2 if self.header.get("sample_bytes") else 0  # objects and malloc's blocks; mappings never are
        accounts = [
            (
                *account.live,
                *account.saved,
                account.generation,
                *account.total,
                account.node,
                account.kind,
                int(account.kind < sampled),
            )
            for account in self.accounts.values()
        ]
        peaks = [(*account.peak, account.entered, account.temporaries) for account in self.accounts.values()]
        rows = {
            "strings": strings, "codes": list(self.codes), "nodes": [(*node, 0) for node in self.nodes],
            "accounts": accounts, "account_peaks": peaks, "slices": self.slices, "slice_entries": self.entries,
            "timeline": self.timeline, "facts": self.facts, "markers": self.markers,
            "pressure": self.pressure,
        }  # fmt: skip
        tables = {name: np.array(records, DTYPES[name]) for name, records in rows.items()}
        return {"string_bytes": np.frombuffer(b"".join(texts), np.uint8), **tables}

    def to_bytes(self, *, shuffle: int | None = None) -> bytes:
        return assemble({"heartbeat_ns": self.now_ns, **self.header}, self.tables(), shuffle=shuffle)
