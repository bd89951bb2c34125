"""Reports and diffs as a renderer writes them, and their JSON held against its schema."""

from __future__ import annotations

import io
import json
from typing import Any

import schemas
from capture_builder import Recording
from example_captures import in_memory
from hiwater.analysis.diff import Limit, MatchedComparison, judge
from hiwater.report.diff_request import DiffReport
from hiwater.report.export import json_diff, json_report
from hiwater.report.request import Report


def report(recording: Recording, **asked: Any) -> Report:
    capture = in_memory(recording)
    return Report(capture, capture.peak, **asked)


def shown(view: Any, what: Any) -> str:
    """The text that a renderer makes of a report or a diff."""
    stream = io.StringIO()
    view.write(what, stream)
    return stream.getvalue()


def as_json(*what: Report) -> Any:
    said = json.loads(shown(json_report, what))
    schemas.check(said, "report")
    return said


def diff_as_json(told: MatchedComparison, limit: Limit | None = None) -> Any:
    said = json.loads(shown(json_diff, DiffReport(told, verdict=judge(told, limit) if limit else None)))
    schemas.check(said, "diff")
    return said
