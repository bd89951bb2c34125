"""The call tree with what each call held, largest first; chains of a single callee stay on one level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.analysis.forest import plant
from hiwater.analysis.tree import Branch, grow
from hiwater.views import terminal
from hiwater.views.report import Report
from hiwater.views.words import frame_text, printable, share, size

_SMALLEST_SHARE = 200  # branches below a two-hundredth of what is shown are summed up
_DEEPEST_INDENT = 40


def write(report: Report, stream: TextIO) -> None:
    """Root is all that is shown; under it callers (or, inverted, what asked for memory) with their shares."""
    console = terminal.console(stream)
    whole = report.holdings.total_bytes
    smallest = max(1, whole // _SMALLEST_SHARE)
    root = grow(
        plant(report.capture, report.grouping, fold_imports=True), report.holdings, minimum_bytes=smallest, inverted=report.inverted
    )
    direction = "callers below what they called" if report.inverted else "what is called below its caller"
    console.print(
        Text.assemble(
            (f"{size(whole):>11}  ", "bold"),
            (f"{printable(report.title, 80)}", "bold"),
            (f"  {report.moment_words} · {direction}", "dim"),
        ),
        soft_wrap=True,
    )
    for line in _below(root, whole):
        console.print(line, soft_wrap=True)


def _below(root: Branch, whole: int) -> Iterator[Text]:
    """Lines of everything under `root`, without recursion: stacks may be thousands deep."""
    waiting = [(root, "", "")]
    while waiting:
        branch, indent, bullet = waiting.pop()
        if branch.frame is not None:
            yield _line(branch, whole, indent + bullet)
            indent += " " * len(bullet)
        # A lone callee is drawn straight below its caller: depth then shows where the paths part.
        is_chain = len(branch.children) == 1 and not branch.hidden_bytes and not branch.own_bytes
        further = indent[:_DEEPEST_INDENT]
        if branch.own_bytes and (branch.children or branch.frame is None):
            what = "held with no frame" if branch.frame is None else "by itself"
            yield Text(f"{size(branch.own_bytes):>11} {share(branch.own_bytes, whole):>8}  {further}· {what}", "dim")
        if branch.hidden_bytes:
            yield Text(
                f"{size(branch.hidden_bytes):>11} {share(branch.hidden_bytes, whole):>8}  {further}· smaller ones",
                "dim",
            )
        waiting.extend((child, further, "" if is_chain else "• ") for child in reversed(branch.children))


def _line(branch: Branch, whole: int, indent: str) -> Text:
    assert branch.frame is not None, "the root is not printed"
    heat = "bold red" if branch.bytes * 2 >= whole else "yellow" if branch.bytes * 10 >= whole else ""
    return Text.assemble(
        (f"{size(branch.bytes):>11} {share(branch.bytes, whole):>8}", heat), f"  {indent}{frame_text(branch.frame, 140)}",
    )  # fmt: skip
