"""Plots timelines as PNG, SVG or PDF with matplotlib, which is an extra."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from hiwater._os.sizes import UNITS
from hiwater.analysis.curves import Curve, Plot, Span
from hiwater.errors import PlotLibraryMissing
from hiwater.report.formatting import printable, size
from hiwater.report.request import Report
from hiwater.report.timelines import plots_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"resident": "#1f5fa8", "allocated": "#c1571d", "sum": "#5b6670"}
_SPAN_COLOURS = ("#8a5fb5", "#2f8f6b", "#b5873a", "#b5485f", "#4f7fb5")
# The longest: matplotlib would take minutes to draw more, and nothing could be seen.
_MOST_SPANS, _MOST_NAMED_SPANS = 1000, 40
_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 11.0, 5.2, 130
_NAME_POINTS, _NAME_ROWS = 9, 3  # the names of scopes are above the axes, in a row for each depth


def write(reports: Sequence[Report], stream: TextIO, output_format: str) -> None:
    """Draw the captures of all reports. Raises PlotLibraryMissing."""
    drawn = io.BytesIO()  # matplotlib would seek in a pipe
    draw(plots_of(reports), output_format, drawn)
    stream.flush()
    stream.buffer.write(drawn.getvalue())


def draw(plots: Sequence[Plot], output_format: str, stream: BinaryIO, *, title: str | None = None) -> None:
    """Draw all recordings on the same axes, each from its own start. Raises PlotLibraryMissing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotLibraryMissing(
            f"matplotlib cannot be used ({error})",
            "pip install 'hiwater[plot]'; `hiwater report CAPTURE --format timeline` needs nothing",
        ) from error
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
    axes = figure.subplots()
    unit = _unit(max((curve.peak[1] for shown in plots for curve in shown.curves), default=0.0))
    for number, shown in enumerate(plots):
        _draw(axes, shown, unit, None if len(plots) == 1 else number)
    if len(plots) == 1:
        _draw_spans(axes, plots[0].spans)
    axes.set_title(
        _plain(title or " · ".join(shown.title for shown in plots)), loc="left", fontsize=11, pad=_room_for_names(plots)
    )
    axes.set_xlabel(plots[0].time_words if plots else "")
    axes.set_ylabel(f"memory ({unit[1]})")
    axes.margins(x=0.01, y=0.09)  # the peak's figure stands above it
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="best", fontsize=8, framealpha=0.85)
    figure.savefig(stream, format=output_format, dpi=_DOTS_PER_INCH)


def _draw(axes: Axes, shown: Plot, unit: tuple[int, str], number: int | None) -> None:
    """Draw the curves of one recording, the main ones with their peaks. With several, each recording has a colour of
    its own."""
    for curve in shown.curves:
        style: dict[str, Any] = {"linewidth": 1.6 if curve.kind in ("resident", "allocated") else 0.9}
        if number is not None:
            style["color"] = f"C{number % 10}"
            style["linestyle"] = {"allocated": "--", "sum": ":"}.get(curve.kind, "-")
        elif curve.kind in _COLOURS:
            style["color"] = _COLOURS[curve.kind]
            style["linestyle"] = ":" if curve.kind == "sum" else "-"
        label = curve.label if number is None else f"{shown.title}: {curve.label}"
        if curve.kind == "child" and number is not None:
            label = "_" + label  # matplotlib leaves out of the legend what begins so
        (line,) = axes.plot(curve.seconds, curve.bytes / unit[0], drawstyle="steps-post", label=_plain(label), **style)
        if curve.kind != "child":
            _draw_peak(axes, curve, unit, line.get_color())


def _draw_peak(axes: Axes, curve: Curve, unit: tuple[int, str], colour: Any) -> None:
    at, highest = curve.peak
    axes.plot([at], [highest / unit[0]], "o", color=colour, markersize=5)
    axes.annotate(
        size(int(highest)), (at, highest / unit[0]), xytext=(6, 5), textcoords="offset points", fontsize=8, color=colour
    )


def _draw_spans(axes: Axes, spans: Sequence[Span]) -> None:
    """Draw the longest scopes as shaded intervals, the longest of these with their names, and the number of scopes
    that are left out."""
    drawn = sorted(spans, key=lambda span: span.start - span.end)[:_MOST_SPANS]
    named = set(drawn[:_MOST_NAMED_SPANS])
    if len(spans) > len(drawn):
        axes.annotate(
            f"{len(spans) - len(drawn):,} shorter scopes are not drawn", (1.0, 1.0), xycoords="axes fraction",
            fontsize=7.5, xytext=(0, 2), textcoords="offset points", ha="right",
        )  # fmt: skip
    of_colour = defaultdict[str, list[Span]](list)
    for number, span in enumerate(sorted(drawn, key=lambda span: (span.start, -span.end))):
        colour = _SPAN_COLOURS[number % len(_SPAN_COLOURS)]
        of_colour[colour].append(span)
        if span in named:
            axes.annotate(
                _plain(span.name), (span.start, 1.0), xycoords=("data", "axes fraction"), fontsize=7.5, color=colour,
                xytext=(0, 2 + _NAME_POINTS * (span.depth % _NAME_ROWS)), textcoords="offset points",
            )  # fmt: skip
    for colour, members in of_colour.items():
        _shade(axes, members, colour)


def _shade(axes: Axes, spans: Sequence[Span], colour: str) -> None:
    """Stretches of one colour over the whole height, each with its edges: two artists, however many they are."""
    from matplotlib.collections import LineCollection, PolyCollection

    over_all = axes.get_xaxis_transform()  # x in seconds, y from the bottom to the top of the axes
    corners = [[(one.start, 0), (one.start, 1), (one.end, 1), (one.end, 0)] for one in spans]
    edges = [[(at, 0), (at, 1)] for one in spans for at in (one.start, one.end)]
    axes.add_collection(
        PolyCollection(corners, transform=over_all, color=colour, alpha=0.10, linewidth=0), autolim=False
    )
    axes.add_collection(
        LineCollection(edges, transform=over_all, color=colour, alpha=0.5, linewidth=0.7), autolim=False
    )
    axes.update_datalim([(at, 0) for one in spans for at in (one.start, one.end)], updatey=False)
    axes.autoscale_view(scaley=False)


def _room_for_names(plots: Sequence[Plot]) -> float:
    spans = plots[0].spans if len(plots) == 1 else ()
    rows = max((span.depth % _NAME_ROWS + 1 for span in spans), default=0)
    return 6.0 + _NAME_POINTS * rows


def _unit(highest: float) -> tuple[int, str]:
    return next((unit for unit in reversed(UNITS) if highest >= 2 * unit[0]), UNITS[0])


def _plain(text: str) -> str:
    """A name without formulas and control characters."""
    return printable(text, 120).replace("$", r"\$")
