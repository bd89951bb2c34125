"""Leaks for machines. `leaks.schema.json` in report/schemas is made from the type `LeaksData`."""

from __future__ import annotations

from typing import Literal, TextIO, TypedDict

from hiwater.analysis.growth import LEVEL
from hiwater.analysis.leaks import Leak, ProcessLeaks
from hiwater.analysis.run_leaks import Leaks
from hiwater.analysis.type_growth import TypeLeak
from hiwater.analysis.user_lines import Group
from hiwater.capture.document_types import Signed
from hiwater.report.document import CountedKind, FrameData, data_of, frame_data, text_of


class GrowthData(TypedDict):
    """By how much something grows. Bytes are those that the program requested."""

    processes: list[int]
    """the numbers of the processes in which it grows, the one that grows most first"""
    bytes_per_moment: Signed
    """for each call, marker or phase: the Theil–Sen slope, of several processes the mean"""
    lower_bytes_per_moment: Signed
    """its lower bound"""
    live_bytes: int
    """at the last snapshot"""
    grown_bytes: int
    """the part of them that was allocated since the first snapshot that was tested"""
    oldest_moment: int
    """the number of the moment after which the oldest of that part was allocated"""
    p: float
    """of the one-sided Mann–Kendall test for a trend"""
    held_by: str | None
    """what holds most of it; null if it is not known"""


class LeakData(FrameData, GrowthData):
    """A line whose memory grows, with all of its call paths that do."""

    group: Group
    live_blocks: int
    paths: int
    """how many call paths"""
    types: list[str]
    """types of its objects, most bytes first, if the capture has a search for holders"""
    kinds: list[CountedKind]
    headers: list[FrameData]
    """lines at which small blocks of one size grow in step with it"""
    stack: list[FrameData]
    """of the path with most growth, root first"""
    suppressed_because: str | None
    is_known: bool
    """a cache of the standard library"""


class TypeLeakData(GrowthData):
    """Objects of one type of which there are more at each moment, on call paths that do not show it one by one."""

    type: str
    lines: list[FrameData]
    """the lines that allocate most, at most three"""
    line_count: int


class TestedData(TypedDict):
    """What was tested of a process; of a run, in the process with most snapshots."""

    moments: int
    last_tested_moment: int
    tested_snapshots: int
    tested_paths: int
    """of a run, in all processes"""
    detectable_bytes_per_moment: int
    """the smallest growth that would have been found"""


class ProcessLeaksData(TestedData):
    """The result for one process."""

    pid: int
    can_tell: bool
    """false if it has too few snapshots for any leak to be significant"""


class LeaksData(TestedData):
    """What `hiwater leaks --format json` writes. Sizes are bytes. Members are only ever added."""

    format: Literal["hiwater.leaks"]
    version: Literal[1]
    verdict: Literal["leaks", "no leak", "cannot tell"]
    name: str
    """of the moments"""
    level: float
    """the probability with which any call path without a trend is reported"""
    processes: list[ProcessLeaksData]
    untested_processes: int
    """without a snapshot, a capture, or a recording"""
    leaks: list[LeakData]
    """largest growth first"""
    suppressed: list[LeakData]
    """what would be leaks, but for a suppression"""
    types: list[TypeLeakData]


def write(leaks: Leaks, stream: TextIO) -> None:
    stream.write(text_of(_document(leaks)) + "\n")


def _document(leaks: Leaks) -> LeaksData:
    longest = leaks.longest
    return {
        "format": "hiwater.leaks",
        "version": 1,
        "verdict": "leaks" if leaks.has_found else "no leak" if leaks.can_tell else "cannot tell",
        "name": leaks.name,
        "moments": longest.moments,
        "last_tested_moment": longest.last_tested,
        "tested_snapshots": longest.tested_snapshots,
        "tested_paths": sum(one.tested_paths for one in leaks.processes),
        "level": LEVEL,
        "detectable_bytes_per_moment": leaks.detectable_bytes,
        "processes": [_process(one) for one in leaks.processes],
        "untested_processes": leaks.untested,
        "leaks": [_leak(leak) for leak in leaks.rows],
        "suppressed": [_leak(leak) for leak in leaks.suppressed],
        "types": [_type(leak) for leak in leaks.by_type],
    }


def _process(one: ProcessLeaks) -> ProcessLeaksData:
    return data_of(
        ProcessLeaksData, one, last_tested_moment=one.last_tested, detectable_bytes_per_moment=one.detectable_bytes
    )


def _leak(leak: Leak) -> LeakData:
    suppression = leak.suppression
    return data_of(
        LeakData,
        leak,
        **frame_data(leak.frame),
        **_figures(leak),
        headers=list(map(frame_data, leak.headers)),
        stack=list(map(frame_data, leak.frames)),
        suppressed_because=suppression.reason if suppression is not None else None,
        is_known=suppression is not None and suppression.is_built_in,
    )


def _type(leak: TypeLeak) -> TypeLeakData:
    return data_of(TypeLeakData, leak, type=leak.type_name, **_figures(leak), lines=list(map(frame_data, leak.lines)))


def _figures(leak: Leak | TypeLeak) -> GrowthData:
    return data_of(
        GrowthData,
        leak,
        processes=leak.pids,
        bytes_per_moment=round(leak.bytes_per_moment),
        lower_bytes_per_moment=round(leak.lower_bytes_per_moment),
        oldest_moment=leak.oldest,
        held_by=leak.held_by or None,
    )
