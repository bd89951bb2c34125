"""Captures of older format versions, as the present one has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hiwater.capture.format import KINDS, KINDS_OF_VERSION_1
from hiwater.capture.layout import corrupt

Records = npt.NDArray[Any]


def from_version_1(header: dict[str, Any], tables: dict[str, Records]) -> None:
    """Give kinds the numbers that they have now, in place. Raises CorruptCapture for a ledger of no kind.

    Version 1 has one kind for all shared memory and does not count it, as `attached` is not counted: its sums stay what they were.
    """
    places = np.array([KINDS.index(kind) for kind in KINDS_OF_VERSION_1])
    ledgers = tables["ledgers"].copy()
    if len(ledgers) and int(ledgers["kind"].max()) >= len(places):
        raise corrupt("a ledger is of no known kind of memory")
    ledgers["kind"] = places[ledgers["kind"]]
    tables["ledgers"] = ledgers
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
    for table in (ledgers, timeline):
        table.flags.writeable = False
