"""Reports and diffs as a renderer writes them, and their JSON held against its schema."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import Any

import jsonschema_rs

import schemas
from capture_builder import Recording
from example_captures import in_memory
from hiwater.analysis.diff import Limit, MatchedComparison, judge
from hiwater.device_history.pprof_proto import profile_pb2
from hiwater.report.diff_request import DiffReport
from hiwater.report.export import csv_rows, json_diff, json_report, pprof, speedscope
from hiwater.report.request import Report
from places import TESTS

SPEEDSCOPE = jsonschema_rs.Draft7Validator(
    json.loads((TESTS / "data" / "speedscope-1.25.0.schema.json").read_text("utf-8"))
)


class Bytes(io.StringIO):
    """A stream of text with one of bytes below it, as files have."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = io.BytesIO()


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


def as_pprof(what: Report) -> Any:
    stream = Bytes()
    pprof.write(what, stream)
    made: Any = profile_pb2
    profile = made.Profile()
    profile.ParseFromString(gzip.decompress(stream.buffer.getvalue()))
    return profile


def as_speedscope(*what: Report) -> Any:
    said = json.loads(shown(speedscope, what))
    SPEEDSCOPE.validate(said)
    return said


def as_csv(*what: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(shown(csv_rows, what))))


def diff_as_json(told: MatchedComparison, limit: Limit | None = None) -> Any:
    said = json.loads(shown(json_diff, DiffReport(told, verdict=judge(told, limit) if limit else None)))
    schemas.check(said, "diff")
    return said
