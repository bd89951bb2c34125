"""`hiwater report`: what held memory, from captures already made.

Exits with 0, with 2 for a wrong request or a capture that cannot be read, with 125 when the report cannot be written.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hiwater.errors import BadRequest, HiwaterError, OutputFailed

if TYPE_CHECKING:  # numpy and rich are loaded when a report is made, not for `--help`
    from hiwater.capture import Capture
    from hiwater.report.request import Report

FORMATS = {
    "text": "hiwater.report.text.overview",
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
    "parquet": "hiwater.report.export.parquet",
    "chrome": "hiwater.report.export.chrome",
    "openmetrics": "hiwater.report.export.openmetrics",
}
_FOR_PEOPLE = ("text", "tree", "table", "lines")
_WITH_OVERVIEW = ("text", "tree", "table")
_BINARY = ("pprof", "parquet")
_OF_ALL = ("json", "html", "speedscope", "csv", "parquet", "chrome", "openmetrics")  # these show all captures in one
_OF_ONE = {"svg": "a flame graph", "pprof": "a pprof profile"}
_SHOWN_IN_BROWSERS = ("html", "svg")
_KINDS = ("all", "python", "native", "mapping", "device", "shared")
_GROUPINGS = ("stack", "function", "line", "file", "module", "thread")
_EXAMPLES = """examples:
  hiwater report run.hiw                          the peak, and the lines and stacks that held it
  hiwater report run.hiw --by function            which functions asked for it
  hiwater report run.hiw --at end                 what was never freed
  hiwater report run.hiw --at 10:20 --format tree the highest moment between 10 s and 20 s
  hiwater report run.hiw --format html --open     a page with all of it, in the browser
  hiwater report run.hiw --format svg -o run.svg  a flame graph
  hiwater report run.hiw --format pprof -o run.pb.gz
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Make the parser of this verb."""
    parser = subparsers.add_parser(
        "report",
        help="show what held memory in a capture",
        description="Show what held memory: at the peak, at the end, or at any moment of a recording.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "captures",
        metavar="CAPTURE",
        nargs="+",
        help="a capture (*.hiw), one of a merged one (all.hiw/NAME), a torch memory snapshot (*.pickle) or a profile of JAX's "
        "(*.pb.gz), one device of these (FILE/cuda:0); several are shown together",
    )
    add_format(parser, FORMATS)
    add_common_arguments(parser)
    parser.add_argument("--inverted", action="store_true", help="from what asked for memory to its callers")
    parser.add_argument(
        "--recursion", choices=("auto", "once", "whole"), default="auto",
        help="stacks of calls that recur: whole; each recursion once; auto (the default): whole, unless a format that writes each frame "
        "of each stack would take more than 32 MiB for stacks of more than 256 frames",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=_GROUPINGS, default=None, help="tell apart by stack, function, line, file, module or thread"
    )


def add_format(parser: argparse.ArgumentParser, known: Iterable[str]) -> None:
    """The option `--format`; what is given is looked at by `chosen_format`."""
    parser.add_argument(
        "--format", action="append", metavar="FORMAT", help=f"what to write: {', '.join(known)} (default: text)"
    )


def chosen_format(given: Sequence[str] | None, known: Iterable[str]) -> str:
    """The one format that was asked for. Raises BadRequest for two, and for one that is none."""
    formats = given or ["text"]
    if len(formats) > 1:
        raise BadRequest(f"--format was given {len(formats)} times ({', '.join(formats)})", "choose one of them")
    if formats[0] not in known:
        raise BadRequest(f"unknown format {formats[0]!r}", f"choose one of {', '.join(known)}")
    return formats[0]


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every verb that shows what was held at a moment."""
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write to this file; replaced only when the report is complete"
    )
    parser.add_argument(
        "--at", type=_moment, default="peak", metavar="peak|end|oom|SECONDS|T1:T2",
        help="which moment (default: peak); for seconds, the highest moment of the time slice they lie in",
    )  # fmt: skip
    parser.add_argument("--kind", choices=_KINDS, default="all", help="only this kind of memory")
    parser.add_argument(
        "--top",
        type=_count,
        default=10,
        metavar="N",
        help="how many lines and stacks text and tables show (default: 10)",
    )
    parser.add_argument(
        "--source", choices=("own", "all", "none"), default="own",
        help="whose source text html carries: your own files', libraries', too, or nobody's (default: own)",
    )  # fmt: skip
    parser.add_argument(
        "--open", action="store_true", help="open the report in a browser; without -o it is written beside the capture"
    )


def _moment(text: str) -> str:
    try:
        return moment_text(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.problem) from None


