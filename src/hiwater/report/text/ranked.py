"""The tables of a report: the user's own lines, rows of one grouping, and the stacks with the most memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.style import Style
from rich.text import Text

from hiwater._os.headline import OTHER_CODE
from hiwater._os.ownership import IMPORT_SYSTEM
from hiwater.analysis.advice import findings_of
from hiwater.analysis.ranking import by
from hiwater.analysis.source import Sources
from hiwater.analysis.user_lines import Group, Ranking, UserLine, held_by
from hiwater.capture import Capture, Frame
from hiwater.capture.snapshot import Stacks
from hiwater.report import advice as words_of
from hiwater.report.formatting import frame_text, place_text, printable, share, short_frame_text, size
from hiwater.report.request import Report
from hiwater.report.text.terminal import Page, title

_FIGURES_WIDTH, _BLOCKS_WIDTH = 24, 20  # columns before a name (size and share) and after it (blocks)
_FRAMES_SHOWN = 12
_LONGEST_ADVICE = 400
_SMALLEST_SHARE = 1000  # what is below a thousandth of all that is shown has no row in the brief report
_SMALLEST_SOURCE = 20  # columns: source text is not cut to less


def advice(capture: Capture, page: Page, most: int) -> Iterator[Text]:
    """What to change, in a line for each of the `most` findings with the largest saving."""
    found = list(words_of.texts(capture, page.folder))
    if found:
        yield title("What to change", "--explain shows the evidence")
    for text in found[:most]:
        yield Text(f"  {printable(text, _LONGEST_ADVICE)}")
    if len(found) > most:
        yield Text(f"  … and {len(found) - most:,} more: see --explain", "dim")


def advice_with_evidence(capture: Capture, page: Page) -> Iterator[Text]:
    """What to change, each finding with its figures."""
    found = findings_of(capture)
    if found:
        yield title("What to change")
    for finding in found:
        place = place_text(finding.frame, page.folder) if finding.frame else "no single line"
        style = page.style(finding.frame, bold=True) if finding.frame else "bold"
        rule = f"  {finding.rule.value}: {words_of.saving_words(finding)}"
        yield Text.assemble("  ", (place, style), rule)
        yield Text(f"      {printable(finding.change, _LONGEST_ADVICE)}")
        if finding.condition:
            yield Text(f"      {finding.condition}")
        for figure in finding.evidence:
            yield Text(f"      {printable(words_of.figure_words(figure), _LONGEST_ADVICE)}", "dim")


def _shown(report: Report) -> str:
    kind = "" if report.kind == "all" else f" of {report.kind} memory"
    error = f", any one figure within {size(report.snapshot.error_bytes)}" if report.snapshot.error_bytes else ""
    return f"{size(report.holdings.total_bytes)}{kind} at {report.snapshot_words}{error}"


def brief_lines(report: Report, ranking: Ranking, sources: Sources, page: Page) -> Iterator[Text]:
    """The user's own lines, a row each with the source text, and a row for each group that stands apart from them."""
    whole = report.holdings.total_bytes
    yield title("Your lines", f"with everything that they called, at {report.snapshot_words}")
    before, listed, after = _parts(ranking)
    for group in before:
        yield from _apart(group, whole, None, page)
    shown = [row for row in listed[: report.top] if _is_listed(row.bytes, whole)]
    names = [row.before + place_text(row.frame, page.folder, page.width // 3) for row in shown]
    column = max(map(len, names), default=0)
    for row, name in zip(shown, names, strict=True):
        yield _brief_row(report, row, (name, column), sources, page)
    rest = listed[len(shown) :]
    if _is_listed(held_by(rest), whole):
        yield from _others(held_by(rest), f"on {len(rest):,} other line{'s' if len(rest) > 1 else ''}")
    for group in after:
        if _is_listed(held_by(group.rows), whole):
            yield from _apart(group, whole, None, page)
    if not whole:
        yield Text("  nothing that the program allocated was live")


def _is_listed(count: int, whole: int) -> bool:
    """Whether a sum is large enough for a row of the brief report."""
    return count > 0 and count * _SMALLEST_SHARE >= whole


def _brief_row(report: Report, row: UserLine, name: tuple[str, int], sources: Sources, page: Page) -> Text:
    """One line of source: what it holds, where it is (in a column of this width), and its text where there is room
    for it."""
    (place, column), whole = name, report.holdings.total_bytes
    is_sampled = report.capture.process.mode == "sampled"
    figures = f"  {size(row.bytes):>11} {share(row.bytes, whole):>8}"
    error = f"{_error_text(row.standard_error_bytes):<14}  " if is_sampled else "  "
    room = page.width - len(figures) - len(error) - column - 2
    text = printable(sources.line(row.frame.file, row.frame.line), room) if room >= _SMALLEST_SOURCE else ""
    return Text.assemble(
        figures, (error, "yellow"), (place, page.style(row.frame, bold=True)),
        (f"{'':{column - len(place)}}  {text}" if text else "", "italic yellow"),
    )  # fmt: skip


def lines(report: Report, ranking: Ranking, sources: Sources, page: Page) -> Iterator[Text]:
    """The user's own lines with their source text, their blocks and errors, and a row for each group that stands
    apart from them."""
    whole = report.holdings.total_bytes
    yield title(
        "Your lines",
        f"with everything they called, each byte counted once, without what was never touched · {_shown(report)}",
    )
    before, listed, after = _parts(ranking)
    for group in before:
        yield from _apart(group, whole, sources, page)
    for row in listed[: report.top]:
        name = row.before + short_frame_text(row.frame, page.room(_FIGURES_WIDTH + _BLOCKS_WIDTH))
        style = page.style(row.frame, bold=True)
        yield _figures(row.bytes, whole, row.blocks, name, style, row.standard_error_bytes)
        yield from _source(row.frame, sources, page)
    yield from _others(held_by(listed[report.top :]), "on other lines")
    for group in after:
        yield from _apart(group, whole, sources, page)


@dataclass(frozen=True)
class _Apart:
    """What is shown as one row: the rows that it stands for."""

    name: str
    rows: Sequence[UserLine]


def _parts(ranking: Ranking) -> tuple[Sequence[_Apart], Sequence[UserLine], Sequence[_Apart]]:
    """The rows of the ranking in the order in which they are shown: what is summed up before the list if it leads,
    the list, and what is summed up after it."""
    listed = ranking.lines or ranking.other
    imports = _Apart("imports", ranking.imports)
    other = _Apart(OTHER_CODE, ranking.other if ranking.lines else ())
    untouched = _Apart(
        "never touched, so not in RAM", [replace(row, bytes=row.untouched_bytes) for row in ranking.rows]
    )
    leads = ranking.headline
    if leads is not None and leads.group == Group.imports:
        return [imports], listed, [other, untouched]
    if leads is not None and leads.group == Group.other:
        return [other], listed, [imports, untouched]
    if leads is not None and leads.untouched_bytes > leads.bytes:
        return [untouched], listed, [imports, other]
    return [], listed, [imports, other, untouched]


def _apart(group: _Apart, whole: int, sources: Sources | None, page: Page) -> Iterator[Text]:
    count = held_by(group.rows)
    if count <= 0:
        return
    most = max(group.rows, key=lambda row: row.bytes)
    where = place_text(most.frame, page.folder, page.room(_FIGURES_WIDTH + len(group.name) + 24))
    part = f", {size(most.bytes)} of it at " if most.bytes < count else ", all at "
    yield Text.assemble(
        f"  {size(count):>11} {share(count, whole):>8}  ", (group.name, "bold"), part, (where, page.style(most.frame)),
    )  # fmt: skip
    if sources is not None:
        yield from _source(most.frame, sources, page)


def rows(report: Report, page: Page) -> Iterator[Text]:
    whole = report.holdings.total_bytes
    found = by(report.capture.tables, report.holdings, report.grouping)
    yield title(f"By {report.grouping}", f"self, then total · {_shown(report)}")
    for row in found[: report.top]:
        yield Text.assemble(
            f"  {size(row.self_bytes):>11} {share(row.self_bytes, whole):>8}  {size(row.total_bytes):>11}  ",
            (frame_text(row.frame, page.room(_FIGURES_WIDTH + 13)), page.style(row.frame, bold=True)),
            (_error_text(row.total_error_bytes), "yellow"),
        )
    yield from _others(sum(row.self_bytes for row in found[report.top :]), "in other rows")


def stacks(report: Report, sources: Sources, page: Page) -> Iterator[Text]:
    held, capture = report.holdings, report.capture
    order = "innermost frame first" if not report.inverted else "outermost frame first"
    yield title("Stacks that held most", f"{order}, without the import system's own frames")
    for stack in Stacks(capture.tables.paths, held)[: report.top]:
        name = f"{stack.kind} · {printable(stack.thread, 40) or 'no thread'}"
        yield _figures(stack.bytes, held.total_bytes, stack.blocks, name, "bold", stack.standard_error_bytes)
        yield from _frames(stack.frames if report.inverted else stack.frames[::-1], sources, page)
    rest = int(held.bytes[report.top :].sum())
    yield from _others(rest, f"in {max(0, len(held.node) - report.top):,} other stacks")


def _frames(frames: tuple[Frame, ...], sources: Sources, page: Page) -> Iterator[Text]:
    """One stack without the import system's frames; of a long one the middle is left out."""
    shown = [frame for frame in frames if not frame.file.startswith(IMPORT_SYSTEM)]
    half = _FRAMES_SHOWN // 2
    for number, frame in enumerate(shown):
        if len(shown) > _FRAMES_SHOWN and half <= number < len(shown) - half:
            if number == half:
                yield Text(f"{'':{_FIGURES_WIDTH}}… {len(shown) - 2 * half} frames …", "dim")
            continue
        name = frame_text(frame, page.room(_FIGURES_WIDTH))
        yield Text.assemble(" " * _FIGURES_WIDTH, (name, page.style(frame)))
        yield from _source(frame, sources, page)


def _source(frame: Frame, sources: Sources, page: Page) -> Iterator[Text]:
    indent = _FIGURES_WIDTH + 4
    text = printable(sources.line(frame.file, frame.line), page.room(indent))
    if text:
        yield Text.assemble(" " * indent, (text, "italic yellow"))


def _figures(count: int, whole: int, blocks: int, name: str, style: Style | str, error_bytes: int) -> Text:
    return Text.assemble(
        f"  {size(count):>11} {share(count, whole):>8}  ",
        (name, style),
        (f"  {'about ' if error_bytes else ''}{blocks:,} block{'' if blocks == 1 else 's'}", "dim"),
        (_error_text(error_bytes), "yellow"),
    )


def _error_text(error_bytes: int) -> str:
    """The standard error of a row that stands on sampled blocks."""
    return f"  ± {size(error_bytes)}" if error_bytes else ""


def _others(count: int, where: str) -> Iterator[Text]:
    if count:
        yield Text(f"  {size(count):>11} {'':>8}  {where}", "dim")
