"""Captures: what a recording left behind, read afterwards or while it is still being written."""

from __future__ import annotations

import os

from hiwater.capture.model import Capture, Mark, Process, Resident, Slice, Timeline, Totals
from hiwater.capture.moment import Frame, Moment, Stack, Stacks

__all__ = [
    "Capture", "Frame", "Mark", "Moment", "Process", "Resident", "Slice", "Stack", "Stacks", "Timeline", "Totals", "open",
]  # fmt: skip


def open(path: str | os.PathLike[str]) -> Capture:
    """Read the capture at `path`; see `Capture.open` for the errors."""
    return Capture.open(path)
