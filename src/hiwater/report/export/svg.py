"""A flame graph in one self-contained SVG: widths are bytes, callers above what they called (inverted: the other way).

It needs no scripts: labels, tooltips and legend are in the drawing. The embedded `flame.js` adds zoom and search. The
colour shows the kind of memory of most of a frame's bytes, the shade its module; paler frames are not the user's code.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TextIO
from xml.sax.saxutils import escape, quoteattr

from hiwater.analysis.call_tree import build_call_tree
from hiwater.analysis.display_tree import Branch, build_display_tree
from hiwater.analysis.whole_run import is_of_several
from hiwater.capture.format import COUNTED_KINDS
from hiwater.report.formatting import KIND_WORDS, frame_text, printable, seconds, share, short_frame_text, size
from hiwater.report.request import Report
from hiwater.report.whole_stacks import shaped

WIDTH = 1200
MARGIN = 12
ROW_HEIGHT = 19
HEAD_HEIGHT = 104
FOOT_HEIGHT = 30
CHARACTER_WIDTH = 6.63  # of the monospace font at 11 px
NARROWEST = 0.4  # px; narrower frames would not be visible
DEEPEST_ROW = 256
MOST_BOXES = 30_000

_HUES = {"python": 212, "native": 28, "mapping": 152, "device": 286, "shared": 340}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE = """
text { font: 11px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #10212e; }
.title { font: 600 19px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; }
.words { font: 12.5px system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; fill: #47586a; }
.f rect { stroke: #fff; stroke-width: .8; rx: 2px; }
.f text { pointer-events: none; }
.f:hover rect { stroke: #10212e; }
.scripted .f { cursor: pointer; }
.found rect { fill: #d6246e; }
.found text { fill: #fff; }
.faded { opacity: .55; }
.button { cursor: pointer; fill: #0b5cad; text-decoration: underline; display: none; }
.scripted .button { display: inline; }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A frame's place in the drawing: x and width in bytes, and the row; row 0 is the sum of all."""

    branch: Branch
    row: int
    x_bytes: int


def write(report: Report, stream: TextIO) -> None:
    """Write the drawing. Every name in it is escaped. Frames narrower than half a pixel are left out, and of very
    many the narrowest."""
    whole = report.holdings.total_bytes
    per_pixel = whole / (WIDTH - 2 * MARGIN)
    root = build_display_tree(
        shaped(report, build_call_tree(report.capture.tables, report.grouping, hide_imports=True)), report.holdings,
        minimum_bytes=int(per_pixel * NARROWEST), deepest=DEEPEST_ROW, inverted=report.inverted,
    )  # fmt: skip
    boxes = list(_boxes(root))
    if len(boxes) > MOST_BOXES:
        boxes = sorted(boxes, key=lambda box: -box.branch.bytes)[:MOST_BOXES]  # a frame before what it calls
    rows = max(box.row for box in boxes) + 1
    height = HEAD_HEIGHT + rows * ROW_HEIGHT + FOOT_HEIGHT
    stream.write(
        f'<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH}'
        f' {height}" width="{WIDTH}" height="{height}" data-bytes="{whole}" data-left="{MARGIN}"'
        f' data-width="{WIDTH - 2 * MARGIN}"'
        f' data-character="{CHARACTER_WIDTH}">\n<title>{_xml(_title(report))}</title>\n<style>{_STYLE}</style>\n<rect'
        ' width="100%" height="100%" fill="#fff"/>\n'
    )
    stream.writelines(_head(report))
    stream.write('<g id="frames">\n')
    stream.writelines(_drawn(box, report.capture.tables.own_files, whole) for box in boxes)
    stream.write("</g>\n")
    stream.writelines(_foot(height, inverted=report.inverted))
    script = (files("hiwater.report.export") / "flame.js").read_text("utf-8")  # no name from a capture is put into it
    stream.write(f"<script><![CDATA[\n{script}]]></script>\n</svg>\n")


def _boxes(root: Branch) -> Iterator[Box]:
    waiting = [Box(root, 0, 0)]
    while waiting:
        box = waiting.pop()
        yield box
        x_bytes = box.x_bytes
        for child in box.branch.children:
            waiting.append(Box(child, box.row + 1, x_bytes))
            x_bytes += child.bytes


def _title(report: Report) -> str:
    kind = "" if report.kind == "all" else f" {report.kind}"
    what = "still allocated at the end" if report.snapshot.name == "end" else "allocated"
    peak = "peak: " if report.snapshot.name == "peak" else ""
    return f"{printable(report.title, 50)} — {peak}{size(report.holdings.total_bytes)}{kind} {what}"


def _head(report: Report) -> Iterator[str]:
    """The title, the accuracy, the resident peak, and the legend with the share of each kind."""
    resident = report.capture.resident
    peak_text = f"{'' if resident.exact else 'at least '}{size(resident.peak_bytes)}"
    words = (
        f"{report.exactness(report.snapshot)}, requested bytes at {report.snapshot_words} of"
        f" {seconds(report.capture.process.duration_ns)} · {report.holdings.total_blocks:,} blocks"
        + (
            ""
            if report.capture.device or is_of_several(report.capture)
            else f" · resident peak {peak_text} ({resident.source})"
        )
    )
    yield f'<text class="title" x="{MARGIN}" y="30">{_xml(_title(report))}</text>\n'
    yield f'<text class="words" x="{MARGIN}" y="52">{_xml(words)}</text>\n'
    kinds, x = report.snapshot.kind_bytes(), MARGIN
    for kind in COUNTED_KINDS:
        if not kinds[kind] or report.kind not in ("all", kind):
            continue
        label = f"{KIND_WORDS[kind]} {size(kinds[kind])}"
        yield f'<rect x="{x}" y="66" width="12" height="12" rx="2" fill="hsl({_HUES[kind]} 70% 68%)"/>\n'
        yield f'<text class="words" x="{x + 18}" y="77">{_xml(label)}</text>\n'
        x += 40 + round(7.2 * len(label))
    yield f'<text class="words" x="{x}" y="77">paler: not your own code</text>\n'
    yield f'<text class="words button" id="reset" x="{WIDTH - 150}" y="97">show all</text>\n'
    yield f'<text class="words button" id="search" x="{WIDTH - 70}" y="97">search…</text>\n'
    yield f'<text class="words" id="found" x="{MARGIN}" y="97"></text>\n'


def _foot(height: int, *, inverted: bool) -> Iterator[str]:
    below = "below what asked for memory are its callers" if inverted else "below a frame is what it called"
    words = (
        f"Width is bytes; {below}. Point at a frame for its figures; click to zoom, Esc for all. The import system's"
        " frames are left out."
    )
    yield f'<text class="words" id="said" x="{MARGIN}" y="{height - 11}">{words}</text>\n'


def _drawn(box: Box, own_files: set[str], whole: int) -> str:
    branch, scale = box.branch, (WIDTH - 2 * MARGIN) / max(1, whole)
    name = frame_text(branch.frame, 400) if branch.frame else f"all of {size(branch.bytes)}"
    short = short_frame_text(branch.frame, 200) if branch.frame else name
    x, width = MARGIN + box.x_bytes * scale, branch.bytes * scale
    y = HEAD_HEIGHT + box.row * ROW_HEIGHT
    label = _label(short, width)
    text = f'<text x="{x + 4:.2f}" y="{y + 13}">{_xml(label)}</text>' if label else ""
    return (
        f'<g class="f" data-x="{box.x_bytes}" data-w="{branch.bytes}" data-row="{box.row}"'
        f' data-label={_attribute(short)}><title>{_xml(_tooltip(name, branch, whole))}</title><rect x="{x:.2f}" y="{y}"'
        f' width="{max(width, 0.2):.2f}" height="{ROW_HEIGHT - 1}" fill="{_colour(branch, own_files)}"/>{text}</g>\n'
    )


def _label(name: str, width: float) -> str:
    """The part of a name that fits; the script does the same after a zoom."""
    room = int((width - 7) / CHARACTER_WIDTH)
    if room < 3:
        return ""
    return name if len(name) <= room else name[: room - 1] + "…"


def _tooltip(name: str, branch: Branch, whole: int) -> str:
    kinds = ", ".join(
        f"{kind} {share(count, branch.bytes)}"
        for kind, count in zip(COUNTED_KINDS, branch.kind_bytes, strict=True)
        if count
    )
    return (
        f"{name}\n{size(branch.bytes)} ({branch.bytes:,} bytes), {share(branch.bytes, whole)} of what is shown\n"
        f"{size(branch.self_bytes)} by itself · {branch.blocks:,} blocks · {kinds or 'nothing'}"
    )


def _colour(branch: Branch, own_files: set[str]) -> str:
    """The hue of the kind with most bytes, with the shade of the module; pale for code that is not the user's."""
    if branch.frame is None:
        return "hsl(210 14% 86%)"
    kind = COUNTED_KINDS[branch.kind_bytes.index(max(branch.kind_bytes))]
    shade = zlib.crc32((branch.frame.file or branch.frame.function).encode("utf-8", "replace"))
    hue = _HUES[kind] + shade % 25 - 12
    pale = branch.frame.file not in own_files
    saturation, lightness = (34, 84) if pale else (74, 70)
    return f"hsl({hue} {saturation}% {lightness + (shade >> 8) % 7 - 3}%)"


def _xml(text: str) -> str:
    """Text for the inside of tags. Characters that XML does not allow become U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", text))
