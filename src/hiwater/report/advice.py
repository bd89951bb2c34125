"""Findings in words and as data for JSON and the page: what to change in which line, what it saves, and the figures
that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hiwater.analysis.advice import Figure, Finding, findings_of
from hiwater.capture import Capture, Frame
from hiwater.report.formatting import place_text, size

NOTHING_FOUND = "No advice: no rule found a saving of 5 % of the peak or more that this recording proves."
_NO_FRAME = Frame("", "", 0)


def data(capture: Capture) -> dict[str, list[dict[str, Any]]]:
    """The members `explain` and `hints` of the JSON report, the largest sure saving first. `file` is empty where a
    finding is about no line. `hints` has the findings of `explain` in one sentence each."""
    explain, hints = [], []
    for finding in findings_of(capture):
        place = asdict(finding.frame or _NO_FRAME)
        explain.append({"rule": finding.rule.value, **place, **_without_place(finding)})
        words = sentence(finding)
        hints.append({"pattern": finding.rule.value, "bytes": finding.saving.least_bytes, "words": words, **place})
    return {"explain": explain, "hints": hints}


def _without_place(finding: Finding) -> dict[str, Any]:
    return {
        "evidence": [asdict(figure) for figure in finding.evidence],
        "saving": {**asdict(finding.saving), "words": saving_words(finding)},
        "change": finding.change,
        "condition": finding.condition,
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
