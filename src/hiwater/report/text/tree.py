"""The call tree with what each call held, largest first; chains of a single callee stay on one level, long ones
without their middle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.analysis.call_tree import build_call_tree
from hiwater.analysis.display_tree import Branch, build_display_tree
from hiwater.report.formatting import frame_text, printable, share, size
from hiwater.report.request import Report
from hiwater.report.text import terminal
from hiwater.report.text.terminal import Page
from hiwater.report.whole_stacks import shaped

_SMALLEST_SHARE = 200  # branches below a two-hundredth of what is shown are summed up
_DEEPEST_INDENT = 40
_LONGEST_CHAIN = 64  # calls, each the only one of its caller; of a longer chain half as many are shown at either end
_FIGURES_WIDTH = 22  # columns before a name


def write(report: Report, stream: TextIO) -> None:
    """Root is all that is shown; under it callers (or, inverted, what asked for memory) with their shares."""
    page = terminal.Page(stream, report.capture.facts.get("cwd", ""))
    whole = report.holdings.total_bytes
    smallest = max(1, whole // _SMALLEST_SHARE)
    call_tree = shaped(report, build_call_tree(report.capture.tables, report.grouping, hide_imports=True))
    root = build_display_tree(call_tree, report.holdings, minimum_bytes=smallest, inverted=report.inverted)
    direction = "callers below callees" if report.inverted else "callees below callers"
    remark = f"  {report.snapshot_words} · {direction} · below {100 / _SMALLEST_SHARE:g} % not listed"
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
        chain = _chain(branch, smallest)
        for number, link in enumerate(chain):
            if len(chain) > _LONGEST_CHAIN and _LONGEST_CHAIN // 2 <= number < len(chain) - _LONGEST_CHAIN // 2:
                if number == _LONGEST_CHAIN // 2:
                    yield Text(f"{'':{_FIGURES_WIDTH}}{indent}… {len(chain) - _LONGEST_CHAIN:,} calls …", "dim")
                continue
            if link.frame is not None:
                yield _line(link, whole, indent + bullet, page)
                indent, bullet = indent + " " * len(bullet), ""
            indent = indent[: min(_DEEPEST_INDENT, page.width // 3)]
        last = chain[-1]
        for count, what in _own_rows(last, smallest):
            yield Text(f"{size(count):>11} {share(count, whole):>8}  {indent}· {what}", "dim")
        bullet = "" if _is_lone(last, smallest) else "• "
        waiting.extend((child, indent, bullet) for child in reversed(last.children))


def _chain(branch: Branch, smallest: int) -> list[Branch]:
    """The branch and what follows it straight below: callees that are the only ones of their callers. The root
    stands alone."""
    chain = [branch]
    while branch.frame is not None and _is_lone(branch, smallest):
        branch = branch.children[0]
        chain.append(branch)
    return chain


def _is_lone(branch: Branch, smallest: int) -> bool:
    """Whether nothing is told of it but one callee, which is drawn straight below: depth then shows where the paths
    part."""
    return len(branch.children) == 1 and not _own_rows(branch, smallest)


def _own_rows(branch: Branch, smallest: int) -> list[tuple[int, str]]:
    """The rows of a branch that are not callees."""
    rows = [(branch.self_bytes, "self" if branch.frame else "no Python frame")] if branch.children else []
    if branch.frame is None and not branch.children:
        rows = [(branch.self_bytes, "no Python frame")]
    rows.append((branch.hidden_bytes, "smaller callees"))
    return [(count, what) for count, what in rows if count >= smallest]


def _line(branch: Branch, whole: int, indent: str, page: Page) -> Text:
    assert branch.frame is not None, "the root is not printed"
    heat = "bold red" if branch.bytes * 2 >= whole else "yellow" if branch.bytes * 10 >= whole else ""
    name = frame_text(branch.frame, page.room(_FIGURES_WIDTH + len(indent)))
    return Text.assemble(
        (f"{size(branch.bytes):>11} {share(branch.bytes, whole):>8}", heat),
        (f"  ± {size(branch.error_bytes)}" if branch.error_bytes else "", "dim"),
        f"  {indent}", (name, page.style(branch.frame)),
    )  # fmt: skip
