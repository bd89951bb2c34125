"""`hiwater report`: shows what held memory, from captures.

Exits with 0, with 2 for a wrong request or a capture that cannot be read, with 125 when the report cannot be written.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, TextIO

from hiwater.cli import output, progress
from hiwater.cli.messages import say
from hiwater.errors import BadRequest, HiwaterError, MomentOutOfRange

if TYPE_CHECKING:  # numpy and rich are loaded when a report is made, not for `--help`
    from hiwater.capture import Run
    from hiwater.cli.parsing import Parser
    from hiwater.report.request import Report

FORMATS = {
    "text": "hiwater.report.text.overview",  # with --full: _FULL_TEXT
    "tree": "hiwater.report.text.tree",
    "table": "hiwater.report.text.table",
    "lines": "hiwater.report.text.lines",
    "json": "hiwater.report.export.json_report",
    "collapsed": "hiwater.report.export.collapsed",
    "svg": "hiwater.report.export.svg",
    "html": "hiwater.report.html.page",
    "speedscope": "hiwater.report.export.speedscope",
    "pprof": "hiwater.report.export.pprof",
    "csv": "hiwater.report.export.csv_rows",
    "markdown": "hiwater.report.text.report_markdown",
    "timeline": "hiwater.report.text.timeline_plot",
    "png": "hiwater.report.export.plot",
    "pdf": "hiwater.report.export.plot",
}
_FULL_TEXT = "hiwater.report.text.full"
_EXPLAIN = "hiwater.report.text.explain"
_KEPT = {"text": "hiwater.report.text.kept", "json": "hiwater.report.export.json_kept"}
_WITH_OVERVIEW = ("text", "tree", "table")
_DRAWN = ("png", "pdf")
_OVER_TIME = ("timeline", *_DRAWN)  # these show no moment
_OF_ALL = ("json", "html", "speedscope", "csv", "markdown", *_OVER_TIME)  # these show all captures in one
_OF_ONE = {"svg": "a flame graph", "pprof": "a pprof profile", "collapsed": "a list of collapsed stacks"}
_SHOWN_IN_BROWSERS = ("html", "svg")
_KINDS = ("all", "python", "native", "mapping", "device", "shared")
_GROUPINGS = ("stack", "function", "line", "file", "module", "thread", "task")
PARSER = {
    "usage": "hiwater report [options] CAPTURE …",
    "usual": ("--by", "--at", "--html", "--format", "-o"),
    "description": (
        "Shows which code allocated the memory that was live at the peak, at the end, or at any moment of a recording."
    ),
    "epilog": """examples:
  hiwater report run.hiw                      the peak, and your lines with the most memory
  hiwater report run.hiw --stacks             the stacks with the most memory
  hiwater report run.hiw --full               every figure
  hiwater report run.hiw --explain            what to change, what it saves, and why
  hiwater report run.hiw --by function        which functions allocated it
  hiwater report run.hiw --at end             what was never freed
  hiwater report run.hiw --kept               the same by line, with when it was allocated and what holds it
  hiwater report run.hiw --at 10:20 --tree    the highest moment between 10 s and 20 s
  hiwater report run.hiw --html --open        one page with everything, in the browser
  hiwater report run.hiw --format svg         a flame graph, in the file run.svg
  hiwater report run.hiw --format png         memory over time as a picture; timeline draws it on the terminal
  hiwater report run.hiw --format json -o run.json
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "captures",
        metavar="CAPTURE",
        nargs="+",
        help=(
            "a capture (*.hiw), one capture in a merged file (all.hiw/NAME), a torch memory snapshot (*.pickle), a JAX"
            " profile (*.pb.gz), or one device of these (FILE/cuda:0); several are shown in one report"
        ),
    )
    parser.option("--full", "text with every figure, and with the reports of all captures")
    parser.option("--explain", "what to change: at most five findings, each with its evidence and what it saves")
    parser.option("--kept", "what is live at the end, by line: when it was allocated, its types, and what holds it")
    parser.option(
        "--stacks",
        "the stacks with the most memory: the same as --by stack",
        dest="by",
        action="store_const",
        const="stack",
    )
    add_format(parser, FORMATS)
    parser.option(
        "--tree", "the call tree: the same as --format tree", dest="format", action="append_const", const="tree"
    )
    add_common_arguments(parser)
    parser.option("--pid N", "only the process with this id", type=int)
    parser.option(
        "--own PACKAGE",
        "an installed package whose code is yours, in addition to those given when the program was recorded; may be"
        " repeated",
        action="append",
        default=[],
    )
    add_frames(parser)
    parser.option("--inverted", "show functions that allocate first, and their callers below")
    parser.option(
        "--recursion",
        "recursive stacks: whole, or with each recursion once; auto (the default) writes them whole, unless stacks of"
        " more than 256 frames would take more than 32 MiB in this format",
        choices=("auto", "once", "whole"),
        default="auto",
    )
    parser.option("--by", "group by stack, function, line, file, module, thread or asyncio task", choices=_GROUPINGS)


