"""Leaks as text: the lines to change first, then what was suppressed."""

from __future__ import annotations

import re
from typing import TextIO

from hiwater._os.sizes import format_size
from hiwater.analysis.growth import LEAST_BYTES
from hiwater.analysis.leaks import Leak, Leaks
from hiwater.analysis.source import Sources
from hiwater.analysis.type_growth import TypeLeak
from hiwater.report.formatting import frame_text, place_and_function, printable

_MOST_FRAMES = 6
_LONGEST = 200


def headline(leaks: Leaks, folder: str) -> str:
    """The result in one sentence."""
    each = _each(leaks)
    if leaks.rows:
        worst = leaks.rows[0]
        return f"leaks {format_size(round(worst.bytes_per_moment))} {each} at {place_and_function(worst.frame, folder)}"
    if leaks.by_type:
        worst_type = leaks.by_type[0]
        return f"leaks {format_size(round(worst_type.bytes_per_moment))} {each} in objects of type {worst_type.type_name}, allocated on {worst_type.line_count:,} lines"
    if not leaks.can_tell:
        return f"cannot tell: {leaks.tested_snapshots} snapshots were tested, too few for a leak to be told from chance"
    return f"no leak: the test finds growth of {format_size(leaks.detectable_bytes)} {each} and more"


def write(leaks: Leaks, sources: Sources, folder: str, stream: TextIO) -> None:
    """`folder` is that of the program: its files are named relative to it. Write the headline, a block for each leak, and how the test was made."""
    stream.write(headline(leaks, folder) + "\n")
    each, unit = _each(leaks), _unit(leaks)
    for leak in leaks.rows:
        _write_leak(leak, each, unit, sources, folder, stream)
    for one in leaks.by_type:
        _write_type(one, each, unit, folder, stream)
    stream.write(
        f"\ntested: {leaks.tested_paths:,} call paths with {format_size(LEAST_BYTES)} or more, at {leaks.tested_snapshots:,} snapshots of"
        f" {leaks.moments:,} ({unit}s); the first third was not used\n"
    )
    if leaks.last_tested < leaks.moments:
        stream.write(
            f"only the first {leaks.last_tested:,} were tested: then there were too many call paths to tell when memory was allocated\n"
        )
    for leak in leaks.suppressed:
        assert leak.suppression is not None  # by the definition of this list
        whose = "known" if leak.suppression.is_built_in else "suppressed"
        growth = format_size(round(leak.bytes_per_moment))
        stream.write(
            f"{whose}: {growth} {each} at {place_and_function(leak.frame, folder)}: {printable(leak.suppression.reason)}\n"
        )


def _write_leak(leak: Leak, each: str, unit: str, sources: Sources, folder: str, stream: TextIO) -> None:
    stream.write(f"\n{place_and_function(leak.frame, folder)}\n")
    text = sources.line(leak.frame.file, leak.frame.line)
    if text:
        stream.write(f"    {printable(text)}\n")
    stream.write(
        f"    {_growth(leak, each)} in {leak.live_blocks:,} blocks are live at the end ({', '.join(leak.kinds)}; requested bytes, exact)\n"
        f"    {_ages(leak, unit)}\n"
    )
    if leak.types:
        stream.write(f"    types: {printable(', '.join(leak.types), _LONGEST)}\n")
    if leak.held_by:
        stream.write(f"    held by: {printable(leak.held_by, _LONGEST)}\n")
    if leak.kinds == ("native",):
        stream.write("    native: allocated by C code that this line called, and not by Python's allocators\n")
    stream.writelines(f"      {frame_text(frame)}\n" for frame in leak.frames[: -_MOST_FRAMES - 1 : -1])


def _write_type(leak: TypeLeak, each: str, unit: str, folder: str, stream: TextIO) -> None:
    stream.write(
        f"\ntype {printable(leak.type_name, _LONGEST)}, on call paths that do not show it one by one\n"
        f"    {_growth(leak, each)} are live at the end\n"
        f"    {_ages(leak, unit)}\n"
    )
    if leak.held_by:
        stream.write(f"    held by: {printable(leak.held_by, _LONGEST)}\n")
    stream.writelines(f"      {place_and_function(frame, folder)}\n" for frame in leak.lines)
    if leak.line_count > len(leak.lines):
        stream.write(f"      and {leak.line_count - len(leak.lines):,} more lines\n")


def _growth(leak: Leak | TypeLeak, each: str) -> str:
    least = format_size(max(0, round(leak.lower_bytes_per_moment)))
    return f"grows by {format_size(round(leak.bytes_per_moment))} {each} (at least {least}, p = {leak.p:.1g}); {format_size(leak.live_bytes)}"


def _ages(leak: Leak | TypeLeak, unit: str) -> str:
    return f"ages: {format_size(leak.grown_bytes)} of it was allocated after {unit} {leak.oldest:,}, and some in every part of that time"


def _unit(leaks: Leaks) -> str:
    if leaks.name == "call":
        return leaks.name
    return "snapshot" if _is_of_time(leaks) else f"{printable(leaks.name)!r}"


def _each(leaks: Leaks) -> str:
    return leaks.name if _is_of_time(leaks) else f"each {_unit(leaks)}"


def _is_of_time(leaks: Leaks) -> bool:
    """Whether the moments are ends of intervals (`--snapshot-every`), which are named after their length."""
    return re.fullmatch(r"every [\d.e+-]+ s", leaks.name) is not None
