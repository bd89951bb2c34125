"""A check for machines, described by `check.schema.json` in report/schemas."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TextIO

from hiwater.analysis.check import Checked
from hiwater.report.check_report import CheckReport

SCHEMA = "hiwater.check/1"


def write(report: CheckReport, stream: TextIO) -> None:
    """One object."""
    said = {
        "schema": SCHEMA,
        "kept": report.is_kept,
        "words": report.lead,
        "baseline": None if report.baseline is None else {"file": report.baseline, "environment": report.before},
        "environment": report.here,
        "programs": [_program(one) for one in report.ordered],
        "not_measured": list(report.not_measured),
        "notes": report.notes,
    }
    json.dump(said, stream, indent=1)
    stream.write("\n")


def _program(one: Checked) -> dict[str, Any]:
    members = ("figure", "before", "now", "allowed", "error", "verdict")
    return {
        "name": one.name,
        "kept": not one.failures,
        "figures": [{member: getattr(row, member) for member in members} for row in one.rows],
        "limits": [{member: getattr(row, member) for member in members if member != "before"} for row in one.limits],
        "causes": [
            {**asdict(cause.frame), "bytes": cause.bytes, "change_bytes": cause.change, "moment": cause.moment}
            for cause in one.causes
        ],
    }
