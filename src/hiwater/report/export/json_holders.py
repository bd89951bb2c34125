"""Holders for machines. `holders.schema.json` in report/schemas is made from the type `HoldersData`."""

from __future__ import annotations

from typing import Literal, TextIO, TypedDict

from hiwater.analysis.holders import Content, Figures, HolderGroup, Holders, Site
from hiwater.analysis.user_lines import Group
from hiwater.report.document import FrameData, data_of, frame_data, text_of


class HeldSite(FrameData):
    """A line that allocated some of the objects."""

    group: Group
    blocks: int
    bytes: int


class HeldType(TypedDict):
    """Objects of one type."""

    type: str
    count: int
    bytes: int


class HeldGroup(TypedDict):
    """Like objects that are held in the same way."""

    type: str
    count: int
    """0: what is left of a module or a function whose parts are groups of their own"""
    bytes: int
    """with the buffers that belong to these objects alone"""
    retained_bytes: int
    """what would be free without these objects"""
    held_by: str
    path: list[str]
    """each step from a root"""
    also_held_by: list[str]
    allocated_at: list[HeldSite]
    """the lines that allocated these objects"""
    retained_allocated_at: list[HeldSite]
    """the lines that allocated all that they retain"""
    contents: list[HeldType]
    """types among what they retain"""


class ComparedGroup(HeldGroup):
    """A group with what an earlier search found of it."""

    earlier: Figures | None


class ObjectHolders(TypedDict):
    """What the page has of the last search for holders."""

    search: int
    name: str
    at_ns: int
    pause_ns: int
    objects: int
    bytes: int
    hiwater_bytes: int
    """of which hiwater's own modules hold so much"""
    is_sampled: bool
    groups: list[HeldGroup]
    groups_left_out: int
    types: list[HeldType]


class HoldersData(TypedDict):
    """What `hiwater holders --format json` writes. Sizes are bytes, times are nanoseconds since the recording began.
    Members are only ever added."""

    format: Literal["hiwater.holders"]
    version: Literal[1]
    search: int
    """which search of the capture"""
    name: str
    since_search: int | None
    """the earlier search to which `earlier` belongs; null without --since and --wait"""
    at_ns: int
    pause_ns: int
    """how long the program stood still"""
    duration_ns: int
    objects: int
    bytes: int
    """of all objects"""
    hiwater_bytes: int
    """of which hiwater's own modules hold so much"""
    is_sampled: bool
    """whether only sampled buffers of C libraries are included"""
    groups: list[ComparedGroup]
    """those that retain most, or have grown most, first. With --type and --line, those with most bytes come first, and
    one may hold another"""
    groups_left_out: int
    unheld_bytes: int
    """recorded blocks without a known holder; a sampled recording has none"""
    unheld_allocated_at: list[HeldSite]
    """the lines that allocated most of them"""
    types: list[HeldType]
    """all types"""


def write(holders: Holders, stream: TextIO) -> None:
    stream.write(text_of(_document(holders)) + "\n")


def _document(holders: Holders) -> HoldersData:
    search = holders.search
    return {
        "format": "hiwater.holders",
        "version": 1,
        "search": search.number,
        "name": search.name,
        "since_search": holders.since.number if holders.since is not None else None,
        "at_ns": search.at_ns,
        "pause_ns": search.pause_ns,
        "duration_ns": search.duration_ns,
        "objects": holders.objects,
        "bytes": holders.bytes,
        "hiwater_bytes": holders.own_bytes,
        "is_sampled": holders.is_sampled,
        "groups": [{**group_data(group), "earlier": group.earlier} for group in holders.groups],
        "groups_left_out": holders.left_out,
        "unheld_bytes": holders.unheld_bytes,
        "unheld_allocated_at": list(map(_site, holders.unheld)),
        "types": list(map(type_data, holders.types)),
    }


def type_data(row: Content) -> HeldType:
    return {"type": row.type_name, "count": row.count, "bytes": row.bytes}


def _site(site: Site) -> HeldSite:
    return data_of(HeldSite, site, **frame_data(site.frame))


def group_data(group: HolderGroup) -> HeldGroup:
    return data_of(
        HeldGroup,
        group,
        type=group.type_name,
        allocated_at=list(map(_site, group.sites)),
        retained_allocated_at=list(map(_site, group.retained_sites)),
        contents=list(map(type_data, group.contents)),
    )
