"""The phases and markers that the program named."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hiwater.capture import Capture, ScopeSpan
from hiwater.report.formatting import printable, seconds, size
from hiwater.report.text.terminal import title

_IN_BRIEF = 4


def in_brief(capture: Capture) -> Iterator[Text]:
    """The names with the highest peaks."""
    yield from _phases(capture, _IN_BRIEF)


def whole(capture: Capture, top: int) -> Iterator[Text]:
    """More names, and the last markers."""
    yield from _phases(capture, top)
    markers = [marker for marker in capture.markers if marker.name]
    if not markers:
        return
    made = capture.header.get("named_markers", len(markers))
    yield title(
        "Markers", f"{made:,}" + (f", of which the first {len(markers):,} are kept" if made > len(markers) else "")
    )
    for marker in markers[-top:]:
        yield Text(f"  {seconds(marker.at_ns):>11}  {printable(marker.name, 80)}")


def _phases(capture: Capture, top: int) -> Iterator[Text]:
    """A row for each name: its highest peak, what its phases kept, how often and how long it was."""
    by_name: dict[str, list[ScopeSpan]] = {}
    for scope in capture.scopes:
        if scope.allocated_peak_bytes is not None:
            by_name.setdefault(scope.name, []).append(scope)
    if not by_name:
        return
    kept = sum(map(len, by_name.values()))
    made = capture.header.get("scopes", kept)
    yield title(
        "Phases",
        "the highest peak of each name" + (f"; of {made:,} phases the last {kept:,} are kept" if made > kept else ""),
    )
    ranked = sorted(by_name.items(), key=lambda item: -max(one.allocated_peak_bytes or 0 for one in item[1]))
    for name, scopes in ranked[:top]:
        yield Text(_row(name, scopes))
    if len(ranked) > top:
        yield Text(f"  … and {len(ranked) - top:,} more names", "dim")


def _row(name: str, scopes: list[ScopeSpan]) -> str:
    highest = max(scopes, key=lambda one: one.allocated_peak_bytes or 0)
    grown = sum(
        one.allocated_last_bytes - one.allocated_start_bytes
        for one in scopes
        if one.allocated_last_bytes is not None and one.allocated_start_bytes is not None
    )
    change = f"kept {size(grown)}" if grown >= 0 else f"freed {size(-grown)}"
    unended = sum(one.allocated_end_bytes is None for one in scopes)
    if unended:
        change += " so far: it did not end" if len(scopes) == 1 else f", {unended:,} did not end"
    times = f"{seconds(highest.start_ns)} – {seconds(highest.end_ns)}"
    often = (
        ""
        if len(scopes) == 1
        else (
            f", the highest of {len(scopes):,}; all together took"
            f" {seconds(sum(one.end_ns - one.start_ns for one in scopes))}"
        )
    )
    return f"  {size(highest.allocated_peak_bytes or 0):>11}  {printable(name, 60)}  {times}{often}; {change}"
