"""One line a stack, root first: `function (file:line);function (file:line) BYTES`. What flame graph tools read."""

from __future__ import annotations

from typing import TextIO

from hiwater.analysis.forest import plant
from hiwater.views.report import Report
from hiwater.views.words import frame_text

NO_FRAMES = "[no Python frame]"
_LINES_IN_CHUNK = 8192


def write(report: Report, stream: TextIO) -> None:
    """All stacks in the order of every view; paths of several kinds of memory come once for each.

    In names, `;` becomes `:` (it parts frames here) and what would break a line or the terminal is escaped.
    """
    forest = plant(report.capture, report.grouping)
    parent, key = forest.parent.tolist(), forest.key.tolist()
    names: dict[int, str] = {}
    lines = []
    leaves = forest.place[report.holdings.node].tolist()
    for leaf, count in zip(leaves, report.holdings.bytes.tolist(), strict=True):
        path, node = [], leaf
        while node:
            name = names.get(key[node])
            if name is None:
                name = names[key[node]] = frame_text(forest.frames[key[node]]).replace(";", ":") or "?"
            path.append(name)
            node = parent[node]
        if report.inverted:
            lines.append(f"{';'.join(path) or NO_FRAMES} {count}\n")
        else:
            lines.append(f"{';'.join(reversed(path)) or NO_FRAMES} {count}\n")
        if len(lines) == _LINES_IN_CHUNK:
            stream.write("".join(lines))
            lines.clear()
    stream.write("".join(lines))
