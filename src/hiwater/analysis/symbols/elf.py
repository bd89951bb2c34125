"""Reads the functions that an ELF file names, what identifies the file, and where more is said of it.

A capture names the file, and may come from elsewhere: only regular files are opened, all sizes are bounded, and what is
in the file is used only if it is the one that was recorded.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from hiwater._os import trust

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_NOTE = struct.Struct("<III")
_LOAD, _BUILD_ID, _NOTES, _SYMBOLS, _DYNAMIC_SYMBOLS, _NO_BYTES = 1, 3, 4, 2, 11, 8
_FUNCTION, _INDIRECT_FUNCTION = 2, 10
_LARGEST_TABLE_BYTES, _LARGEST_NOTES_BYTES, _LONGEST_NAME = 1 << 29, 1 << 16, 4096
_LARGEST_SUMMED_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of one file by address: where each begins and ends, and where its name is."""

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    name: npt.NDArray[np.uint32]
    texts: bytes

    def at(self, address: int) -> str | None:
        """The mangled name of the function that contains an address."""
        index = int(np.searchsorted(self.start, np.uint64(address), side="right")) - 1
        if index < 0 or address >= int(self.end[index]):
            return None
        begin = int(self.name[index])
        return self.texts[begin : self.texts.find(b"\0", begin, begin + _LONGEST_NAME)].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the file, by its header."""

    name: str
    kind: int
    offset: int
    size: int
    link: int


class NotElf(ValueError):
    """The file is not an ELF file of 64 bits, or is damaged."""


class ElfFile:
    """An open ELF file. Close it, or use it as a context manager. Raises OSError or NotElf."""

    def __init__(self, path: str) -> None:
        self.descriptor = trust.open_regular(path, follows=True)  # a library's name is often a link
        try:
            self._read_header()
        except BaseException:
            os.close(self.descriptor)
            raise

    def _read_header(self) -> None:
        self._first = self._read(0, _HEADER.size)
        ident, _, _, _, _, segments_at, sections_at, _, _, size, segments, section_size, sections, names = (
            _HEADER.unpack(self._first)
        )
        if ident[:6] != b"\x7fELF\x02\x01":
            raise NotElf("not an ELF file of 64 bits")
        if (segments and size != _SEGMENT.size) or (sections and section_size != _SECTION.size):
            raise NotElf("its headers have other sizes")
        self._segments_at, self._segments = segments_at, segments
        self._sections_at, self._sections, self._names = sections_at, sections, names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def _read(self, offset: int, size: int) -> bytes:
        if size > _LARGEST_TABLE_BYTES or offset > 1 << 40:
            raise NotElf("a table is too large")
        content = os.pread(self.descriptor, size, offset)
        if len(content) != size:
            raise NotElf("it ends too early")
        return content

    def identity(self) -> str:
        """What a recording has for this file: see native/unwind/modules.h."""
        segments = self._read(self._segments_at, self._segments * _SEGMENT.size)
        read = [*_SEGMENT.iter_unpack(segments)]
        loaded = [(start, start + size) for kind, flags, _, start, _, _, size, _ in read if kind == _LOAD and flags & 4]
        for kind, _, offset, start, _, size, _, _ in read:
            if kind != _NOTES or size > _LARGEST_NOTES_BYTES:
                continue
            is_loaded = any(begin <= start and start + size <= end for begin, end in loaded)
            if is_loaded and (found := _build_id(self._read(offset, size))):
                return found
        total = 0xCBF29CE484222325
        for byte in self._first + segments:
            total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
        return f"headers:{total:016x}"

    @cached_property
    def sections(self) -> list[Section]:
        """All of them, which of a damaged file may say anything."""
        read = [*_SECTION.iter_unpack(self._read(self._sections_at, self._sections * _SECTION.size))]
        table = read[self._names] if self._names < len(read) else None
        texts = self._read(table[4], min(table[5], _LARGEST_NOTES_BYTES)) if table and table[1] != _NO_BYTES else b""
        return [
            Section(texts[name : texts.find(b"\0", name)].decode("ascii", "replace"), kind, offset, size, link)
            for name, kind, _, _, offset, size, link, _, _, _ in read
        ]

    def has_lines(self) -> bool:
        """Whether the file says which line of source an instruction is of."""
        return any(one.name == ".debug_line" and one.kind != _NO_BYTES and one.size > 0 for one in self.sections)

    def debug_link(self) -> tuple[str, int] | None:
        """The name of the file that debug information was moved to, and the checksum of its content."""
        for one in self.sections:
            if one.name == ".gnu_debuglink" and one.kind != _NO_BYTES and 8 <= one.size <= _LONGEST_NAME:
                content = self._read(one.offset, one.size)
                name = content[: content.find(b"\0")].decode("utf-8", "replace")
                return name, int.from_bytes(content[-4:], "little")
        return None

    def checksum(self) -> int:
        """Of the whole content, as a debug link has it."""
        if os.fstat(self.descriptor).st_size > _LARGEST_SUMMED_BYTES:
            raise NotElf("it is too large to be summed")
        total, at = 0, 0
        while content := os.pread(self.descriptor, 1 << 20, at):
            total, at = zlib.crc32(content, total), at + len(content)
        return total

    def functions(self) -> Functions:
        """The functions of all tables of symbols; of several at one address, one."""
        starts, ends, names, texts = [], [], [], b""
        for table in self.sections:
            if table.kind not in (_SYMBOLS, _DYNAMIC_SYMBOLS) or table.link >= len(self.sections):
                continue
            symbols = np.frombuffer(self._read(table.offset, table.size - table.size % _SYMBOL.itemsize), _SYMBOL)
            strings = self._read(self.sections[table.link].offset, self.sections[table.link].size)
            kinds = symbols["info"] & 0xF
            symbols = symbols[((kinds == _FUNCTION) | (kinds == _INDIRECT_FUNCTION)) & (symbols["section"] != 0)]
            symbols = symbols[(symbols["name"] < len(strings)) & (symbols["value"] < 1 << 48)]
            starts.append(symbols["value"])
            ends.append(symbols["value"] + np.minimum(symbols["size"], 1 << 40))
            names.append(symbols["name"].astype(np.int64) + len(texts))
            texts += strings + b"\0"
        if not starts:
            return Functions(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32), b"")
        start, end, name = np.concatenate(starts), np.concatenate(ends), np.concatenate(names)
        order = np.lexsort((name, start))
        start, end, name = start[order], end[order], name[order]
        is_first = np.ones(len(start), bool)
        is_first[1:] = start[1:] != start[:-1]
        start, end, name = start[is_first], end[is_first], name[is_first]
        # Assembly may give no size: then a function ends where the next one begins.
        following = np.append(start[1:], start[-1:] + np.uint64(1 << 12))
        end = np.where(end == start, following, end)
        return Functions(start, end, name, texts)


def _build_id(notes: bytes) -> str:
    at = 0
    while at + _NOTE.size <= len(notes):
        name, content, kind = _NOTE.unpack_from(notes, at)
        at += _NOTE.size
        begin = at + -(-name // 4) * 4
        if kind == _BUILD_ID and notes[at : at + name] == b"GNU\0" and 0 < content < 32:
            return notes[begin : begin + content].hex()
        at = begin + -(-content // 4) * 4
    return ""
