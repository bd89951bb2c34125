"""Leaks as text: the lines to change first, then what was suppressed."""

from __future__ import annotations

from typing import TextIO

from hiwater._os.sizes import format_size
from hiwater.analysis.leaks import LEAST_BYTES, Leak, Leaks
from hiwater.analysis.source import Sources
from hiwater.report.formatting import frame_text, place_and_function, printable

_MOST_FRAMES = 6
_LONGEST = 200


def headline(leaks: Leaks, folder: str) -> str:
    """The result in one sentence."""
    unit = _unit(leaks)
    if leaks.rows:
        worst = leaks.rows[0]
        return f"leaks {format_size(round(worst.bytes_per_moment))} each {unit} at {place_and_function(worst.frame, folder)}"
    if not leaks.can_tell:
        return f"cannot tell: {leaks.tested_snapshots} snapshots were tested, too few for a leak to be told from chance"
    return f"no leak: the test finds growth of {format_size(leaks.detectable_bytes)} each {unit} and more"


def write(leaks: Leaks, sources: Sources, folder: str, stream: TextIO) -> None:
    """`folder` is that of the program: its files are named relative to it. Write the headline, a block for each leak, and how the test was made."""
    stream.write(headline(leaks, folder) + "\n")
    unit = _unit(leaks)
    for leak in leaks.rows:
        _write_leak(leak, unit, sources, folder, stream)
    stream.write(
        f"\ntested: {leaks.tested_paths:,} call paths with {format_size(LEAST_BYTES)} or more, at {leaks.tested_snapshots:,} snapshots of"
        f" {leaks.moments:,} ({unit}s); the first third was not used\n"
    )
    for leak in leaks.suppressed:
        assert leak.suppression is not None  # by the definition of this list
        whose = "known" if leak.suppression.is_built_in else "suppressed"
        growth = format_size(round(leak.bytes_per_moment))
        stream.write(
            f"{whose}: {growth} each {unit} at {place_and_function(leak.frame, folder)}: {printable(leak.suppression.reason)}\n"
        )


def _write_leak(leak: Leak, unit: str, sources: Sources, folder: str, stream: TextIO) -> None:
    stream.write(f"\n{place_and_function(leak.frame, folder)}\n")
    text = sources.line(leak.frame.file, leak.frame.line)
    if text:
        stream.write(f"    {printable(text)}\n")
    stream.write(
        f"    grows by {format_size(round(leak.bytes_per_moment))} each {unit} (at least"
        f" {format_size(max(0, round(leak.lower_bytes_per_moment)))}, p = {leak.p:.1g}); {format_size(leak.live_bytes)} in"
        f" {leak.live_blocks:,} blocks are live at the end ({', '.join(leak.kinds)}; requested bytes, exact)\n"
        f"    ages: {format_size(leak.grown_bytes)} of it was allocated in {unit}s {leak.oldest + 1:,} and later, and some in every part of that time\n"
    )
    if leak.held_by:
        stream.write(f"    held by: {printable(leak.held_by, _LONGEST)}\n")
    if leak.kinds == ("native",):
        stream.write("    native: allocated by C code that this line called, and not by Python's allocators\n")
    stream.writelines(f"      {frame_text(frame)}\n" for frame in leak.frames[: -_MOST_FRAMES - 1 : -1])


def _unit(leaks: Leaks) -> str:
    return leaks.name if leaks.name == "call" else f"{printable(leaks.name)!r}"
