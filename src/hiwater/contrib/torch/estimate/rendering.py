"""An estimate as text and HTML: the verdict, the peak by kind, module and line, the steps, and what is not included."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hiwater.contrib.torch.estimate.batch import Search
from hiwater.report.formatting import printable, share, size
from hiwater.report.text import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.contrib.torch.estimate.result import (
        EstimateData,
        EstimateLine,
        EstimateModule,
        EstimateStep,
        EstimateTry,
    )

_TOP = 10
_FITS = {True: "yes", False: "no", None: "unknown"}
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def write(estimate: EstimateData, stream: TextIO, top: int = _TOP) -> None:
    """The estimate as text, as wide as the terminal."""
    _print(terminal.console(stream), _parts(estimate, top))


def write_search(search: Search, stream: TextIO, top: int = _TOP) -> None:
    """The search for the largest batch: the answer, the probes, and the estimate of that batch."""
    console = terminal.console(stream)
    _print(console, _search_parts(search))
    if search.estimate is not None:
        _print(console, _parts(search.estimate, top))


def write_html(found: EstimateData | Search, stream: TextIO, top: int = _TOP) -> None:
    """The same tables as a page that loads nothing."""
    console = Console(file=io.StringIO(), record=True, width=140)
    estimate: EstimateData | None
    if isinstance(found, Search):
        _print(console, _search_parts(found))
        estimate = found.estimate
    else:
        estimate = found
    if estimate is not None:
        _print(console, _parts(estimate, top))
    stream.write(console.export_html(inline_styles=True))


def _print(console: Console, parts: list[RenderableType]) -> None:
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(estimate: EstimateData, top: int) -> list[RenderableType]:
    peak = estimate.at_peak
    parts: list[RenderableType] = [
        *_heading(estimate),
        *([_tries(estimate.tries)] if estimate.tries else []),
        _table(("at the peak", list(peak["categories"].items())), estimate.peak_allocated_bytes, top),
        _table(
            ("module", _modules(peak["modules"])),
            estimate.peak_allocated_bytes,
            top,
        ),
        _table(
            ("made by line", [(_line(row), row["bytes"]) for row in peak["lines"]]), estimate.peak_allocated_bytes, top
        ),
        _steps(estimate.steps),
    ]
    parts += [Text(f"note: {note}") for note in estimate.notes]
    parts.append(Text("not counted:"))
    parts += [Text(f"  - {what}") for what in estimate.not_counted]
    return parts


def _range(least: int, most: int | None) -> str:
    """A figure, or two that it lies between."""
    return " to ".join(dict.fromkeys((size(least), size(max(least, most or 0)))))


def _heading(estimate: EstimateData) -> list[Text]:
    batch = f", batch of {estimate.batch_size}" if estimate.batch_size is not None else ""
    mode = "training" if estimate.mode == "train" else "inference"
    least = "at least " if estimate.low_because else ""
    peak = f"peak {least}{_range(estimate.peak_allocated_bytes, estimate.most_allocated_bytes)} allocated"
    if estimate.peak_reserved_bytes is not None:
        peak += (
            f", {_range(estimate.peak_reserved_bytes, estimate.most_reserved_bytes)} reserved,"
            f" {size(estimate.peak_used_bytes or 0)} used with a context of {size(estimate.context_bytes)} (assumed)"
        )
    reached_by = estimate.at_peak["reached_by"]
    lines = [
        Text(
            f"{printable(estimate.target, 80)} · {mode}{batch} · {estimate.parameters:,} parameters · estimated, not"
            " measured"
        ),
        Text(
            f"{peak}: step {estimate.at_peak['step']}, {estimate.at_peak['phase']}, reached by"
            f" {size(reached_by['bytes'])} for {_reached(estimate)}"
        ),
    ]
    if estimate.total_bytes is not None:
        lines.append(Text(verdict(estimate), "bold"))
    elif estimate.low_because:
        lines.append(Text(f"the figures are known to be too low: {'; '.join(estimate.low_because)}", "bold"))
    return lines


def verdict(estimate: EstimateData) -> str:
    """One line: whether it fits on the card, and by how much."""
    card = f"{estimate.device} ({size(estimate.total_bytes or 0)})"
    margin = estimate.margin_bytes or 0
    if estimate.fits is None:
        return (
            f"unknown whether it fits on {card}: the figures are known to be too low"
            f" ({'; '.join(estimate.low_because)}); without that {size(margin)} are to spare"
        )
    if not estimate.fits:
        return f"does not fit on {card}: {size(-margin)} are missing"
    if estimate.fits_only_by_retrying:
        return (
            f"fits on {card} only because torch gives cached memory back and asks again, with {size(margin)} to spare"
        )
    return f"fits on {card} with {size(margin)} to spare"


def _table(rows: tuple[str, Sequence[tuple[str, int]]], whole: int, top: int) -> Table:
    heading, entries = rows
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column(heading, overflow="fold")  # retired word: rich's name
    for name, count in entries[:top]:
        table.add_row(size(count), share(count, whole), Text(printable(name, 200)))
    rest = entries[top:]
    if rest:
        count = sum(count for _, count in rest)
        table.add_row(size(count), share(count, whole), Text(f"{len(rest):,} others", "dim"))
    return table


def _modules(rows: list[EstimateModule]) -> list[tuple[str, int]]:
    """Rows of modules. Modules that differ only in numbers are parts of a list, and share a row: `layers.*.mlp (32
    alike)`."""
    sums: Counter[str] = Counter()
    alike: Counter[str] = Counter()
    for row in rows:
        name = _NUMBER.sub("*", row["module"]) or "[no module]"
        sums[name] += row["bytes"]
        alike[name] += 1
    return [(f"{name} ({alike[name]} alike)" if "*" in name else name, count) for name, count in sums.most_common()]


def _line(row: EstimateLine) -> str:
    if not row["file"]:
        return f"[{row['function']}]"
    file = os.path.relpath(row["file"]) if row["file"].startswith(os.getcwd() + os.sep) else row["file"]
    return f"{row['function']} ({file}:{row['line']})"


def _reached(estimate: EstimateData) -> str:
    """The user's own line first, where a library's made the request."""
    line, own = estimate.at_peak["reached_by"], estimate.at_peak["called_by"]
    return _line(line) if own is None else f"{_line(own)}, in {_line(line)}"


def _tries(tries: list[EstimateTry]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("with", overflow="fold")  # retired word: rich's name
    for heading in ("peak", "difference", "fits"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("price", overflow="fold")  # retired word: rich's name
    for one in tries:
        if one["problem"] is not None:
            table.add_row(one["name"], "–", "–", "–", Text(f"not tried: {printable(one['problem'], 300)}", "dim"))
            continue
        difference = one["difference_bytes"] or 0
        table.add_row(
            Text(printable(one["change"], 200)), size(one["peak_allocated_bytes"] or 0),
            f"{'-' if difference < 0 else '+'}{size(abs(difference))}", _FITS[one["fits"]], Text(one["price"]),
        )  # fmt: skip
    return table


def _steps(steps: list[EstimateStep]) -> Table:
    phases = list(dict.fromkeys(phase for step in steps if step["step"] for phase in step["phases"]))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("peak of step", *phases, "reserved so far"):
        table.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        if step["step"]:
            reserved = step["peak_reserved_bytes"]
            cells = [size(step["phases"][phase]) if phase in step["phases"] else "–" for phase in phases]
            table.add_row(str(step["step"]), *cells, "–" if reserved is None else size(reserved))
    return table


def _search_parts(search: Search) -> list[RenderableType]:
    if search.batch_size:
        beyond = "" if search.is_bounded else " and more would; the search ended there"
        answer = f"largest batch that fits: {search.batch_size}{beyond}"
        if search.low_because:
            larger = "" if not search.is_bounded else f"no batch above {search.batch_size} fits; "
            answer = (
                f"unknown: {larger}whether {search.batch_size} does is not known, as the figures are known to be too"
                f" low ({'; '.join(search.low_because)})"
            )
    else:
        answer = "not even the smallest batch fits"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("batch", "needed", "fits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for probe in search.probes:
        table.add_row(f"{probe.batch_size:,}", size(probe.needed_bytes), "yes" if probe.fits else "no")
    warning = (
        []
        if search.is_monotonic
        else [Text("a larger batch needed less than a smaller one: a larger one may fit", "bold")]
    )
    return [Text(answer, "bold"), table, *warning]
