"""Annotated source: each line with its live and total bytes, of the program's own files or of all files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.text import Text

from hiwater.analysis.lines import FileUse, LineUse, annotate
from hiwater.analysis.source import Sources
from hiwater.report.formatting import printable, size
from hiwater.report.request import Report
from hiwater.report.text import terminal
from hiwater.report.text.notes import source_notes

_FIGURES_WIDTH, _SOURCE_WIDTH = 65, 90  # columns before the source text; how much of it a file or pipe gets
_SMALLEST_SHARE = 1000  # lines below a thousandth in every column are summed up


def _chosen_files(report: Report) -> list[FileUse]:
    """The files to show, those with most bytes first."""
    every = annotate(report.snapshot, report.capture.end, report.kind)
    if report.libraries:
        return every
    asked = sum(file.total_bytes for file in every)
    return [file for file in every if file.is_own and (file.bytes or file.total_bytes * _SMALLEST_SHARE >= asked)]


def write(report: Report, stream: TextIO) -> None:
    """Write the annotated files as text, those with most bytes first."""
    page = terminal.Page(stream, report.capture.facts.get("cwd", ""))
    sources = Sources.of(report.capture.tables)
    files = _chosen_files(report)
    source_width = page.room(_FIGURES_WIDTH) if page.is_terminal else _SOURCE_WIDTH
    title = Text.assemble((printable(report.title, 80), "bold"), (f"  at {report.snapshot_words}", "dim"))
    page.show(title)
    note = (
        "  each line with everything it called; asked: requested over the whole recording; temporary: freed before the"
        " thread's next allocation"
    )
    page.show(Text(note, "dim"))
    for file in files:
        for line in _file(file, sources, source_width):
            page.show(line)
    if not files:
        page.show(Text("  no file of the program's own asked for memory; --source all shows the libraries'"))
    for note in source_notes(sources):
        page.show(Text(f"! {note}", "yellow"))


def _file(file: FileUse, sources: Sources, source_width: int) -> Iterator[Text]:
    yield Text.assemble(
        "\n", (printable(file.file, 110), "bold"), f"  held {size(file.bytes)}, asked for {size(file.total_bytes)}"
    )
    heading = f"{'held':>11} {'blocks':>9} {'at the end':>11} {'asked':>11} {'temporary':>10}  {'line':>5}"
    yield Text(heading, "dim")
    smaller = [line for line in file.lines if _is_small(line, file)]
    shown = [line for line in file.lines if not _is_small(line, file)]
    before = 0
    for line in shown:
        if before and line.line > before + 1:
            yield Text(f"{'⋯':>63}", "dim")
        before = line.line
        yield _line(line, file, printable(sources.line(file.file, line.line), source_width))
    if smaller:
        asked = sum(line.self_bytes for line in smaller)
        yield Text(
            f"{size(asked):>11} {'':>9} {'':>11} {'':>11} {'':>10}  on {len(smaller)} smaller lines, by themselves",
            "dim",
        )


def _is_small(line: LineUse, file: FileUse) -> bool:
    held = line.bytes * _SMALLEST_SHARE < file.bytes or line.bytes == 0
    return held and line.total_bytes * _SMALLEST_SHARE < file.total_bytes


def _line(line: LineUse, file: FileUse, source: str) -> Text:
    heat = "bold red" if line.bytes * 2 >= file.bytes > 0 else "yellow" if line.bytes * 10 >= file.bytes > 0 else ""
    figures = (
        f"{line.blocks or '':>9} {_some(line.end_bytes):>11} {_some(line.total_bytes):>11} {line.temporaries or '':>10}"
    )
    return Text.assemble(
        (f"{_some(line.bytes):>11}", heat), f" {figures}  ", (f"{line.line:>5}", "dim"), "  ", source,
    )  # fmt: skip


def _some(count: int) -> str:
    return size(count) if count else "·"
