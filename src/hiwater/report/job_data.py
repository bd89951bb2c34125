"""What JSON and the page say of a job, beyond what they say of its processes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hiwater.analysis.job import (
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
from hiwater.report.formatting import printable

_NAME = 200


def described(job: Job) -> dict[str, Any]:
    """The uneven processes with their causes, and the phases of each name over all processes. `skew` is None for
    fewer than three processes."""
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


def role(capture: Capture) -> dict[str, Any]:
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


def _outlier(outlier: Outlier) -> dict[str, Any]:
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


def _cause(cause: OutlierCause) -> dict[str, Any]:
    return {**asdict(cause.frame), "more_bytes": cause.more_bytes}


def _phase(cost: PhaseCost) -> dict[str, Any]:
    return {
        "name": cost.name,
        "ended": cost.count,
        "unfinished": cost.unfinished,
        "processes": cost.processes,
        "median_rise_bytes": cost.median_rise_bytes,
        "highest_rise_bytes": cost.highest_rise_bytes,
        "highest_peak_bytes": cost.highest_peak_bytes,
        "kept_bytes": cost.kept_bytes,
        "worst_pid": cost.worst.process.pid,
        "worst_worker": printable(worker_name(cost.worst), _NAME),
        "worst_host": printable(cost.worst.facts.get("host", ""), _NAME),
        "line": _line(cost.top),
    }


def _line(line: UserLine | None) -> dict[str, Any] | None:
    if line is None:
        return None
    return {"function": line.frame.function, "file": line.frame.file, "line": line.frame.line, "bytes": line.bytes}
