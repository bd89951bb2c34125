"""A report of tensors as a piece of HTML for a notebook: a bar with the shares of the categories, and a table that
opens for each category."""

from __future__ import annotations

from html import escape

from hiwater._os.sizes import format_size
from hiwater.contrib.torch.records import Category
from hiwater.contrib.torch.report_text import HEADINGS, relation, shape_text, terms, view_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hiwater.contrib.torch.records import DeviceTensors, StorageEntry, TensorReport

_COLOURS = {
    Category.parameter: "#4477aa", Category.buffer: "#66ccee", Category.gradient: "#228833",
    Category.optimizer: "#ccbb44",
    Category.variable: "#ee6677", Category.saved: "#aa3377", Category.unnamed: "#888888",
}  # fmt: skip
_UNOWNED, _ROUNDING = "#222222", "#bbbbbb"
_MOST_ROWS = 200
_MOST_UNOWNED = 12
_CELL = "text-align:left;padding:0 1em 0 0"
_NUMBER = "text-align:right;padding:0 1em 0 0;font-variant-numeric:tabular-nums"


def page(report: TensorReport) -> str:
    """All of it; names come from the program and are escaped."""
    parts = [part for one in report.devices for part in _device(one)]
    if report.without_memory:
        parts += _table(f"without memory: {len(report.without_memory):,} tensors", report.without_memory)
    parts += [f"<p>note: {escape(note)}</p>" for note in report.notes]
    return f'<div class="hiwater-tensors">{"".join(parts) or "no tensors"}</div>'


def _device(one: DeviceTensors) -> Iterator[str]:
    yield f"<h4>tensors on {escape(one.device)}</h4>"
    yield _bar(one)
    for category, entries in one.by_category():
        whole = sum(entry.nbytes or 0 for entry in entries)
        yield from _table(f"{HEADINGS[category]}: {format_size(whole)}", entries, _COLOURS[category])
    rows = "".join(
        f'<tr><td style="{_CELL}">{escape(label)}</td><td style="{_NUMBER}">{format_size(size)}</td>'
        f'<td style="{_NUMBER}">{size:,} B</td><td style="{_CELL}">{escape(note)}</td></tr>'
        for label, size, note in terms(one.identity)
    )
    yield f"<table>{rows}</table>"
    for held in one.identity.unowned[:_MOST_UNOWNED]:
        origin = escape(held.origin) or "origin unknown"
        yield f"<div>held by C++: {format_size(held.nbytes)} in {held.count:,} blocks, {origin}</div>"


def _bar(one: DeviceTensors) -> str:
    identity = one.identity
    shares = [(HEADINGS[kind], size, _COLOURS[kind]) for kind, size in identity.by_category.items()]
    shares += [("rounding", identity.rounding_bytes, _ROUNDING), ("held by C++", identity.unowned_bytes or 0, _UNOWNED)]
    whole = sum(size for _, size, _ in shares)
    pieces = "".join(
        f'<div title="{escape(label)}: {format_size(size)}"'
        f' style="width:{100 * size / whole:.3f}%;background:{colour}"></div>'
        for label, size, colour in shares
        if size > 0
    )
    return (
        '<div style="display:flex;height:1.2em;max-width:60em" role="img" aria-label="bytes by'
        f' category">{pieces}</div>'
    )


def _table(
    title: str, entries: tuple[StorageEntry, ...] | list[StorageEntry], colour: str = "#888888"
) -> Iterator[str]:
    yield (
        f'<details><summary><span style="color:{colour}">■</span> {escape(title)} in {len(entries):,}'
        f' storages</summary><table><thead><tr><th style="{_CELL}">name</th><th style="{_CELL}">shape</th><th'
        f' style="{_CELL}">type</th><th style="{_NUMBER}">size</th><th style="{_CELL}">shared'
        " with</th></tr></thead><tbody>"
    )
    for entry in entries[:_MOST_ROWS]:
        yield _row(entry)
    if len(entries) > _MOST_ROWS:
        rest = sum(entry.nbytes or 0 for entry in entries[_MOST_ROWS:])
        yield (
            f'<tr><td style="{_CELL}" colspan="3">… {len(entries) - _MOST_ROWS:,} more</td><td'
            f' style="{_NUMBER}">{format_size(rest)}</td></tr>'
        )
    yield "</tbody></table></details>"


def _row(entry: StorageEntry) -> str:
    others = ", ".join(f"{view_name(other)} ({relation(other)})" for other in entry.others[:4])
    more = f" and {len(entry.others) - 4} more" if len(entry.others) > 4 else ""
    size = "?" if entry.nbytes is None else format_size(entry.nbytes)
    notes = " pinned" if entry.pinned else ""
    notes += "" if entry.place == "memory" else f" {entry.place}"
    return (
        f'<tr><td style="{_CELL}">{escape(view_name(entry.owner))}</td><td'
        f' style="{_CELL}">{escape(shape_text(entry.owner))}</td><td'
        f' style="{_CELL}">{escape(entry.owner.dtype + notes)}</td><td style="{_NUMBER}">{size}</td><td'
        f' style="{_CELL}">{escape(others + more)}</td></tr>'
    )
