"""One line a stack, root first: `function (file:line);function (file:line) BYTES`. What flame graph tools read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from hiwater.analysis.call_tree import CallTree
from hiwater.capture import Frame
from hiwater.capture.snapshot import Holdings
from hiwater.report.formatting import frame_text
from hiwater.report.path_texts import PathTexts, joined, write_bytes
from hiwater.report.request import Report
from hiwater.report.whole_stacks import whole_stacks

NO_FRAMES = b"[no Python frame]"


def write(report: Report, stream: TextIO) -> None:
    """All stacks in the order of every view; paths of several kinds of memory come once for each.

    In names, `;` becomes `:` (it parts frames here) and what would break a line or the terminal is escaped. Inverted,
    the frame that asked for the memory comes first. Recursion too deep to be written whole is written once. Raises
    ReportTooLarge.
    """
    whole = whole_stacks(report)
    held = whole.holdings(report.holdings)
    write_bytes(stream, _inverted(whole.call_tree, held) if report.inverted else _upright(whole.call_tree, held))


def fragment(frame: Frame) -> bytes:
    """A frame as it stands between semicolons."""
    return (frame_text(frame).replace(";", ":") or "?").encode("utf-8", "replace")


def _upright(call_tree: CallTree, held: Holdings) -> Iterator[bytes]:
    texts = PathTexts(call_tree, fragment, b";")
    leaves = call_tree.place[held.node]
    for part in texts.chunks(leaves):
        heads = [NO_FRAMES if leaf == 0 else b"" for leaf in leaves[part].tolist()]
        tails = [b" %d\n" % count for count in held.bytes[part].tolist()]
        yield joined(heads, *texts.pieces_of(leaves[part]), tails)


def _inverted(call_tree: CallTree, held: Holdings) -> Iterator[bytes]:
    parent, key = call_tree.parent.tolist(), call_tree.key.tolist()
    names: dict[int, bytes] = {}
    leaves = call_tree.place[held.node].tolist()
    for leaf, count in zip(leaves, held.bytes.tolist(), strict=True):
        path, node = [], leaf
        while node:
            if key[node] not in names:
                names[key[node]] = fragment(call_tree.frames[key[node]])
            path.append(names[key[node]])
            node = parent[node]
        yield (b";".join(path) or NO_FRAMES) + b" %d\n" % count
