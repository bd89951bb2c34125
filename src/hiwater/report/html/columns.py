"""Whole numbers as a page carries them: columns of bytes, all lowest bytes of a column first, one after the other, deflated together.

A number takes as many bytes as the largest of its column needs, and the planes of high bytes, which are mostly zeros, cost
next to nothing once deflated. The other end is `web/src/columns.ts`.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

_LENGTH = struct.Struct("<I")


class PackedColumns:
    """Takes columns and gives each its place; `packed` is all of them with the text that speaks of them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def add(self, values: npt.ArrayLike) -> dict[str, int]:
        """Return the description of this column: place, count, bytes for each number, and whether numbers are zigzag."""
        numbers = np.asarray(values, np.int64)
        is_signed = bool(len(numbers)) and int(numbers.min()) < 0
        raw = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64) if is_signed else numbers.astype(np.uint64)
        width = (int(raw.max(initial=0)).bit_length() + 7) // 8
        planes = np.ascontiguousarray(raw).view(np.uint8).reshape(len(raw), 8)[:, :width].T
        part = planes.tobytes()
        column = {"at": self._at, "count": len(numbers), "width": width, "signed": int(is_signed)}
        self._parts.append(part)
        self._at += len(part)
        return column

    def packed(self, head: dict[str, Any]) -> str:
        """Base64 of the deflated whole: the length of the head's text, the head as JSON, the columns."""
        text = json.dumps(head, separators=(",", ":")).encode("ascii")
        packer = zlib.compressobj(6)
        pieces = [packer.compress(_LENGTH.pack(len(text)) + text)]
        pieces += [packer.compress(part) for part in self._parts]
        return base64.b64encode(b"".join([*pieces, packer.flush()])).decode("ascii")


class Unpacked:
    """What a page holds, read back: for tests, and for whoever wants a page's figures."""

    def __init__(self, text: str) -> None:
        content = zlib.decompress(base64.b64decode(text, validate=True))
        length = _LENGTH.unpack_from(content)[0]
        self.head: dict[str, Any] = json.loads(content[_LENGTH.size : _LENGTH.size + length])
        self._columns = content[_LENGTH.size + length :]

    def column(self, described: dict[str, int]) -> npt.NDArray[np.int64]:
        """The numbers of a column."""
        count, width = described["count"], described["width"]
        planes = np.frombuffer(self._columns, np.uint8, count * width, described["at"]).reshape(width, count)
        raw = np.zeros((count, 8), np.uint8)
        raw[:, :width] = planes.T
        numbers = raw.reshape(-1).view("<u8")
        if not described["signed"]:
            return numbers.astype(np.int64)
        return (numbers >> np.uint64(1)).astype(np.int64) ^ -(numbers & np.uint64(1)).astype(np.int64)
