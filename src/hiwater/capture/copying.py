"""A consistent copy of a capture that a process is still writing, made from outside: the process is neither stopped nor
asked.

The file is copied once, which takes milliseconds. Records that were complete before are complete in the copy. Accounts
change in place: each is copied as it was at one moment of these milliseconds, and the header's sums are then set to the
sums of the copied accounts.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater._os import portable
from hiwater.capture.layout import HeaderStart, Schema, corrupt, is_counted, truncated
from hiwater.capture.process import is_being_written
from hiwater.capture.reader import read_extents, read_header, read_shape
from hiwater.capture.references import Records
from hiwater.errors import CorruptCapture

Shape = tuple[HeaderStart, Schema, dict[int, npt.NDArray[np.int64]]]
_TRIES = 8
_SNAPSHOT_FIELD = "snapshot_ns"


def copy(descriptor: int, pid: int | None = None) -> bytearray:
    """Return the content of a consistent copy of the capture in an open file. `pid` is the number of the process
    here, where it may have another one inside its container. Raises ForeignFile, IncompatibleCapture,
    TruncatedCapture or CorruptCapture."""
    start, schema = read_shape(descriptor)
    for _ in range(_TRIES):
        before = read_header(descriptor, start, schema)
        places = read_extents(descriptor, start, before)
        content = _read(descriptor, start.first_extent_offset + before["extents_used"] * start.extent_bytes)
        if not is_being_written(before | ({"pid": pid} if pid is not None else {})):
            return content
        after = read_header(descriptor, start, schema)
        if after["epoch_index"] != before["epoch_index"]:
            continue  # a slice ended meanwhile: the peaks of accounts changed with the header's
        try:
            if _repair(content, before, after, (start, schema, places)):
                return content
        except (ValueError, KeyError) as error:
            raise corrupt("its tables lie outside the file") from error
    raise CorruptCapture(
        "the capture changed too much while it was copied",
        "try again, or have the program call hiwater.snapshot()",
    )


def _read(descriptor: int, size: int) -> bytearray:
    if os.fstat(descriptor).st_size < size:
        raise truncated()
    content = bytearray(size)
    window = memoryview(content)
    while window:
        got = portable.read_into(descriptor, window, size - len(window))
        if got == 0:
            raise truncated()
        window = window[got:]
    return content


def _repair(content: bytearray, before: dict[str, Any], after: dict[str, Any], shape: Shape) -> bool:
    """Give the copy the later header, the earlier numbers of records, and sums that are those of its accounts.
    Returns False if the peaks of its accounts are half changed."""
    schema = shape[1]
    header = np.frombuffer(content, schema.header, count=1)
    for name in schema.header.names or ():
        header[name] = (before if name in ("table_count", "extents_used") else after)[name]
    if _SNAPSHOT_FIELD in after:
        header[_SNAPSHOT_FIELD] = max(1, after["heartbeat_ns"])
    accounts, peaks = (_records(content, before, shape, name) for name in ("accounts", "account_peaks"))
    for kind in np.flatnonzero(np.bincount(accounts["kind"])).tolist():
        header["kind_live_bytes"][0, kind] = accounts["live_bytes"][accounts["kind"] == kind].sum()
    is_in_sum = is_counted(accounts["kind"])
    accounts, peaks = accounts[is_in_sum], peaks[: len(is_in_sum)][is_in_sum]
    is_saved = accounts["generation"] == after["generation"]
    for what in ("bytes", "blocks"):
        header[f"live_{what}"] = accounts[f"live_{what}"].sum()
        header[f"slice_peak_{what}"] = np.where(is_saved, accounts[f"saved_{what}"], accounts[f"live_{what}"]).sum()
    # The peak rose while accounts were copied: it is what is live.
    if header["slice_peak_bytes"] < header["live_bytes"]:
        header["generation"] += 1
        for what in ("bytes", "blocks"):
            header[f"slice_peak_{what}"] = header[f"live_{what}"]
    return bool(int(peaks["peak_bytes"].sum()) == after[f"epoch{after['epoch_index']}_peak_bytes"])


def _records(content: bytearray, header: dict[str, Any], shape: Shape, name: str) -> Records:
    start, schema, places = shape
    table = schema.tables[name]
    count, in_extent = header["table_count"][table.number], start.extent_bytes // table.record.itemsize
    parts = [
        np.frombuffer(
            content,
            table.record,
            min(in_extent, count - chunk * in_extent),
            start.first_extent_offset + extent * start.extent_bytes,
        )
        for chunk, extent in enumerate(places[table.number].tolist())
        if chunk * in_extent < count
    ]
    return np.concatenate(parts)
