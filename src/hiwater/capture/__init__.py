"""Captures: what a recording left behind, read afterwards or while it is still being written.

The names are looked up at first use: the writer lives in this package, too, and must not load what only reading needs.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.capture.devices import DeviceMemory, DeviceSnapshot
    from hiwater.capture.markers import Marker
    from hiwater.capture.model import Capture
    from hiwater.capture.paths import Frame
    from hiwater.capture.program import Process, Resident, Totals
    from hiwater.capture.residency_snapshots import LargeBlock, Part, ResidencySnapshot
    from hiwater.capture.run import Run
    from hiwater.capture.run_index import ShortProcess, Unrecorded
    from hiwater.capture.slices import Slice
    from hiwater.capture.snapshot import Snapshot, Stack, Stacks
    from hiwater.capture.timeline import ScopeSpan, Timeline, WatchedProcess

__all__ = [
    "Capture", "DeviceMemory", "DeviceSnapshot", "Frame", "LargeBlock", "Marker", "Part", "Process",
    "ResidencySnapshot", "Resident", "Run", "ScopeSpan", "ShortProcess", "Slice", "Snapshot", "Stack", "Stacks",
    "Timeline", "Totals", "Unrecorded", "WatchedProcess", "open", "open_run",
]  # fmt: skip
_HOMES = {
    "Frame": "paths",
    "Marker": "markers",
    **dict.fromkeys(("Snapshot", "Stack", "Stacks"), "snapshot"),
    **dict.fromkeys(("DeviceSnapshot", "DeviceMemory"), "devices"),
    **dict.fromkeys(("LargeBlock", "ResidencySnapshot", "Part"), "residency_snapshots"),
    **dict.fromkeys(("Process", "Resident", "Totals"), "program"),
    **dict.fromkeys(("ScopeSpan", "Timeline", "WatchedProcess"), "timeline"),
    "Run": "run",
    **dict.fromkeys(("ShortProcess", "Unrecorded"), "run_index"),
    "Slice": "slices",
}


def open(path: str | os.PathLike[str]) -> Capture:
    """Read the capture at `path`; one that is still being written is read again if it changed meanwhile. `all.hiw/NAME`
    is one of a merged capture.

    Raises BadRequest for a merged capture of more than one, MissingCapture, ForeignFile, IncompatibleCapture,
    TruncatedCapture or CorruptCapture.
    """
    from hiwater.capture import opening
    from hiwater.capture.model import Capture

    return Capture(opening.read(path))


def open_run(*paths: str | os.PathLike[str]) -> Run:
    """Read the runs at `paths`, each given by its main capture, by the folder beside that, or merged; raises what
    `open` raises."""
    from hiwater.capture.run import read_run

    return read_run(*paths)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # not on the way to a program that is to be run

    value: object = getattr(import_module(f"hiwater.capture.{_HOMES.get(name, 'model')}"), name)
    globals()[name] = value
    return value