def moment_text(text: str) -> str:
    """Return `text` when it names a moment. Raises BadRequest."""
    if text in ("peak", "end", "oom") or re.fullmatch(r"\d+(\.\d*)?(:\d+(\.\d*)?)?", text):
        return text
    raise BadRequest(f"{text!r} is none of peak, end, oom, SECONDS, T1:T2", "see --help")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Write the report; the exit code. Talks on stderr in one line when it cannot."""
    try:
        arguments.format = chosen_format(arguments.format, FORMATS)
        name_output(arguments, arguments.captures[0])
        _check_request(arguments)
        reports = make_reports(arguments.captures, arguments)
        _check_number(reports, arguments.format)
        warn(reports)
        with open_output(arguments) as stream:
            _write(reports, arguments, stream)
        for remark in (remark for report in reports for remark in report.remarks):
            print(f"hiwater report: {remark}", file=sys.stderr)
        if arguments.open:
            open_in_browser("report", arguments.output)
    except HiwaterError as error:
        print(f"hiwater report: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Who reads has read enough (`| head`). Python would complain about stdout once more at exit: give it another one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    return 0


def _check_request(arguments: argparse.Namespace) -> None:
    asked = arguments.format
    if asked in _BINARY and arguments.output is None and sys.stdout.isatty():
        raise BadRequest(f"{asked} is no text for a terminal", "write it to a file with -o")
    refuse_to_open(arguments, _SHOWN_IN_BROWSERS)
    refuse_to_replace(arguments.captures, arguments.output)


def _check_number(reports: Sequence[Report], output_format: str) -> None:
    if output_format in _OF_ONE and len(reports) > 1:
        one = str(reports[0].capture.path)
        raise BadRequest(f"{_OF_ONE[output_format]} shows one capture", f"give one, such as {one!r}, or another format")


def name_output(arguments: argparse.Namespace, capture: str, middle: str = "") -> None:
    """A report that is to be opened is a file: beside this capture, unless another one is named."""
    if arguments.open and arguments.output is None:
        arguments.output = os.path.splitext(capture)[0] + middle + "." + arguments.format


def refuse_to_open(arguments: argparse.Namespace, shown: Sequence[str]) -> None:
    """Raise BadRequest for --open with a format that no browser shows."""
    if arguments.open and arguments.format not in shown:
        raise BadRequest(f"--open needs {' or '.join(shown)}, and not {arguments.format}", "give --format html")


def open_in_browser(verb: str, path: str) -> None:
    """Open what was written, and say where it is."""
    import webbrowser

    print(f"hiwater {verb}: {path}", file=sys.stderr)
    webbrowser.open(Path(path).absolute().as_uri())


def refuse_to_replace(captures: Sequence[str], output: str | None) -> None:
    """Raise BadRequest when what is to be written would take the place of a capture it is made from."""
    sources = [*captures, *map(os.path.dirname, captures)]  # all.hiw/NAME lies in all.hiw
    for source in sources if output is not None else ():
        with suppress(OSError):  # one of the two does not exist: then they are not the same
            if os.path.samefile(source, output or ""):
                raise BadRequest("the report would replace the capture it is made from", "give another file to -o")


def open_captures(paths: Sequence[str], kind: str = "all") -> list[Capture]:
    """Open the captures at these paths, and all that merged ones hold; for the kind "device" those of devices that they have with
    them. Errors name the path."""
    from hiwater.capture import open_all

    captures = []
    for path in paths:
        with naming(path):
            captures += [one for capture in open_all(path) for one in capture.of_kind(kind)]
    return captures


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Errors that are raised in here say which capture they are about."""
    try:
        yield
    except HiwaterError as error:
        problem = error.problem if repr(path) in error.problem else f"{path}: {error.problem}"
        raise type(error)(problem, error.remedy) from error


def make_reports(paths: Sequence[str], arguments: argparse.Namespace) -> list[Report]:
    """Open the captures at these paths and return what is asked for of each."""
    from hiwater.analysis.call_tree import Grouping
    from hiwater.report.request import Report

    captures, reports = open_captures(paths, arguments.kind), []
    for capture in captures:
        with naming(str(capture.path)):
            report = Report(
                capture,
                capture.snapshot(arguments.at),
                arguments.kind,
                Grouping(arguments.by) if arguments.by else None,
                arguments.inverted,
                arguments.top,
                tuple(getattr(arguments, "files", ())),
                getattr(arguments, "all", False),
                is_one_of_several=len(captures) > 1,
                recursion=getattr(arguments, "recursion", "auto"),
            )
            _ = report.holdings  # a damaged one is refused before anything is written
        reports.append(report)
    return reports


def warn(reports: Sequence[Report]) -> None:
    """Say on stderr which captures contradict themselves."""
    for report in reports:
        for problem in report.problems:
            print(f"hiwater report: warning: {report.capture.path} contradicts itself: {problem}", file=sys.stderr)


def _write(reports: Sequence[Report], arguments: argparse.Namespace, stream: TextIO) -> None:
    view = import_module(FORMATS[arguments.format])
    if arguments.format in _OF_ALL:
        view.write(reports, stream, *((arguments.source,) if arguments.format == "html" else ()))
        return
    if arguments.format in _WITH_OVERVIEW and len(reports) > 1 and not any(report.capture.device for report in reports):
        from hiwater.report.text import processes

        processes.write(reports, stream)
        reports = processes.worst_first(reports)
    for number, report in enumerate(reports):
        if number and arguments.format in _FOR_PEOPLE:
            stream.write("\n")
        view.write(report, stream)


@contextmanager
def open_output(arguments: argparse.Namespace) -> Iterator[TextIO]:
    """Where the report goes. A file appears, or changes, only when all of it is written."""
    try:
        if arguments.output is None:
            stream = sys.stdout
            if isinstance(stream, io.TextIOWrapper):
                encoding = stream.encoding if arguments.format in _FOR_PEOPLE else "utf-8"
                stream.reconfigure(encoding=encoding, errors="backslashreplace")
            yield stream
            stream.flush()
        else:
            with _replacing(Path(arguments.output)) as stream:
                yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        where = arguments.output or "standard output"
        remedy = "make room or write elsewhere" if error.errno == errno.ENOSPC else "check the folder and its rights"
        raise OutputFailed(f"the report cannot be written to {where} ({error.strerror})", remedy) from error


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A file beside `path` that takes its place at the end; gone when that is not reached. Devices are written to as they are."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        return
    target = path.resolve()  # a link stays a link
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
            yield stream
        os.chmod(name, _mode_of(target))
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _mode_of(path: Path) -> int:
    """The mode the file has, or a new file would get."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
