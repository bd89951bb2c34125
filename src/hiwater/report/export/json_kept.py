"""What is still live, for machines: described by `kept.schema.json` in report/schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from hiwater.analysis.ages import Survivors, snapshots, survivors
from hiwater.report.request import Report

SCHEMA = "hiwater.kept/1"


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One capture as an object, several as a list."""
    said = [_capture(report) for report in reports]
    json.dump(said[0] if len(said) == 1 else said, stream, indent=1)
    stream.write("\n")


def _capture(report: Report) -> dict[str, Any]:
    rows = survivors(report.snapshot, report.kind, described=report.top)
    taken = snapshots(report.capture.tables)
    return {
        "schema": SCHEMA,
        "pid": report.capture.process.pid,
        "argv": list(report.capture.process.argv),
        "at_ns": report.snapshot.at_ns,
        "kind": report.kind,
        "snapshots": 0 if taken is None else len(taken),
        "bytes": sum(row.bytes for row in rows),
        "blocks": sum(row.blocks for row in rows),
        "lines": [_line(row) for row in rows],
    }


def _line(row: Survivors) -> dict[str, Any]:
    return {
        "group": row.group.value,
        **asdict(row.frame),
        "bytes": row.bytes,
        "blocks": row.blocks,
        "by_age": list(row.by_age) or None,
        "types": list(row.types),
        "held_by": row.held_by or None,
    }
