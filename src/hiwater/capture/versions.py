"""Captures of older format versions, read as the present one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import KINDS, KINDS_OF_VERSION_1

Records = npt.NDArray[Any]

_TABLES_BEFORE_3 = {"ledgers": "accounts", "ledger_cold": "account_peaks", "marks": "markers"}  # retired word: in files
_FIELDS_BEFORE_3 = {
    "header": {
        "mark_bytes": "slice_peak_bytes", "mark_blocks": "slice_peak_blocks", "mark_ns": "slice_peak_ns", "own_bytes": "overhead_bytes",
        "epoch0_best_bytes": "epoch0_peak_bytes", "epoch0_best_blocks": "epoch0_peak_blocks", "epoch0_best_ns": "epoch0_peak_ns",
        "epoch1_best_bytes": "epoch1_peak_bytes", "epoch1_best_blocks": "epoch1_peak_blocks", "epoch1_best_ns": "epoch1_peak_ns",
    },
    "slices": {"mark_ns": "peak_ns", "mark_bytes": "peak_bytes", "mark_blocks": "peak_blocks"},
    "slice_entries": {"ledger": "account"},  # retired word: in files
}  # fmt: skip


def table_name(name: str, version: int) -> str:
    """The present name of a table that a capture of this version calls `name`."""
    return _TABLES_BEFORE_3.get(name, name) if version < 3 else name


def field_name(table: str, name: str, version: int) -> str:
    """The present name of a field of the header or a table, which is given by its present name."""
    return _FIELDS_BEFORE_3.get(table, {}).get(name, name) if version < 3 else name


def from_version_1(header: dict[str, Any], tables: dict[str, Records]) -> None:
    """Give kinds the numbers that they have now, in place; an account of no kind gets one that does not exist.

    Version 1 has one kind for all shared memory and does not count it, as `attached` is not counted: its sums stay what they were.
    """
    places = np.array([KINDS.index(kind) for kind in KINDS_OF_VERSION_1])
    accounts = tables["accounts"].copy()
    accounts["kind"] = np.append(places, len(KINDS))[np.minimum(accounts["kind"], len(places))]
    tables["accounts"] = accounts
    whole = np.zeros(len(KINDS), np.int64)
    whole[places] = header["kind_live_bytes"][: len(places)]
    header["kind_live_bytes"] = whole.tolist()
    before = tables["timeline"]
    timeline = np.zeros(
        len(before), [("at_ns", "<u8"), ("resident_bytes", "<i8"), ("live_bytes", "<i8", (len(KINDS),))]
    )
    timeline["at_ns"], timeline["resident_bytes"] = before["at_ns"], before["resident_bytes"]
    timeline["live_bytes"][:, places] = before["live_bytes"][:, : len(places)]
    tables["timeline"] = timeline
    for table in (accounts, timeline):
        table.flags.writeable = False
