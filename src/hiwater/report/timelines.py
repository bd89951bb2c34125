"""The timelines of reports as what can be drawn."""

from __future__ import annotations

from collections.abc import Sequence

from hiwater.analysis import curves
from hiwater.analysis.curves import Plot
from hiwater.report.request import Report


def plots_of(reports: Sequence[Report]) -> list[Plot]:
    """One plot for each capture: the whole recording, or what lies in the window that is asked for."""
    plots = [curves.plot_of(report.capture, report.title) for report in reports]
    moment = reports[0].moment
    start, is_window, end = moment.partition(":") if isinstance(moment, str) else ("", "", "")
    return [curves.window(shown, float(start), float(end)) for shown in plots] if is_window else plots
