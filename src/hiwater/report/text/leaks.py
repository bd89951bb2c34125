"""Leaks as text: the lines to change first, then what was suppressed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TextIO

from hiwater._os.sizes import format_size
from hiwater.analysis.growth import LEAST_BYTES
from hiwater.analysis.leaks import Leak
from hiwater.analysis.run_leaks import Leaks
from hiwater.analysis.source import Sources
from hiwater.analysis.type_growth import TypeLeak
from hiwater.report.formatting import frame_text, place_and_function, printable

_MOST_FRAMES = 6
_LONGEST = 200
_MOST_PIDS = 8


def headline(leaks: Leaks, folder: str) -> str:
    """The result in one sentence."""
    each = _each(leaks)
    if leaks.rows:
        worst = leaks.rows[0]
        return (
            f"leaks {format_size(round(worst.bytes_per_moment))} {each}{_whose(leaks, worst)} at"
            f" {place_and_function(worst.frame, folder)}"
        )
    if leaks.by_type:
        worst_type = leaks.by_type[0]
        return (
            f"leaks {format_size(round(worst_type.bytes_per_moment))} {each}{_whose(leaks, worst_type)} in objects of"
            f" type {worst_type.type_name}, allocated on {worst_type.line_count:,} lines"
        )
    if not leaks.can_tell:
        return (
            f"cannot tell: {leaks.longest.tested_snapshots} snapshots were tested, too few for a leak to be told from"
            f" chance; record {_more(leaks)}"
        )
    return (
        f"no leak: the test finds growth of {format_size(leaks.detectable_bytes)}"
        f" {each}{' in a process' if _is_of_several(leaks) else ''} and more"
    )


def write(leaks: Leaks, sources: Sources, folder: str, stream: TextIO) -> None:
    """`folder` is that of the program: its files are named relative to it. Write the headline, a block for each
    leak, and how the test was made."""
    stream.write(headline(leaks, folder) + "\n")
    each = _each(leaks)
    for leak in leaks.rows:
        _write_leak(leak, leaks, sources, folder, stream)
    for one in leaks.by_type:
        _write_type(one, leaks, folder, stream)
    _write_tests(leaks, stream)
    for leak in leaks.suppressed:
        assert leak.suppression is not None  # by the definition of this list
        whose = "known" if leak.suppression.is_built_in else "suppressed"
        growth = format_size(round(leak.bytes_per_moment))
        stream.write(
            f"{whose}: {growth} {each} at {place_and_function(leak.frame, folder)}:"
            f" {printable(leak.suppression.reason)}\n"
        )


def _write_tests(leaks: Leaks, stream: TextIO) -> None:
    longest, paths = leaks.longest, sum(one.tested_paths for one in leaks.processes)
    several = f" in {len(leaks.processes):,} processes" if len(leaks.processes) > 1 else ""
    of_longest = f" of process {longest.pid}, which has most" if several else ""
    stream.write(
        f"\ntested: {paths:,} call paths with {format_size(LEAST_BYTES)} or more{several}, at"
        f" {longest.tested_snapshots:,} snapshots of {longest.moments:,} ({_unit(leaks)}s){of_longest}; the first third"
        " was not used\n"
    )
    if leaks.untested:
        without = "process" if leaks.untested == 1 else "processes"
        stream.write(f"not tested: {leaks.untested:,} {without} without such a snapshot, or without a capture\n")
    if _is_of_several(leaks) and (few := [one.pid for one in leaks.processes if not one.can_tell]):
        stream.write(f"too few snapshots to tell: {_processes(few)}\n")
    for one in leaks.processes:
        if one.last_tested < one.moments:
            whose = f" of process {one.pid}" if _is_of_several(leaks) else ""
            stream.write(
                f"only the first {one.last_tested:,}{whose} were tested: then there were too many call paths to tell"
                " when memory was allocated\n"
            )


def _write_leak(leak: Leak, leaks: Leaks, sources: Sources, folder: str, stream: TextIO) -> None:
    stream.write(f"\n{place_and_function(leak.frame, folder)}\n")
    text = sources.line(leak.frame.file, leak.frame.line)
    if text:
        stream.write(f"    {printable(text)}\n")
    stream.write(
        f"    {_growth(leak, leaks)} in {leak.live_blocks:,} blocks are live at the end ({', '.join(leak.kinds)};"
        f" requested bytes, exact)\n    {_ages(leak, _unit(leaks))}\n"
    )
    if leak.types:
        stream.write(f"    types: {printable(', '.join(leak.types), _LONGEST)}\n")
    if leak.held_by:
        stream.write(f"    held by: {printable(leak.held_by, _LONGEST)}\n")
    if leak.headers:
        lines = ", ".join(place_and_function(frame, folder) for frame in leak.headers)
        stream.write(f"    headers of its objects, or memory that free lists handed on: {printable(lines, _LONGEST)}\n")
    if leak.kinds == ("native",):
        stream.write("    native: allocated by C code that this line called, and not by Python's allocators\n")
    stream.writelines(f"      {frame_text(frame)}\n" for frame in leak.frames[: -_MOST_FRAMES - 1 : -1])


def _write_type(leak: TypeLeak, leaks: Leaks, folder: str, stream: TextIO) -> None:
    stream.write(
        f"\ntype {printable(leak.type_name, _LONGEST)}, on call paths that do not show it one by one\n"
        f"    {_growth(leak, leaks)} are live at the end\n"
        f"    {_ages(leak, _unit(leaks))}\n"
    )
    if leak.held_by:
        stream.write(f"    held by: {printable(leak.held_by, _LONGEST)}\n")
    stream.writelines(f"      {place_and_function(frame, folder)}\n" for frame in leak.lines)
    if leak.line_count > len(leak.lines):
        stream.write(f"      and {leak.line_count - len(leak.lines):,} more lines\n")


def _is_of_several(leaks: Leaks) -> bool:
    return len(leaks.processes) + leaks.untested > 1


def _whose(leaks: Leaks, leak: Leak | TypeLeak) -> str:
    """In which processes; nothing where there is one."""
    if not _is_of_several(leaks):
        return ""
    return f" in {'' if len(leak.pids) == 1 else 'each of '}{_processes(leak.pids)}"


def _processes(pids: Sequence[int]) -> str:
    if len(pids) == 1:
        return f"process {pids[0]}"
    shown = ", ".join(map(str, pids[:_MOST_PIDS])) + (" …" if len(pids) > _MOST_PIDS else "")
    return f"{len(pids):,} processes ({shown})"


def _growth(leak: Leak | TypeLeak, leaks: Leaks) -> str:
    least = format_size(max(0, round(leak.lower_bytes_per_moment)))
    return (
        f"grows by {format_size(round(leak.bytes_per_moment))} {_each(leaks)}{_whose(leaks, leak)} (at least {least}, p"
        f" = {leak.p:.1g}); {format_size(leak.live_bytes)}"
    )


def _ages(leak: Leak | TypeLeak, unit: str) -> str:
    return (
        f"ages: {format_size(leak.grown_bytes)} of it was allocated after {unit} {leak.oldest:,}, and some in every"
        " part of that time"
    )


def _unit(leaks: Leaks) -> str:
    if leaks.name == "call":
        return leaks.name
    return "snapshot" if _is_of_time(leaks) else f"{printable(leaks.name)!r}"


def _each(leaks: Leaks) -> str:
    return leaks.name if _is_of_time(leaks) else f"each {_unit(leaks)}"


def _more(leaks: Leaks) -> str:
    """How a recording gets more snapshots."""
    if leaks.name == "call":
        return "with a larger --repeat"
    return "for longer, or with a shorter --snapshot-every" if _is_of_time(leaks) else f"more of {_unit(leaks)}"


def _is_of_time(leaks: Leaks) -> bool:
    """Whether the moments are ends of intervals (`--snapshot-every`), which are named after their length."""
    return re.fullmatch(r"every [\d.e+-]+ s", leaks.name) is not None
