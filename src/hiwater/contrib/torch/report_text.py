"""A report of tensors for a terminal or a log."""

from __future__ import annotations

from hiwater._os.sizes import format_size
from hiwater.contrib.torch.records import NAMED, Category

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hiwater.contrib.torch.records import DeviceTensors, Identity, StorageEntry, TensorReport, TensorView

ROWS = 12  # of each category, unless all are asked for
_BY_ORIGIN = (Category.saved, Category.unnamed)  # their names say little of where they come from
_NAME, _SHAPE, _TYPE = 44, 20, 10
HEADINGS = {
    Category.parameter: "parameters",
    Category.buffer: "buffers",
    Category.gradient: "gradients",
    Category.optimizer: "optimizer state",
    Category.variable: "variables",
    Category.saved: "saved by autograd",
    Category.unnamed: "Python objects without a name",
}


def text(report: TensorReport, verbose: bool = False) -> str:
    """All of it; `verbose` leaves out no storage and no sharer."""
    lines: list[str] = []
    for one in report.devices:
        lines += _device(one, verbose)
    if report.without_memory:
        lines += _without_memory(report.without_memory, verbose)
    if not report.devices and not report.without_memory:
        lines.append("no tensors")
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _device(one: DeviceTensors, verbose: bool) -> Iterator[str]:
    yield f"tensors on {one.device}"
    yield f"{'':2}{'name':<{_NAME}} {'shape':<{_SHAPE}} {'type':<{_TYPE}} {'size':>10}"
    for category, entries in one.by_category():
        whole = sum(entry.nbytes or 0 for entry in entries)
        yield f"{HEADINGS[category]}: {format_size(whole)} in {_count(len(entries), 'storage')}"
        shown = entries if verbose else entries[:ROWS]
        for entry in shown:
            yield from _rows(entry, verbose)
        rest = sum(entry.nbytes or 0 for entry in entries[len(shown) :])
        if len(shown) < len(entries):
            yield f"  {f'… {len(entries) - len(shown)} more':<{_NAME + _SHAPE + _TYPE + 2}} {format_size(rest):>10}"
    yield from _sum(one.identity)
    yield ""


def _rows(entry: StorageEntry, verbose: bool) -> Iterator[str]:
    size = "?" if entry.nbytes is None else format_size(entry.nbytes)
    remarks = [
        "pinned" if entry.pinned else "",
        "" if entry.in_allocator else "not of this measure",
        also(entry.others) if not verbose else "",
        f"made by {entry.origin}" if entry.origin and (verbose or entry.category in _BY_ORIGIN) else "",
    ]
    note = ", ".join(each for each in remarks if each)
    yield f"{_view_row(entry.owner, '  ')} {size:>10}{f'  {note}' if note else ''}"
    if verbose:
        yield from (f"{_view_row(other, '    = ')} {relation(other):>10}".rstrip() for other in entry.others)
        if entry.owner.aliases:
            yield f"    also called {', '.join(entry.owner.aliases)}"


def _view_row(view: TensorView, indent: str) -> str:
    name = indent + view_name(view)
    return f"{name:<{_NAME + 2}} {shape_text(view):<{_SHAPE}} {view.dtype:<{_TYPE}}"


def view_name(view: TensorView) -> str:
    """The tensor's name, with the part of it where it has several storages."""
    return f"{view.name} [{view.part}]" if view.part else view.name


def shape_text(view: TensorView) -> str:
    """(512, 1024); () for a scalar; ? where it cannot be told."""
    return "?" if view.shape is None else f"({', '.join(map(str, view.shape))})"


def relation(view: TensorView) -> str:
    """How a tensor that is not the owner looks at the storage."""
    return "view" if view.is_view else "same"


def also(others: Sequence[TensorView]) -> str:
    """Who else looks at a storage, in a few words."""
    if not others:
        return ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"= {view_name(others[0])}{more}"


def _sum(identity: Identity) -> Iterator[str]:
    for label, size, note in terms(identity):
        yield f"  {label:<22} {format_size(size):>10}  {size:>16,} B{f'  {note}' if note else ''}"
    if identity.allocated_bytes is None:
        yield (
            "  allocated: not measured on this device; on the CPU a StorageWatch does, begun before the model is built"
        )
    for one in identity.unowned[:ROWS]:
        made = f"made by {one.origin}" if one.origin else "origin unknown: record the allocator's history to see it"
        yield f"    held by C++: {format_size(one.nbytes)} in {_count(one.count, 'block')}, {made}"


def terms(identity: Identity) -> list[tuple[str, int, str]]:
    """The identity line by line: label, bytes, remark. The lines before `allocated` add up to it."""
    sums = identity.by_category
    parts = ", ".join(f"{HEADINGS[one]} {format_size(sums[one])}" for one in NAMED if sums[one])
    lines = [
        ("named", identity.named_bytes, parts),
        ("+ gradients", sums[Category.gradient], ""),
        ("+ optimizer", sums[Category.optimizer], ""),
        ("+ saved by autograd", sums[Category.saved], "not in the rows above"),
        ("+ rounding", identity.rounding_bytes, "the allocator's"),
    ]
    if identity.unowned_bytes is not None and identity.allocated_bytes is not None:
        lines.append(("+ held by C++", identity.unowned_bytes, "no tensor refers to it"))
        if identity.residual_bytes:
            lines.append(("+ unexplained", identity.residual_bytes, "changed while it was being looked at"))
        lines.append(("= allocated", identity.allocated_bytes, identity.source))
    else:
        lines.append(("= found", identity.found_bytes + identity.rounding_bytes, ""))
    if identity.outside_bytes:
        lines.append(("outside", identity.outside_bytes, "storages that this measure does not cover"))
    return lines


def _without_memory(entries: Sequence[StorageEntry], verbose: bool) -> Iterator[str]:
    yield f"without memory: {_count(len(entries), 'tensor')} that are only shapes, or whose size torch does not tell"
    for entry in entries if verbose else entries[:ROWS]:
        size = "?" if entry.nbytes is None else f"would be {format_size(entry.nbytes)}"
        yield f"{_view_row(entry.owner, '  ')} {size:>10}  {entry.place} on {entry.device}"
    if not verbose and len(entries) > ROWS:
        yield f"  … {len(entries) - ROWS} more"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
