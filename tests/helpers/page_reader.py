"""Reads a page of `--format html` back: its data, and what it says is held at any moment, by the rules of
`page.schema.json`."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import schemas
from capture_builder import COUNTED_KINDS
from hiwater.report.html import page
from hiwater.report.request import Report

_DATA = re.compile(r'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=]*)</script>')


class Unpacked:
    """The data of a page, read as web/src/columns.ts does."""

    def __init__(self, text: str) -> None:
        content = zlib.decompress(base64.b64decode(text, validate=True))
        length = int.from_bytes(content[:4], "little")
        self.head: dict[str, Any] = json.loads(content[4 : 4 + length])
        self._columns = content[4 + length :]

    def column(self, described: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        count, width = described["count"], described["width"]
        planes = np.frombuffer(self._columns, np.uint8, count * width, described["at"]).reshape(width, count)
        raw = np.zeros((count, 8), np.uint8)
        raw[:, :width] = planes.T
        numbers = raw.reshape(-1).view("<u8")
        if not described["signed"]:
            return numbers.astype(np.int64)
        return (numbers >> np.uint64(1)).astype(np.int64) ^ -(numbers & np.uint64(1)).astype(np.int64)


def page_of(reports: Sequence[Report], source: str = "own") -> str:
    stream = io.StringIO()
    page.write(reports, stream, source)
    return stream.getvalue()


class Page:
    """The data of one capture in a page."""

    def __init__(self, text: str, number: int = 0) -> None:
        found = _DATA.findall(text)
        assert len(found) == 1
        self.unpacked = Unpacked(found[0])
        schemas.check(self.unpacked.head, "page")
        self.capture: dict[str, Any] = self.unpacked.head["captures"][number]
        self.parent = np.arange(self.capture["nodes"]["above"]["count"]) - self.column("nodes", "above")
        self.kind = self.column("holders", "kind")

    def column(self, *names: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        described: Any = self.capture
        for name in names:
            described = described[name]
        return self.unpacked.column(described)

    def slice_bytes(self, number: int, what: str = "bytes") -> np.ndarray[Any, np.dtype[np.int64]]:
        """What each holder had at the high of a slice."""
        changes = int(self.column("changes", "count")[: number + 1].sum())
        held = np.zeros(len(self.kind), np.int64)
        np.add.at(held, self.column("changes", "holder")[:changes], self.column("changes", what)[:changes])
        return held

    def stacks(
        self, held: Any, kinds: Sequence[int] = range(len(COUNTED_KINDS))
    ) -> list[tuple[int, int, str, list[tuple[Any, ...]]]]:
        """(bytes, kind, thread, frames root first) of what is held, largest first and then as recorded: as json has
        them."""
        node = self.column("holders", "node")
        sums: dict[tuple[int, int], int] = {}  # sampled blocks have a holder of their own
        for one in np.flatnonzero(np.isin(self.kind, kinds) & (held != 0)).tolist():
            place = (int(node[one]), int(self.kind[one]))
            sums[place] = sums.get(place, 0) + int(held[one])
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        return [(count, kind, *self.path(where)) for (where, kind), count in ordered]

    def path(self, node: int) -> tuple[str, list[tuple[Any, ...]]]:
        threads = {thread["node"]: thread["name"] for thread in self.capture["threads"]}
        functions, names = self.capture["functions"], [file["name"] for file in self.capture["files"]]
        frame, frames, thread = self.column("nodes", "frame"), [], ""
        function, file, line = (self.column("frames", name) for name in ("function", "file", "line"))
        while node:
            if node in threads:
                thread = threads[node]
            else:
                at = frame[node]
                frames.append((functions[function[at]], names[file[at]], int(line[at])))
            node = int(self.parent[node])
        return thread, frames[::-1]
