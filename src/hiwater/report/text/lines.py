"""Annotated source: each line with its live and total bytes, of the program's own files or of all files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TextIO

from rich.text import Text

from hiwater.analysis.lines import FileUse, LineUse, annotate
from hiwater.analysis.source import Sources
from hiwater.errors import BadRequest
from hiwater.report.formatting import printable, size
from hiwater.report.request import Report
from hiwater.report.text import terminal
from hiwater.report.text.notes import source_notes

SCHEMA = "hiwater.lines-of-capture/1"
_FIGURES_WIDTH, _SOURCE_WIDTH = 65, 90  # columns before the source text; how much of it a file or pipe gets
_SMALLEST_SHARE = 1000  # lines below a thousandth in every column are summed up, where no file was asked for by name


def chosen_files(report: Report) -> list[FileUse]:
    """The files to show, those with most bytes first. Raises BadRequest for a named file that allocated no memory."""
    every = annotate(report.snapshot, report.capture.end, report.kind)
    if report.files:
        found = {name: [file for file in every if _is_meant(name, file.file)] for name in report.files}
        for name, files in found.items():
            if not files:
                raise BadRequest(f"no line of {name!r} asked for memory in this recording", "see the files without it")
        meant = {file.file for files in found.values() for file in files}
        return [file for file in every if file.file in meant]
    if report.libraries:
        return every
    asked = sum(file.total_bytes for file in every)
    return [file for file in every if file.is_own and (file.bytes or file.total_bytes * _SMALLEST_SHARE >= asked)]


def _is_meant(name: str, file: str) -> bool:
    """Whether `name` is the file's path, or its last folders and file name."""
    name = name.removeprefix("./")
    return file == name or file.endswith("/" + name)


def write(report: Report, stream: TextIO) -> None:
    """Write the annotated files as text, those with most bytes first."""
    page = terminal.Page(stream, report.capture.facts.get("cwd", ""))
    sources = Sources.of(report.capture.tables)
    files = chosen_files(report)
    source_width = page.room(_FIGURES_WIDTH) if page.is_terminal else _SOURCE_WIDTH
    title = Text.assemble((printable(report.title, 80), "bold"), (f"  at {report.snapshot_words}", "dim"))
    page.show(title)
    note = "  each line with everything it called; asked: requested over the whole recording; temporary: freed before the thread's next allocation"
    page.show(Text(note, "dim"))
    for file in files:
        for line in _file(file, sources, source_width, is_whole=bool(report.files)):
            page.show(line)
    if not files:
        page.show(Text("  no file of the program's own asked for memory; --all shows the libraries'"))
    for note in source_notes(sources):
        page.show(Text(f"! {note}", "yellow"))


def write_json(reports: Sequence[Report], stream: TextIO) -> None:
    """Write every line of the chosen files as JSON; a list for several captures."""
    said = [
        {
            "schema": SCHEMA,
            "pid": report.capture.process.pid,
            "at": report.snapshot.name,
            "at_ns": report.snapshot.at_ns,
            "kind": report.kind,
            "files": [asdict(file) for file in chosen_files(report)],
        }
        for report in reports
    ]
    json.dump(said[0] if len(said) == 1 else said, stream, indent=1)
    stream.write("\n")


def _file(file: FileUse, sources: Sources, source_width: int, *, is_whole: bool) -> Iterator[Text]:
    yield Text.assemble(
        "\n", (printable(file.file, 110), "bold"), f"  held {size(file.bytes)}, asked for {size(file.total_bytes)}"
    )
    heading = f"{'held':>11} {'blocks':>9} {'at the end':>11} {'asked':>11} {'temporary':>10}  {'line':>5}"
    yield Text(heading, "dim")
    smaller = [] if is_whole else [line for line in file.lines if _is_small(line, file)]
    shown = file.lines if is_whole else [line for line in file.lines if not _is_small(line, file)]
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