def add_format(parser: Parser, known: Iterable[str]) -> None:
    """Add the option `--format`. `chosen_format()` checks its value."""
    parser.option("--format FORMAT", f"what to write: {', '.join(known)} (default: text)", action="append")
    parser.option(
        "--html", "an interactive page: the same as --format html", dest="format", action="append_const", const="html"
    )


def add_frames(parser: Parser) -> None:
    """Add the option `--frames`, for verbs whose views have stacks."""
    parser.option(
        "--frames",
        "of a recording with native frames (hiwater run --native): Python's alone (default), both, or native ones"
        " alone",
        choices=("python", "mixed", "native"),
        default="python",
    )


def chosen_format(given: Sequence[str] | None, known: Iterable[str]) -> str:
    """The requested format. Raises BadRequest for two formats, and for an unknown one."""
    formats = given or ["text"]
    if len(formats) > 1:
        raise BadRequest(f"--format was given {len(formats)} times ({', '.join(formats)})", "choose one of them")
    if formats[0] not in known:
        raise BadRequest(f"unknown format {formats[0]!r}", f"choose one of {', '.join(known)}")
    return formats[0]


def add_common_arguments(parser: Parser) -> None:
    """Add the options of every verb that shows a moment of a capture."""
    output.add_arguments(parser)
    parser.option(
        "--at peak|end|oom|SECONDS|T1:T2",
        "the moment (default: peak); SECONDS and T1:T2 select the highest peak of the slices that contain this time",
        type=_moment,
        default="peak",
    )
    parser.option("--kind", "only this kind of memory", choices=_KINDS, default="all")
    parser.option("--top N", "how many lines and stacks text and tables show (default: 10)", type=_count, default=10)
    parser.option(
        "--source",
        "whose source text html and lines contain: that of your own files (default), of libraries, too, or (html) none",
        choices=("own", "all", "none"),
        default="own",
    )


