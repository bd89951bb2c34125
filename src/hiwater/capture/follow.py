"""Reads a capture again and again while its program writes it: each time the header, what has been added, and what
changes in place.

Nothing is written and nothing is locked, so any number of readers may follow one capture, and its program notices none
of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hiwater._os import mapped_files
from hiwater._os.process_identity import start_ticks_of
from hiwater.capture import process, reader
from hiwater.capture.layout import Table
from hiwater.capture.references import Records
from hiwater.capture.tables import Tables
from hiwater.errors import CaptureError, CorruptCapture, MissingCapture, ProcessNotReadable

_OF_SUMS = frozenset({"facts", "strings", "string_bytes", "timeline", "slices", "pressure", "relatives"})
_CHANGE_IN_PLACE = frozenset({"accounts", "account_peaks", "devices", "pressure", "scopes"})
_TRIES = 5
_FEWEST = 1024  # records that a table has room for at first


class Follower:
    """One capture that may still be written. `close()` it."""

    def __init__(self, path: str | os.PathLike[str], pid: int | None = None) -> None:
        """`pid` is the number of the process here, where it may have another one inside its container. Raises
        MissingCapture, ForeignFile, IncompatibleCapture, TruncatedCapture or CorruptCapture."""
        self.path = Path(path)
        self._pid = pid
        self._descriptor = reader.open_file(self.path)
        try:
            self._start, self._schema = reader.read_shape(self._descriptor)
            self.header: dict[str, Any] = self.read_header()
        except BaseException:
            os.close(self._descriptor)
            raise
        self.start_over()

    def start_over(self) -> None:
        """Forget what was read: the next `read()` reads all."""
        self._tables = {name: _GrowingTable(table) for name, table in self._schema.tables.items()}
        self._extents_used = -1

    def read_header(self) -> dict[str, Any]:
        """Read the header alone: the sums of the process, in 4 KiB."""
        self.header = reader.read_header(self._descriptor, self._start, self._schema)
        if self._pid is not None:
            self.header["pid"] = self._pid
        return self.header

    @property
    def descriptor(self) -> int:
        """That of the open file, for reading."""
        return self._descriptor

    @property
    def is_alive(self) -> bool:
        """Whether the process still writes the capture."""
        return process.is_being_written(self.header)

    def read(self) -> Tables:
        """Read what has changed since the last call; all tables as they are now. Raises what `__init__` raises."""
        for _ in range(_TRIES - 1):
            with suppress(CorruptCapture):  # it changed while it was read
                return self._read(self._tables)
            self.start_over()
        return self._read(self._tables)

    def read_over_time(self) -> Tables:
        """The same without stacks: what the process held over time."""
        return self._read(_OF_SUMS)

    def _read(self, names: Collection[str]) -> Tables:
        """The tables with these names; others are empty."""
        header = self.read_header()
        if header["extents_used"] != self._extents_used:
            self._extents = reader.read_extents(self._descriptor, self._start, header)
            self._extents_used = header["extents_used"]
        tables = {}
        for name, growing in self._tables.items():
            count = header["table_count"][growing.table.number] if name in names else 0
            if name in _CHANGE_IN_PLACE:
                growing.clear()
            if count > growing.count:
                growing.extend(
                    reader.read_records(
                        self._descriptor, self._start, growing.table, growing.count, count, self._extents
                    )
                )
            tables[name] = growing.records(count)
        if "slice_entries" not in names:
            tables["slices"] = tables["slices"].copy()
            tables["slices"]["first_entry"] = tables["slices"]["entry_count"] = 0
        return Tables(reader.checked(self.path, header, tables), is_alive=self.is_alive)

    def close(self) -> None:
        os.close(self._descriptor)


class _GrowingTable:
    """The records of one table. Room is doubled, so that a record is copied twice at most on average."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.count = 0
        self._room = np.empty(0, table.record)

    def clear(self) -> None:
        self.count = 0

    def extend(self, records: Records) -> None:
        needed = self.count + len(records)
        if needed > len(self._room):
            room = np.empty(max(_FEWEST, 2 * needed), self.table.record)
            room[: self.count] = self._room[: self.count]
            self._room = room
        self._room[self.count : needed] = records
        self.count = needed

    def records(self, count: int) -> Records:
        shown = self._room[: min(count, self.count)]
        shown.flags.writeable = False
        return shown


def pid_in(source: str) -> int | None:
    """The number of a process where a command was given one, and no file of this name."""
    return int(source) if source.isdecimal() and not os.path.exists(source) else None


def capture_of(pid: int) -> Follower:
    """The capture that this process maps, opened. Raises NoSuchProcess, ProcessNotReadable or MissingCapture."""
    refused = None
    for place in mapped_files.places(pid):
        if not os.access(place, os.R_OK):
            refused = place
            continue
        with suppress(CaptureError):
            follower = Follower(place, pid)
            if follower.header["process_start_ticks"] == start_ticks_of(pid):
                return follower
            follower.close()
    if refused is not None:
        raise ProcessNotReadable(
            f"process {pid} has mapped {refused!r}, which cannot be read",
            "if it is the capture, run hiwater as its owner or as root",
        )
    raise MissingCapture(
        f"process {pid} has no recording", "start the program with `hiwater run`, or call `hiwater.record()` in it"
    )
