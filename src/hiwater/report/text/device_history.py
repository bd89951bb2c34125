"""The parts of a report for a device: the source of its figures, its peaks, and the state of its allocator at the
end."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hiwater.allocator_state import AllocatorState
from hiwater.capture import Capture
from hiwater.capture.tables import whole_number
from hiwater.report.formatting import printable, seconds, share, size
from hiwater.report.request import Report
from hiwater.report.text.peak import allocated_peak
from hiwater.report.text.terminal import Page, program, title

_STATE_WORDS = (
    ("requested_bytes", "asked for, in use"),
    ("rounding_bytes", "rounding: blocks in use are larger than what was asked for"),
    ("awaiting_free_bytes", "freed, waiting for another stream to be done with it"),
    ("inactive_split_bytes", "fragmentation: free, in segments (or pages) that are in use as well"),
    ("free_segments_bytes", "free segments, and free pages of expandable ones: empty_cache() gives them back"),
)
_MOST_STREAMS = 6


def head(report: Report, page: Page) -> Iterator[Text]:
    """The device and the source of its figures."""
    capture = report.capture
    yield program(report, page)
    count = whole_number(capture.facts.get("events", "")) or 0
    events = (
        f"{count:,} events over {seconds(capture.process.duration_ns)}"
        if count
        else "no events, only what was held at the end"
    )
    yield Text(
        f"memory of {printable(capture.device or '', 40)} · {events} · {printable(source_words(capture), 80)}", "dim"
    )


def source_words(capture: Capture) -> str:
    """The source of the figures, in words."""
    return capture.facts.get("source", "history of torch's caching allocator")


def peaks(report: Report) -> Iterator[Text]:
    """The peaks of live and of reserved bytes, and the live bytes at the end."""
    capture, end = report.capture, report.capture.end
    yield title("Peak")
    yield allocated_peak(report)
    if capture.reserved_peak_bytes is not None:
        yield Text(
            f"  reserved   {size(capture.reserved_peak_bytes):>11}  taken from the driver, at its own highest moment"
        )
    yield Text(
        f"  at the end {size(end.allocated_bytes):>11}  still allocated in {end.allocated_blocks:,} blocks, "
        f"of {size(capture.totals.allocated_bytes)} in {capture.totals.allocations:,} allocations"
    )


def allocator(report: Report) -> Iterator[Text]:
    """The identity: reserved memory, and what it was used for."""
    state = report.capture.allocator
    if state is None:
        return
    yield title("What the allocator held at the end", f"{size(state.reserved_bytes)} in {state.segments:,} segments")
    for name, words in _STATE_WORDS:
        count = getattr(state, name)
        if count or name == "requested_bytes":
            yield Text(f"  {size(count):>11} {share(count, state.reserved_bytes):>8}  {words}")
    yield from _details(state)


def _details(state: AllocatorState) -> Iterator[Text]:
    largest = sorted(state.largest_free.items(), key=lambda each: -each[1])[:_MOST_STREAMS]
    if largest:
        blocks = ", ".join(f"{size(count)} ({printable(name, 40)})" for name, count in largest)
        yield Text(f"  the largest free blocks, by the requests they can serve: {blocks}", "dim")
    if state.private_free_segments_bytes:
        yield Text(
            f"  {size(state.private_free_segments_bytes)} of the free segments are in private pools: empty_cache() does"
            " not return them",
            "dim",
        )
    for name, reserved in sorted(state.private_pools.items(), key=lambda pool: -pool[1]):
        yield Text(
            f"  of all this, {size(reserved)} are in private pool {printable(name, 40)} (a CUDA graph's, or a MemPool)",
            "dim",
        )


def notes(capture: Capture) -> Iterator[str]:
    """Sentences on the limits of the figures of a device's history."""
    if capture.live_before_bytes:
        yield (
            f"{size(capture.live_before_bytes)} were allocated before the history began (it was switched on later, or"
            " its ring buffer overflowed): an earlier peak may have been higher"
        )
    yield from filter(None, capture.facts.get("notes", "").split("\n"))


def refused(capture: Capture) -> Iterator[Text]:
    """Why device memory was refused, if that ended the program."""
    said = capture.oom_report or {}
    verdict = said.get("verdict")
    if not isinstance(verdict, dict):
        return
    yield title(
        f"Memory of {printable(str(said.get('device', 'a device')), 20)} was refused",
        printable(str(verdict.get("kind", "")), 40),
    )
    yield Text(f"  {printable(str(verdict.get('why', '')), 400)}")
    advice = verdict.get("advice")
    for line in advice[:10] if isinstance(advice, list) else ():
        yield Text(f"  - {printable(str(line), 400)}", "dim")


def of_process(capture: Capture) -> Iterator[Text]:
    """For the report of a process: the devices whose memory is also in its recording."""
    yield from refused(capture)
    if not capture.readable_histories:
        return
    yield title("Memory of devices", "apart from the figures above; `--kind device` shows the stacks")
    for device in capture.readable_histories:
        peak = device.peak
        reserved = f" · reserved {size(device.reserved_peak_bytes)}" if device.reserved_peak_bytes is not None else ""
        yield Text(
            f"  {size(peak.allocated_bytes):>11}  {printable(device.device or '', 20)} at its peak, at"
            f" {seconds(peak.at_ns)}{reserved} · {size(device.end.allocated_bytes)} at the end"
        )
