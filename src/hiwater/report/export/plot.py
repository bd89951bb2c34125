"""Timelines as a drawing: PNG, SVG or PDF, with matplotlib, which is an extra."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from hiwater._os.sizes import UNITS
from hiwater.analysis.curves import Curve, Picture, Span
from hiwater.errors import PlotLibraryMissing
from hiwater.report.formatting import printable, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg", "pdf")
_COLOURS = {"resident": "#1f5fa8", "allocated": "#c1571d", "sum": "#5b6670"}
_SPAN_COLOURS = ("#8a5fb5", "#2f8f6b", "#b5873a", "#b5485f", "#4f7fb5")
_MOST_SPANS, _MOST_NAMED_SPANS = 1000, 40  # the longest; more would be a haze, and matplotlib takes minutes to draw it
_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 11.0, 5.2, 130
_NAME_POINTS, _NAME_ROWS = 9, 3  # names of scopes stand above the axes, a row for each depth


def write(pictures: Sequence[Picture], output_format: str, stream: BinaryIO, *, title: str | None = None) -> None:
    """Draw all pictures over one another, each from its own start. Raises PlotLibraryMissing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotLibraryMissing(
            f"matplotlib cannot be used ({error})",
            "pip install 'hiwater[plot]', or use --terminal, which needs nothing",
        ) from error
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
    axes = figure.subplots()
    unit = _unit(max((curve.peak[1] for shown in pictures for curve in shown.curves), default=0.0))
    for number, shown in enumerate(pictures):
        _draw(axes, shown, unit, None if len(pictures) == 1 else number)
    if len(pictures) == 1:
        _draw_spans(axes, pictures[0].spans)
    axes.set_title(
        _plain(title or " · ".join(shown.title for shown in pictures)),
        loc="left",
        fontsize=11,
        pad=_room_for_names(pictures),
    )
    axes.set_xlabel(pictures[0].time_words if pictures else "")
    axes.set_ylabel(f"memory ({unit[1]})")
    axes.margins(x=0.01, y=0.09)  # the peak's figure stands above it
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="best", fontsize=8, framealpha=0.85)
    figure.savefig(stream, format=output_format, dpi=_DOTS_PER_INCH)


def _draw(axes: Axes, shown: Picture, unit: tuple[int, str], number: int | None) -> None:
    """The curves of one recording; each main one with its peak. Of several, each recording has a colour of its own."""
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
            _mark_peak(axes, curve, unit, line.get_color())


def _mark_peak(axes: Axes, curve: Curve, unit: tuple[int, str], colour: Any) -> None:
    at, highest = curve.peak
    axes.plot([at], [highest / unit[0]], "o", color=colour, markersize=5)
    axes.annotate(
        size(int(highest)), (at, highest / unit[0]), xytext=(6, 5), textcoords="offset points", fontsize=8, color=colour
    )


def _draw_spans(axes: Axes, spans: Sequence[Span]) -> None:
    """The longest scopes as shaded stretches; the longest of these have their names written. How many are left out is said."""
    drawn = sorted(spans, key=lambda span: span.start - span.end)[:_MOST_SPANS]
    named = set(drawn[:_MOST_NAMED_SPANS])
    if len(spans) > len(drawn):
        axes.annotate(
            f"{len(spans) - len(drawn):,} shorter scopes are not drawn", (1.0, 1.0), xycoords="axes fraction", fontsize=7.5,
            xytext=(0, 2), textcoords="offset points", ha="right",
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


def _room_for_names(pictures: Sequence[Picture]) -> float:
    spans = pictures[0].spans if len(pictures) == 1 else ()
    rows = max((span.depth % _NAME_ROWS + 1 for span in spans), default=0)
    return 6.0 + _NAME_POINTS * rows


def _unit(highest: float) -> tuple[int, str]:
    return next((unit for unit in reversed(UNITS) if highest >= 2 * unit[0]), UNITS[0])


def _plain(text: str) -> str:
    """A name as it is: nothing in it is a formula, and no control character reaches the file."""
    return printable(text, 120).replace("$", r"\$")
