"""Everything that limits trust in the figures of a report, in sentences."""

from __future__ import annotations

from hiwater.analysis import own_allocators
from hiwater.analysis.source import Sources
from hiwater.analysis.symbols import coverage
from hiwater.capture.program import recorded_window
from hiwater.report.formatting import printable, seconds
from hiwater.report.request import Report
from hiwater.report.text import device_history


def notes(report: Report, sources: Sources) -> list[str]:
    """The notes, those on most figures first. `sources` knows which of the shown files have changed."""
    capture = report.capture
    found = []
    window = recorded_window(capture.tables)
    if window is not None:
        found.append(
            f"recorded inside another recording: the allocated peak covers {seconds(window[0])} to {seconds(window[1])}"
            " and includes what was live before; all other figures cover the outer recording up to then"
        )
    if capture.process.stop_reason:
        found.append(f"recording stopped early: {printable(capture.process.stop_reason, 300)}")
    if capture.lost_events:
        found.append(f"{capture.lost_events:,} events were lost: the figures miss these allocations and frees")
    before = capture.totals.frees_from_before
    if "attached" in capture.facts and before:
        found.append(f"{before:,} blocks from before the recording were freed during it: they are in no figure")
    found += [printable(what, 300) for what in capture.shortcomings]
    if capture.process.ended == "recording":
        found.append(
            "the program is still running: the figures are a moment old, and may disagree by what happened during the"
            " reading"
        )
    found += [f"the capture contradicts itself: {printable(problem, 300)}" for problem in report.problems]
    found += [printable(note, 300) for note in device_history.notes(capture)]
    found += [printable(note, 300) for note in own_allocators.notes(capture.peak)]
    found += coverage.notes(capture.peak)
    return found + source_notes(sources)


def source_notes(sources: Sources) -> list[str]:
    """What a reader must know of the source text that was shown, and of what was not."""
    found = []
    if sources.changed:
        found.append(
            "source files changed since the recording; the lines shown may not be those that ran:"
            f" {_names(sources.changed)}"
        )
    if sources.elsewhere:
        found.append(
            f"source is shown of files below the current folder: change to that of {_names(sources.elsewhere)}"
        )
    return found


def _names(files: set[str]) -> str:
    return ", ".join(printable(name, 60) for name in sorted(files)[:3])
