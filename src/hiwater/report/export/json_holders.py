"""Holders as JSON: `hiwater.holders`, version 1."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TextIO

from hiwater.analysis.holders import HolderGroup, Holders, Site

FORMAT, VERSION = "hiwater.holders", 1


def write(holders: Holders, stream: TextIO) -> None:
    json.dump(as_data(holders), stream, indent=1)
    stream.write("\n")


def as_data(holders: Holders) -> dict[str, Any]:
    """What `docs/holders.md` describes; bytes are integers."""
    search = holders.search
    return {
        "format": FORMAT,
        "version": VERSION,
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
        "groups": [_group(group) for group in holders.groups],
        "groups_left_out": holders.left_out,
        "unheld_bytes": holders.unheld_bytes,
        "unheld_allocated_at": list(map(_site, holders.unheld)),
        "types": [{"type": row.type_name, "count": row.count, "bytes": row.bytes} for row in holders.types],
    }


def _site(site: Site) -> dict[str, Any]:
    return {
        "file": site.frame.file,
        "line": site.frame.line,
        "function": site.frame.function,
        "group": str(site.group),
        "blocks": site.blocks,
        "bytes": site.bytes,
    }


def _group(group: HolderGroup) -> dict[str, Any]:
    earlier = group.earlier
    return {
        "type": group.type_name,
        "count": group.count,
        "bytes": group.bytes,
        "retained_bytes": group.retained_bytes,
        "held_by": group.held_by,
        "path": list(group.path),
        "also_held_by": list(group.also_held_by),
        "allocated_at": list(map(_site, group.sites)),
        "retained_allocated_at": list(map(_site, group.retained_sites)),
        "contents": [{"type": row.type_name, "count": row.count, "bytes": row.bytes} for row in group.contents],
        "earlier": None if earlier is None else asdict(earlier),
    }
