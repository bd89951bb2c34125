"""The figures of a check in the Bencher Metric Format (https://bencher.dev/bmf.json): a benchmark for each program, a measure for each figure."""

from __future__ import annotations

import json
from typing import TextIO

from hiwater.analysis.baseline import Entry
from hiwater.report.check_report import CheckReport

_LONGEST_NAME = 1024  # Bencher refuses longer names


def write(report: CheckReport, stream: TextIO) -> None:
    """One object. An estimate has its bounds as `lower_value` and `upper_value`."""
    figures = {one.name[:_LONGEST_NAME]: _measures(one.now.entry) for one in report.checked}
    json.dump(figures, stream, indent=1)
    stream.write("\n")


def _measures(entry: Entry) -> dict[str, dict[str, int]]:
    """Each figure by its slug ("peak-bytes")."""
    measures = {}
    for figure, count in entry.figures.items():
        measure = {"value": count}
        error = entry.errors.get(figure, 0)
        if error:
            measure |= {"lower_value": max(0, count - error), "upper_value": count + error}
        measures[figure.replace("_", "-")] = measure
    return measures