def _moment(text: str) -> str:
    if text in ("peak", "end", "oom") or re.fullmatch(r"\d+(\.\d*)?(:\d+(\.\d*)?)?", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of peak, end, oom, SECONDS, T1:T2")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Write the report, and return the exit code. Raises HiwaterError."""
    arguments.format = chosen_format(arguments.format, FORMATS)
    for name, known in (("full", ["text"]), ("explain", ["text"]), ("kept", [*_KEPT, "html"])):
        if getattr(arguments, name) and arguments.format not in known:
            raise BadRequest(
                f"--{name} is for {' and '.join(known)}, and not for {arguments.format}", "leave one of them out"
            )
    if arguments.kept:
        arguments.at = "end"
    output.refuse_to_open(arguments, _SHOWN_IN_BROWSERS)
    output.name(arguments, arguments.captures[0])
    output.refuse_to_replace(arguments.captures, arguments.output)
    with progress.shown(f"reading {', '.join(arguments.captures)}"):
        reports = make_reports(arguments.captures, arguments)
    warn(reports)
    if arguments.format in _OF_ONE and len(reports) > 1:
        reports = _at_once(reports, arguments)
    with (
        output.opened(arguments) as out,
        progress.shown_until_output(f"making the report ({arguments.format})", out) as stream,
    ):
        _write(reports, arguments, stream)
    for remark in (remark for report in reports for remark in report.remarks):
        say(remark)
    output.finish(arguments)
    return 0


def _at_once(reports: list[Report], arguments: argparse.Namespace) -> list[Report]:
    """One report for a format that shows one capture: of all processes of the machine with the highest sum, at the
    instant of that sum. Of the first process for another moment, and where nothing is known of the sum. Raises
    BadRequest if the captures are not of one run or job."""
    from hiwater.analysis import whole_run
    from hiwater.analysis.job import is_job
    from hiwater.report.formatting import size
    from hiwater.report.request import run_of

    shown, captures = _OF_ONE[arguments.format], [report.capture for report in reports]
    is_run = {capture.facts.get("run_id") for capture in captures} == {captures[0].facts.get("run_id") or "a run"}
    if not is_run and not is_job(captures):
        if arguments.format == "collapsed":
            return reports  # one after the other
        raise BadRequest(
            f"{shown} shows one capture", f"give one, such as {str(captures[0].path)!r}, or another format"
        )
    run = run_of(reports)
    machine = run.highest if arguments.at == "peak" else None
    if machine is not None and machine.allocated is not None:
        instant, whole = machine.allocated, whole_run.at_highest(machine)
        if whole is not None:
            of_host = f" of {machine.name}, one of {len(run.machines)} machines," if len(run.machines) > 1 else ""
            say(
                f"{shown} shows all processes{of_host} at the instant of their highest sum: {size(instant.bytes)}"
                f" allocated by {instant.processes}; --pid shows one process"
            )
            return [replace(reports[0], capture=whole, moment=whole.peak, is_one_of_several=False)]
    say(f"{shown} shows one of {len(captures)} processes: {captures[0].process.pid}, the first; --pid shows another")
    return reports[:1]


def open_run(paths: Sequence[str], kind: str = "all", pid: int | None = None) -> Run:
    """All processes of the runs at these paths; for the kind "device", the histories of devices in them; with `pid`,
    that process alone. Errors name the path."""
    from hiwater.capture import Run, open_run

    runs = []
    for path in paths:
        with naming(path):
            runs.append(open_run(path))
    captures = [one for run in runs for capture in run.captures for one in capture.of_kind(kind)]
    signals = {process: number for run in runs for process, number in run.signals.items()}
    if pid is None:
        short, missing, bad = (
            [one for run in runs for one in getattr(run, name)] for name in ("short", "unrecorded", "unreadable")
        )
        return Run(captures, short, missing, signals, bad)
    chosen = [one for one in captures if one.process.pid == pid]
    if not chosen:
        raise BadRequest(
            f"there is no capture of process {pid} in {', '.join(paths)}", "leave out --pid to see all processes"
        )
    return Run(chosen, signals=signals)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """A context in which errors name the capture."""
    try:
        yield
    except HiwaterError as error:
        problem = error.problem if repr(path) in error.problem else f"{path}: {error.problem}"
        raise type(error)(problem, error.remedy) from error


def make_reports(paths: Sequence[str], arguments: argparse.Namespace) -> list[Report]:
    """Open the captures at these paths, and return a report of each."""
    from hiwater.analysis.call_tree import Grouping
    from hiwater.capture.native_frames import Frames
    from hiwater.report import native_frames
    from hiwater.report.request import Report

    run, reports = open_run(paths, arguments.kind, arguments.pid), []
    if arguments.at == "oom" and len(run.captures) > 1:
        run = _of_refused(run)
    own = getattr(arguments, "own", ())
    for capture in run.captures if own else ():
        capture.count_as_own(own)
    for remark in native_frames.show(run.captures, Frames(arguments.frames), is_page=arguments.format == "html"):
        say(remark)
    for capture in run.captures:
        with naming(str(capture.path)):
            report = Report(
                capture,
                arguments.at,
                arguments.kind,
                Grouping(arguments.by) if arguments.by else None,
                arguments.inverted,
                arguments.top,
                libraries=arguments.source == "all",
                is_one_of_several=len(run.captures) > 1,
                run=run,
                kept=arguments.kept,
                recursion=arguments.recursion,
                frames=arguments.frames,
            )
            # A damaged history is an error before anything is written. Without contradictions nothing is held below
            # zero at the peak or the end.
            if arguments.format not in _OVER_TIME and (arguments.at not in ("peak", "end") or report.problems):
                _ = report.holdings
        reports.append(report)
    return reports


def _of_refused(run: Run) -> Run:
    """The processes of the run to which memory was refused. Raises MomentOutOfRange if there is none."""
    from hiwater.capture import Run

    refused = [one for one in run.captures if one.refusals or one.device_refusals]
    if not refused:
        raise MomentOutOfRange(
            f"memory was refused to none of these {len(run.captures):,} processes",
            "look at the peak or the end instead",
        )
    if len(refused) < len(run.captures):
        say(f"memory was refused to {len(refused):,} of {len(run.captures):,} processes, which are shown")
    return Run(refused, signals=run.signals)


def warn(reports: Sequence[Report]) -> None:
    """Print a warning for each capture that contradicts itself."""
    for report in reports:
        for problem in report.problems:
            say(f"warning: {report.capture.path} contradicts itself: {problem}")


def _write(reports: Sequence[Report], arguments: argparse.Namespace, stream: TextIO) -> None:
    is_brief = not arguments.full
    alone = _EXPLAIN if arguments.explain else _KEPT.get(arguments.format) if arguments.kept else None
    view = import_module(alone or (FORMATS[arguments.format] if is_brief else _FULL_TEXT))
    if arguments.format in _OF_ALL:
        more = (
            arguments.source if arguments.format == "html" else arguments.format if arguments.format in _DRAWN else None
        )
        view.write(reports, stream, *((more,) if more else ()))
        return
    run = reports[0].run
    is_of_several = run is not None and run.is_of_several and not any(report.capture.device for report in reports)
    if arguments.format in _WITH_OVERVIEW and is_of_several and alone is None:
        from hiwater.report.text import processes

        shows_one = arguments.format == "text" and is_brief
        processes.write(reports, stream, shows_one=shows_one)
        reports = processes.worst_first(reports)[: 1 if shows_one else None]
    for number, report in enumerate(reports):
        if number and arguments.format in output.FOR_PEOPLE:
            stream.write("\n")
        view.write(report, stream)
