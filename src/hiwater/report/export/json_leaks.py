"""Leaks as JSON: `hiwater.leaks`, version 1."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TextIO

from hiwater.analysis.growth import LEVEL
from hiwater.analysis.leaks import Leak, ProcessLeaks
from hiwater.analysis.run_leaks import Leaks
from hiwater.analysis.type_growth import TypeLeak

FORMAT, VERSION = "hiwater.leaks", 1


def write(leaks: Leaks, stream: TextIO) -> None:
    json.dump(as_data(leaks), stream, indent=1)
    stream.write("\n")


def as_data(leaks: Leaks) -> dict[str, Any]:
    """What `docs/leaks.md` describes; bytes are integers."""
    longest = leaks.longest
    return {
        "format": FORMAT,
        "version": VERSION,
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


def _process(one: ProcessLeaks) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "can_tell": one.can_tell,
        "moments": one.moments,
        "last_tested_moment": one.last_tested,
        "tested_snapshots": one.tested_snapshots,
        "tested_paths": one.tested_paths,
        "detectable_bytes_per_moment": one.detectable_bytes,
    }


def _leak(leak: Leak) -> dict[str, Any]:
    suppression = leak.suppression
    return {
        "file": leak.frame.file,
        "line": leak.frame.line,
        "function": leak.frame.function,
        "group": str(leak.group),
        **_figures(leak),
        "live_blocks": leak.live_blocks,
        "paths": leak.paths,
        "types": list(leak.types),
        "kinds": list(leak.kinds),
        "headers": [asdict(frame) for frame in leak.headers],
        "stack": [asdict(frame) for frame in leak.frames],
        "suppressed_because": suppression.reason if suppression is not None else None,
        "is_known": suppression is not None and suppression.is_built_in,
    }


def _type(leak: TypeLeak) -> dict[str, Any]:
    return {
        "type": leak.type_name,
        **_figures(leak),
        "lines": [asdict(frame) for frame in leak.lines],
        "line_count": leak.line_count,
    }


def _figures(leak: Leak | TypeLeak) -> dict[str, Any]:
    return {
        "processes": list(leak.pids),
        "bytes_per_moment": round(leak.bytes_per_moment),
        "lower_bytes_per_moment": round(leak.lower_bytes_per_moment),
        "live_bytes": leak.live_bytes,
        "grown_bytes": leak.grown_bytes,
        "oldest_moment": leak.oldest,
        "p": leak.p,
        "held_by": leak.held_by or None,
    }
