"""Replays what `tools/on_a_gpu.py` brought back: from the same data, hiwater makes the same figures without a card."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hiwater
from hiwater.allocator_state import of_segments
from hiwater.contrib.torch.oom_message import parse
from hiwater.meters.devices.reconcile import OF_PROCESS, UNACCOUNTED, USED, reconcile


def replay(golden: Mapping[str, Any], folder: Path) -> list[str]:
    """Compare every part of the data with what hiwater makes of it now; the names of these parts."""
    replayed = []
    for name, data in golden.items():
        part = PARTS.get(name.partition("-")[0])
        if part is not None:
            part(data, folder)
            replayed.append(name)
    return replayed


def _breakdown(data: Mapping[str, Any], _: Path) -> None:
    """A snapshot of the allocator's blocks gives the same terms, and they are all that is reserved."""
    found = reconcile("cuda:0", {}, state=of_segments(data["segments"]))
    terms = {name: found[name] for name in OF_PROCESS}
    assert terms == {name: data["terms"][name] for name in OF_PROCESS}
    assert sum(terms.values()) == data["reserved"]


def _pools(data: Mapping[str, Any], _: Path) -> None:
    """Torch's counters give terms that are all that is reserved, and none is negative."""
    found = reconcile("cuda:0", data["statistics"])
    terms = [found[name] for name in OF_PROCESS]
    assert min(terms) >= 0
    assert sum(terms) == data["statistics"]["reserved_bytes.all.current"]


def _history(data: Mapping[str, Any], folder: Path) -> None:
    """The peak of the history is the one that torch counted."""
    path = folder / "history.pickle"
    path.write_bytes(pickle.dumps({"segments": data["segments"], "device_traces": [data["events"]]}))
    assert hiwater.open(path).peak.allocated_bytes == data["requested_peak"]


def _refusal(data: Mapping[str, Any], _: Path) -> None:
    """Torch's message has the figures of the report. That of the CUDA runtime has none: the card decides."""
    found, said = parse(data["message"]), data["report"]["refusal"]
    if said["requested_bytes"] is None:
        assert found.device is None and found.requested_bytes is None
        assert data["report"]["verdict"]["kind"] == "shortage"
        return
    assert found.device == said["device"] == 0
    for name in ("requested_bytes", "total_bytes", "free_bytes"):
        assert abs(getattr(found, name) - said[name]) <= said[name] / 100  # the message has two digits after the point


def _unaccounted(data: Mapping[str, Any], _: Path) -> None:
    """The driver's figure is explained but for one part in a hundred."""
    assert abs(data["terms"][UNACCOUNTED]) <= data["terms"][USED] / 100


PARTS = {
    "breakdown": _breakdown,
    "pools": _pools,
    "history": _history,
    "shortage": _refusal,
    "fraction": _refusal,
    "refusals": _refusal,
    "unaccounted": _unaccounted,
}
