"""The call tree with what each call held, largest first; chains of a single callee stay on one level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.analysis.forest import plant
from hiwater.analysis.tree import Branch, grow
from hiwater.views import terminal
from hiwater.views.report import Report
from hiwater.views.terminal import Page
from hiwater.views.words import frame_text, printable, share, size

_SMALLEST_SHARE = 200  # branches below a two-hundredth of what is shown are summed up
_DEEPEST_INDENT = 40
_FIGURES_WIDTH = 22  # columns before a name


def write(report: Report, stream: TextIO) -> None:
    """Root is all that is shown; under it callers (or, inverted, what asked for memory) with their shares."""
    page = terminal.Page(stream, report.capture.facts.get("cwd", ""))
    whole = report.holdings.total_bytes
    smallest = max(1, whole // _SMALLEST_SHARE)
    forest = plant(report.capture, report.grouping, fold_imports=True)
    root = grow(forest, report.holdings, minimum_bytes=smallest, inverted=report.inverted)
    direction = "callers below what they called" if report.inverted else "what is called below its caller"
    remark = f"  {report.moment_words} · {direction} · below {100 / _SMALLEST_SHARE:g} % not listed"
    title = Text.assemble(
        (f"{size(whole):>11}  {printable(report.title, page.room(_FIGURES_WIDTH))}", "bold"), (remark, "dim")
    )
    page.show(title)
    for line in _below(root, whole, smallest, page):
        page.show(line)


def _below(root: Branch, whole: int, smallest: int, page: Page) -> Iterator[Text]:
    """Lines of everything under `root`, without recursion: stacks may be thousands deep."""
    waiting = [(root, "", "")]
    while waiting:
        branch, indent, bullet = waiting.pop()
        if branch.frame is not None:
            yield _line(branch, whole, indent + bullet, page)
            indent += " " * len(bullet)
        beside = [(branch.own_bytes, "by itself" if branch.frame else "held with no frame")] if branch.children else []
        if branch.frame is None and not branch.children:
            beside = [(branch.own_bytes, "held with no frame")]
        beside.append((branch.hidden_bytes, "smaller ones"))
        shown = [(count, what) for count, what in beside if count >= smallest]
        # A lone callee is drawn straight below its caller: depth then shows where the paths part.
        bullet = "" if len(branch.children) == 1 and not shown else "• "
        indent = indent[: min(_DEEPEST_INDENT, page.width // 3)]
        for count, what in shown:
            yield Text(f"{size(count):>11} {share(count, whole):>8}  {indent}· {what}", "dim")
        waiting.extend((child, indent, bullet) for child in reversed(branch.children))


def _line(branch: Branch, whole: int, indent: str, page: Page) -> Text:
    assert branch.frame is not None, "the root is not printed"
    heat = "bold red" if branch.bytes * 2 >= whole else "yellow" if branch.bytes * 10 >= whole else ""
    name = frame_text(branch.frame, page.room(_FIGURES_WIDTH + len(indent)))
    return Text.assemble(
        (f"{size(branch.bytes):>11} {share(branch.bytes, whole):>8}", heat),
        (f"  ± {size(branch.error_bytes)}" if branch.error_bytes else "", "dim"),
        f"  {indent}", (name, page.style(branch.frame)),
    )  # fmt: skip
