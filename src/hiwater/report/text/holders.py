"""Holders as text: the group that retains most first, each with what holds it and who allocated it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from hiwater._os.sizes import format_size
from hiwater.analysis.holders import HolderGroup, Holders, Site
from hiwater.analysis.source import Sources
from hiwater.report.formatting import place_and_function, printable, seconds, share, signed_size

_LONGEST = 200
_MOST_TYPES = 8
_MOST_PLACES = 2


def headline(holders: Holders, folder: str) -> str:
    """The result in one sentence."""
    unheld = _leading_unheld(holders)
    if unheld is not None:
        return (
            f"{format_size(unheld.bytes)} in {unheld.blocks:,} blocks that no object was found to hold, allocated at"
            f" {place_and_function(unheld.frame, folder)}"
        )
    if not holders.groups:
        return (
            "nothing found: no listed object is"
            f" {'of type or from line ' + printable(holders.what) if holders.what else 'large'}"
        )
    first = holders.groups[0]
    figure = format_size(first.retained_bytes)
    if holders.since is not None:
        if first.growth_bytes <= 0:
            return f"nothing has grown since search {holders.since.number}"
        figure = f"{signed_size(first.growth_bytes)} to {figure}"
    return f"{figure} in {_objects(first)}, held by {printable(first.held_by, _LONGEST)}{_allocated(first, folder)}"


def write(holders: Holders, sources: Sources, folder: str, stream: TextIO) -> None:
    """`folder` is that of the program: its files are named relative to it. Write the headline, a block for each
    group, the types, and how it was measured."""
    stream.write(headline(holders, folder) + "\n")
    for group in holders.groups:
        _write_group(group, holders, sources, folder, stream)
    if holders.left_out:
        stream.write(f"\n{holders.left_out:,} more groups: --limit N shows more, --format json has all\n")
    if _is_whole(holders):
        _write_unheld(holders, sources, folder, stream)
        _write_types(holders, stream)
    _write_source(holders, stream)


def _write_group(group: HolderGroup, holders: Holders, sources: Sources, folder: str, stream: TextIO) -> None:
    growth = f"{signed_size(group.growth_bytes)} since search {holders.since.number}, to " if holders.since else ""
    stream.write(
        f"\n{growth}{format_size(group.retained_bytes)}  {_objects(group)} "
        f" ({share(group.retained_bytes, holders.bytes)} of all)\n"
    )
    stream.write(f"    held by       {printable(group.held_by, _LONGEST)}\n")
    stream.writelines(f"    also held by  {printable(other, _LONGEST)}\n" for other in group.also_held_by)
    _write_sites(group.sites, len(group.sites) > 1, sources, folder, stream)
    if not group.sites:
        stream.write("    allocated     before the recording began, or not in the sample\n")
    if len(group.contents) > 1:
        contents = ", ".join(f"{format_size(one.bytes)} {printable(one.type_name, 60)}" for one in group.contents)
        stream.write(f"    contents      {contents}\n")
        own = {site.frame for site in group.sites}
        stream.writelines(
            f"    contents from {place_and_function(site.frame, folder)}  ({format_size(site.bytes)})\n"
            for site in [site for site in group.retained_sites if site.frame not in own][:_MOST_PLACES]
        )


def _leading_unheld(holders: Holders) -> Site | None:
    """The line whose blocks no object holds, where that is more than any group has."""
    if not holders.unheld or not _is_whole(holders) or not holders.unheld[0].group.is_own_line:
        return None
    most = holders.groups[0].retained_bytes if holders.groups else 0
    return holders.unheld[0] if holders.unheld[0].bytes > most else None


def _is_whole(holders: Holders) -> bool:
    return not holders.what and holders.since is None


def _write_unheld(holders: Holders, sources: Sources, folder: str, stream: TextIO) -> None:
    """Blocks of C code, and of the interpreter itself."""
    if not holders.unheld:
        return
    stream.write(
        f"\n{format_size(holders.unheld_bytes)}  recorded blocks that no object was found to hold: of C code or the"
        " interpreter\n"
    )
    _write_sites(holders.unheld, True, sources, folder, stream)


def _write_sites(sites: Sequence[Site], has_figures: bool, sources: Sources, folder: str, stream: TextIO) -> None:
    """The first lines that allocated something, each with its text."""
    for site in sites[:_MOST_PLACES]:
        text = sources.line(site.frame.file, site.frame.line)
        part = f"  ({format_size(site.bytes)} in {site.blocks:,} blocks)" if has_figures else ""
        quote = f"  {printable(text, 80)}" if text else ""
        stream.write(f"    allocated at  {place_and_function(site.frame, folder)}{part}{quote}\n")


def _write_types(holders: Holders, stream: TextIO) -> None:
    stream.write("\nTypes\n")
    stream.writelines(
        f"    {format_size(row.bytes):>10}  {row.count:>12,} × {printable(row.type_name, 80)}\n"
        for row in holders.types[:_MOST_TYPES]
    )


def _write_source(holders: Holders, stream: TextIO) -> None:
    search = holders.search
    name = f" {printable(search.name, 60)!r}" if search.name else ""
    stream.write(
        f"\n{holders.objects:,} objects have {format_size(holders.bytes)} (their own blocks and buffers, requested"
        f" bytes{', those of C libraries as far as they are in the sample' if holders.is_sampled else ''}); hiwater's"
        f" own modules hold {format_size(holders.own_bytes)} of it\nsearch {search.number}{name},"
        f" {seconds(search.at_ns)} after the start, took {seconds(search.duration_ns)}; the program stood still for"
        f" {search.pause_ns / 1e6:.1f} ms\n"
    )


def _objects(group: HolderGroup) -> str:
    return f"{group.count:,} × {printable(group.type_name, 80)}" if group.count > 1 else printable(group.type_name, 80)


def _allocated(group: HolderGroup, folder: str) -> str:
    return f", allocated at {place_and_function(group.sites[0].frame, folder)}" if group.sites else ""
