"""A check for machines. `check.schema.json` in report/schemas is made from the type `CheckData`."""

from __future__ import annotations

from typing import Annotated, Literal, TextIO, TypedDict

from hiwater.analysis.baseline import FIGURES, Verdict
from hiwater.analysis.check import Checked
from hiwater.capture.document_types import Keywords, Signed
from hiwater.report.check_report import CheckReport
from hiwater.report.document import FrameData, data_of, frame_data, text_of


class LimitData(TypedDict):
    """A figure and its limit."""

    figure: Annotated[str, Keywords(enum=list(FIGURES))]
    now: int | None
    at_least: bool
    """now is a lower bound"""
    allowed: int | None
    """the highest value that is no failure; null if there is nothing before or now"""
    error: int
    """a difference up to this may be chance"""
    verdict: Verdict


class ComparedData(LimitData):
    """A figure and that of the baseline."""

    before: int | None


class CheckCause(FrameData):
    """A line of the program's own code behind what is worse."""

    bytes: int
    """held at the moment"""
    change_bytes: Signed | None
    """more than in the baseline; null if the baseline has no lines"""
    moment: Annotated[str, Keywords(enum=["peak", "end"])]


class ProgramData(TypedDict):
    """What was found of a program."""

    name: str
    kept: bool
    figures: list[ComparedData]
    limits: list[LimitData]
    causes: list[CheckCause]
    """the largest first"""


class BaselineData(TypedDict):
    """What figures are compared with."""

    file: str
    environment: dict[str, str]


class CheckData(TypedDict):
    """What `hiwater check --format json` writes. Sizes are bytes. Members are only ever added."""

    schema: Literal["hiwater.check/1"]
    kept: bool
    """whether all is within what is allowed"""
    words: str
    """how it went, in one sentence"""
    baseline: BaselineData | None
    """null if there are limits alone"""
    environment: dict[str, str]
    programs: list[ProgramData]
    """those with failures first"""
    not_measured: list[str]
    """programs of the baseline alone"""
    notes: list[str]


def write(report: CheckReport, stream: TextIO) -> None:
    """One object."""
    said: CheckData = {
        "schema": "hiwater.check/1",
        "kept": report.is_kept,
        "words": report.lead,
        "baseline": None if report.baseline is None else {"file": report.baseline, "environment": report.before},
        "environment": report.here,
        "programs": [_program(one) for one in report.ordered],
        "not_measured": list(report.not_measured),
        "notes": report.notes,
    }
    stream.write(text_of(said) + "\n")


def _program(one: Checked) -> ProgramData:
    return {
        "name": one.name,
        "kept": not one.failures,
        "figures": [data_of(ComparedData, row) for row in one.rows],
        "limits": [data_of(LimitData, row) for row in one.limits],
        "causes": [
            {**frame_data(cause.frame), "bytes": cause.bytes, "change_bytes": cause.change, "moment": cause.moment}
            for cause in one.causes
        ],
    }
