"""What `hiwater live` can show. The parser of its options needs it, and loads nothing else of the reports."""

from __future__ import annotations

from enum import StrEnum


class View(StrEnum):
    """What the rows of the table are."""

    lines = "lines"
    stacks = "stacks"
    threads = "threads"
    kinds = "kinds"
    processes = "processes"
    devices = "devices"
