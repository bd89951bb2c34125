"""Packs integers for a page: in each column all lowest bytes come first, then all second bytes and so on. All columns
are deflated together.

A number has as many bytes as the largest one of its column. The high bytes are mostly zeros, and compress to almost
nothing. `web/src/columns.ts` reads the columns.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Annotated, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from hiwater.capture.document_types import Keywords
from hiwater.report.document import text_of

_LENGTH = struct.Struct("<I")
_PIECE = 1 << 20


class PackedColumn(TypedDict):
    """Whole numbers: the lowest bytes of all, then the next bytes of all, and so on."""

    at: int
    """first byte after the text"""
    count: int
    width: Annotated[int, Keywords(maximum=8)]
    """bytes of each number"""
    signed: Literal[0, 1]
    """1: n stands for -(n+1)/2 when odd, n/2 when even"""


class PackedColumns:
    """Collects columns. `packed` has all of them, and the JSON that refers to them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0
        self._packed = 0

    @property
    def packed_bytes(self) -> int:
        """About how many bytes the columns take in the page."""
        return self._packed

    def add(self, values: npt.ArrayLike) -> PackedColumn:
        """Return the description of this column."""
        numbers = np.asarray(values, np.int64)
        is_signed = bool(len(numbers)) and int(numbers.min()) < 0
        raw = ((numbers << 1) ^ (numbers >> 63)).astype(np.uint64) if is_signed else numbers.astype(np.uint64)
        width = (int(raw.max(initial=0)).bit_length() + 7) // 8
        planes = np.ascontiguousarray(raw).view(np.uint8).reshape(len(raw), 8)[:, :width].T
        part = planes.tobytes()
        column: PackedColumn = {"at": self._at, "count": len(numbers), "width": width, "signed": 1 if is_signed else 0}
        self._parts.append(part)
        self._at += len(part)
        self._packed += len(zlib.compress(part, 1))
        return column

    def packed(self, head: object) -> str:
        """Base64 of the deflated whole: the length of the head's text, the head as JSON, the columns."""
        text = text_of(head, None, (",", ":"))
        packer = zlib.compressobj(6)
        pieces = [packer.compress(_LENGTH.pack(len(text)))]
        pieces += [packer.compress(text[at : at + _PIECE].encode("ascii")) for at in range(0, len(text), _PIECE)]
        pieces += [packer.compress(part) for part in self._parts]
        return base64.b64encode(b"".join([*pieces, packer.flush()])).decode("ascii")
