"""Families of processes: which capture is of whose child."""

from __future__ import annotations

from collections.abc import Sequence

from hiwater.capture.model import Capture
from hiwater.capture.tracks import span


def parents(captures: Sequence[Capture]) -> list[int | None]:
    """For each capture, the index of the capture of its parent process; None if there is none."""
    numbered: dict[tuple[object, str], list[int]] = {}
    for number, capture in enumerate(captures):
        numbered.setdefault((capture.header["boot_id"], str(capture.process.pid)), []).append(number)
    return [_parent(captures, numbered, number) for number in range(len(captures))]


def _parent(captures: Sequence[Capture], numbered: dict[tuple[object, str], list[int]], number: int) -> int | None:
    """`numbered` are the captures of each process number on each machine: a number may be used again. The program
    that a process executed is the child of the program that executed it."""
    child = captures[number]
    start = child.process.started_unix_ns
    header = child.header
    before = [
        other
        for other in numbered[header["boot_id"], str(child.process.pid)]
        if captures[other].header["process_start_ticks"] == header["process_start_ticks"]
        and captures[other].process.started_unix_ns < start
    ]
    if before and child.facts.get("started_by") == "exec":
        return max(before, key=lambda other: captures[other].process.started_unix_ns)
    for other in numbered.get((child.header["boot_id"], child.facts.get("ppid", "")), ()):
        if other == number:
            continue
        first, last = span(captures[other])
        if (first < start or (first == start and other < number)) and start <= last:
            return other
    return None
