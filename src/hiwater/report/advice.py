"""Findings in words and as data for JSON and the page: what to change in which line, what it saves, and the figures
that show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from hiwater.analysis.advice import Figure, Finding, findings_of
from hiwater.capture import Capture
from hiwater.report.document import FrameData, frame_data
from hiwater.report.formatting import place_text, size

NOTHING_FOUND = "No advice: no rule found a saving of 5 % of the peak or more that this recording proves."


class SavingData(TypedDict):
    """What a change saves."""

    least_bytes: int
    """a lower bound, as far as the recording's slices of time tell"""
    most_bytes: int
    measures: str
    """of which memory"""
    words: str


class FindingData(FrameData):
    """A finding. `file` is empty if it is about no line."""

    rule: str
    evidence: list[Figure]
    saving: SavingData
    change: str
    """what to change in this line"""
    condition: str
    """what has to hold, where a recording cannot tell; empty if nothing has"""


class Hint(FrameData):
    """A finding in one sentence."""

    pattern: str
    bytes: int
    """the least saving"""
    words: str
    """what was found, what to change, and what it saves"""


def data(finding: Finding) -> FindingData:
    saving = finding.saving
    return {
        "rule": finding.rule.value,
        **frame_data(finding.frame),
        "evidence": list(finding.evidence),
        "saving": {
            "least_bytes": saving.least_bytes,
            "most_bytes": saving.most_bytes,
            "measures": saving.measures,
            "words": saving_words(finding),
        },
        "change": finding.change,
        "condition": finding.condition,
    }


def hint(finding: Finding) -> Hint:
    return {
        "pattern": finding.rule.value,
        "bytes": finding.saving.least_bytes,
        "words": sentence(finding),
        **frame_data(finding.frame),
    }


def texts(capture: Capture, folder: str = "") -> Iterator[str]:
    """The findings as lines of text, without their evidence. Paths are relative to `folder`."""
    for finding in findings_of(capture):
        place = f"{place_text(finding.frame, folder)}: " if finding.frame else ""
        yield f"{place}{sentence(finding)}"


def sentence(finding: Finding) -> str:
    """What was found, what to change, what it saves, and the condition if there is one."""
    rule = f"{finding.rule.value[0].upper()}{finding.rule.value[1:]}"
    condition = f" {finding.condition}" if finding.condition else ""
    return f"{rule}: {saving_words(finding)}. {finding.change}{condition}"


def saving_words(finding: Finding) -> str:
    """The saving as a lower bound, or as a range: "saves at least 3.1 MiB of the allocated peak"."""
    least, most = size(finding.saving.least_bytes), size(finding.saving.most_bytes)
    bounds = f"at least {least}" if least == most else f"{least} to {most}"
    return f"saves {bounds} of {finding.saving.measures}"


def figure_words(figure: Figure) -> str:
    """One figure of the evidence, with what it measures."""
    value = size(figure.value) if figure.unit == "bytes" else f"{figure.value:,} {figure.unit}"
    return f"{figure.name}: {value} ({figure.measures})"
