"""What JSON and the page say of a job, beyond what they say of its processes."""

from __future__ import annotations

from typing import TypedDict

from hiwater.analysis.job import (
    EngineMemory,
    Job,
    Outlier,
    OutlierCause,
    PhaseCost,
    engine_memory,
    last_line,
    limit_share,
    used_bytes,
    worker_name,
)
from hiwater.analysis.user_lines import UserLine
from hiwater.capture import Capture
from hiwater.capture.document_types import Signed
from hiwater.report.document import FrameData, data_of, frame_data
from hiwater.report.formatting import printable

_NAME = 200


class LineData(FrameData):
    """A line of the user's own code, and what it holds."""

    bytes: int


class CauseData(FrameData):
    """A line that holds more than in another process."""

    more_bytes: Signed


class OutlierData(TypedDict):
    """A process with a peak far above the median."""

    pid: int
    worker: str
    host: str
    peak_bytes: int
    times_median: float
    median_pid: int
    """of the process it is compared with"""
    phase: str
    """that ran at the peak; empty if none did"""
    causes: list[CauseData]
    """the lines that hold more than in the median process, at the peaks, without what was never touched; most first"""


class PhaseData(TypedDict):
    """The phases of one name."""

    name: str
    ended: int
    unfinished: int
    processes: int
    median_rise_bytes: int
    """of the highest allocated size during a phase over that at its start"""
    highest_rise_bytes: int
    highest_peak_bytes: int
    kept_bytes: int
    """what all phases of the name kept at their ends, in the process where that is most"""
    worst_pid: int
    worst_worker: str
    worst_host: str
    line: LineData | None
    """that held most at the highest moment of the worst phase; null if not looked for"""


class JobData(TypedDict):
    """Of the processes of a job (a cluster or a launcher): how uneven their peaks are and why, and what phases of each
    name cost over all of them."""

    processes: int
    """with allocations"""
    highest_peak_bytes: int
    """allocated, without what was never touched, as all peaks of a job"""
    highest_untouched_bytes: int
    """the most that one process had allocated at its peak and never touched"""
    median_peak_bytes: int
    """of an even number, the lower of the two in the middle"""
    skew: float | None
    """the highest peak over the median one; null for fewer than three processes"""
    outliers: list[OutlierData]
    """the processes far above the median, at most three, the highest first"""
    phases: list[PhaseData]
    """by name, over all processes; those that cost most first. Figures are of the whole process while the phase ran"""
    phases_not_kept: int
    """earlier phases that are in no figure: a capture keeps its last 10,000"""


class Role(TypedDict):
    """Of a process of a job, what it is there."""

    host: str
    rank: str
    engine: str
    worker: str
    """the engine's name of the process"""
    restart: str
    untouched_bytes: int
    """the part of the allocated peak that was never touched"""
    limit_share: float | None
    """the highest part of the nearest limit that was used; null without a limit"""
    engine_memory: EngineMemory | None
    """the engine's own figures when the memory that it saw was highest; null for an engine that has none"""
    last_line: LineData | None
    """that held most when a killed process's capture ended; null for others"""


def described(job: Job) -> JobData:
    return {
        "processes": len(job.recorded),
        "highest_peak_bytes": job.highest_bytes,
        "highest_untouched_bytes": job.highest_untouched_bytes,
        "median_peak_bytes": job.median_bytes,
        "skew": None if job.skew is None else round(job.skew, 3),
        "outliers": [_outlier(one) for one in job.outliers],
        "phases": [_phase(one) for one in job.phases],
        "phases_not_kept": job.phases_not_kept,
    }


def role(capture: Capture) -> Role:
    """What the process is in the job."""
    last = last_line(capture) if capture.process.ended == "killed" else None
    share = limit_share(capture)
    return {
        "host": printable(capture.facts.get("host", ""), _NAME),
        "rank": printable(capture.facts.get("rank", ""), _NAME),
        "engine": printable(capture.facts.get("engine", ""), _NAME),
        "worker": printable(worker_name(capture), _NAME),
        "restart": printable(capture.facts.get("restart", ""), _NAME),
        "untouched_bytes": capture.peak_untouched_bytes,
        "limit_share": None if share is None else round(share, 4),
        "engine_memory": engine_memory(capture),
        "last_line": _line(last),
    }


def _outlier(outlier: Outlier) -> OutlierData:
    return {
        "pid": outlier.capture.process.pid,
        "worker": printable(worker_name(outlier.capture), _NAME),
        "host": printable(outlier.capture.facts.get("host", ""), _NAME),
        "peak_bytes": max(0, used_bytes(outlier.capture)),
        "times_median": round(outlier.times, 3),
        "median_pid": outlier.median.process.pid,
        "phase": printable(outlier.phase, _NAME),
        "causes": [_cause(one) for one in outlier.causes],
    }


def _cause(cause: OutlierCause) -> CauseData:
    return {**frame_data(cause.frame), "more_bytes": cause.more_bytes}


def _phase(cost: PhaseCost) -> PhaseData:
    return data_of(
        PhaseData,
        cost,
        ended=cost.count,
        worst_pid=cost.worst.process.pid,
        worst_worker=printable(worker_name(cost.worst), _NAME),
        worst_host=printable(cost.worst.facts.get("host", ""), _NAME),
        line=_line(cost.top),
    )


def _line(line: UserLine | None) -> LineData | None:
    return None if line is None else {**frame_data(line.frame), "bytes": line.bytes}
