"""The parts of the text report for accelerators: their peaks, and the terms of their memory."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hiwater.capture import DeviceMemory
from hiwater.capture.devices import UNACCOUNTED, USED
from hiwater.report.formatting import printable, seconds, share, size
from hiwater.report.request import Report
from hiwater.report.text.terminal import title

_ALWAYS = frozenset({UNACCOUNTED, USED})
_SUMS = frozenset({USED, "used on the card"})


def peaks(report: Report) -> Iterator[Text]:
    """A line for each device, below the process's own peaks."""
    for device in report.capture.devices:
        figures = " · ".join(f"{size(peak)} {quantity}" for quantity, peak in device.peaks())
        limit = f" · of {size(device.limit_bytes)}" if device.limit_bytes else ""
        how, style = ("exact", "green") if device.exact else (f"at least: {printable(device.reason, 120)}", "yellow")
        name = printable(device.name if device.backend == "torch" else f"{device.backend} {device.name}", 30)
        yield Text.assemble(f"  {name:<10} {figures}{limit}  ", (f"{how} · {printable(device.source, 60)}", style))


def breakdowns(report: Report) -> Iterator[Text]:
    """Why the driver says more than the tensors: the terms, at the reading that saw most of each device."""
    for device in report.capture.devices:
        yield from _breakdown(device)


def _breakdown(device: DeviceMemory) -> Iterator[Text]:
    snapshot = device.highest_snapshot
    if snapshot is None:
        return
    yield title(
        f"Where the memory of {printable(device.name, 30)} was",
        f"at {seconds(snapshot.at_ns)}, the device snapshot with the most",
    )
    whole = next((count for name, count in snapshot.terms if name == USED and count), None)
    for name, count in snapshot.terms:
        if not count and name not in _ALWAYS:
            continue
        figure = "unknown" if count is None else size(count)
        part = share(count, whole) if count is not None and whole is not None and name != "used on the card" else ""
        yield Text(
            f"{'=' if name in _SUMS else ' '} {figure:>11} {part:>8}  {printable(name, 60)}",
            "bold" if name in _SUMS else "",
        )
    if whole is None:
        yield Text("  what the driver counts for the process is not known: `hiwater doctor` says why", "dim")
