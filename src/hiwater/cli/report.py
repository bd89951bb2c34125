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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hiwater.errors import BadRequest, HiwaterError, OutputFailed

if TYPE_CHECKING:  # numpy and rich are loaded when a report is made, not for `--help`
    from hiwater.capture import Capture, Moment
    from hiwater.views.report import Report

FORMATS = {
    "text": "hiwater.views.text",
    "tree": "hiwater.views.tree",
    "table": "hiwater.views.table",
    "lines": "hiwater.views.lines",
    "json": "hiwater.views.json_view",
    "collapsed": "hiwater.views.collapsed",
    "svg": "hiwater.views.svg",
    "html": "hiwater.views.html",
}
_FOR_MACHINES = ("json", "collapsed", "svg", "html")
_OF_ALL = ("json", "html")  # one report of all captures
_SHOWN_IN_BROWSERS = ("svg", "html")
_KINDS = ("all", "python", "native", "mapping", "device")
_GROUPINGS = ("stack", "function", "line", "file", "module", "thread")
_EXAMPLES = """examples:
  hiwater report run.hiw                          the peak, and the lines and stacks that held it
  hiwater report run.hiw --by function            which functions asked for it
  hiwater report run.hiw --at end                 what was never freed
  hiwater report run.hiw --at 10:20 --format tree the highest moment between 10 s and 20 s
  hiwater report run.hiw --format html --open     a page with all of it, in the browser
  hiwater report run.hiw --format svg -o run.svg  a flame graph
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
    parser.add_argument("captures", metavar="CAPTURE", nargs="+", help="a capture (*.hiw); several are shown in turn")
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="what to write (default: text)")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write to this file; replaced only when the report is complete"
    )
    parser.add_argument(
        "--at", type=_moment, default="peak", metavar="peak|end|SECONDS|T1:T2",
        help="which moment (default: peak); for seconds, the highest moment of the time slice they lie in",
    )  # fmt: skip
    parser.add_argument("--inverted", action="store_true", help="from what asked for memory to its callers")
    parser.add_argument("--kind", choices=_KINDS, default="all", help="only this kind of memory")
    parser.add_argument(
        "--by", choices=_GROUPINGS, default=None, help="tell apart by stack, function, line, file, module or thread"
    )
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
    if text in ("peak", "end") or re.fullmatch(r"\d+(\.\d*)?(:\d+(\.\d*)?)?", text):
        return text
    raise BadRequest(f"{text!r} is none of peak, end, SECONDS, T1:T2", "see --help")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Write the report; the exit code. Talks on stderr in one line when it cannot."""
    try:
        _name_output(arguments)
        _check_request(arguments)
        reports = [make_report(path, arguments) for path in arguments.captures]
        warn(reports)
        with open_output(arguments) as stream:
            _write(reports, arguments, stream)
        if arguments.open:
            _open(arguments.output)
    except HiwaterError as error:
        print(f"hiwater report: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Who reads has read enough (`| head`). Python would complain about stdout once more at exit: give it another one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    return 0


def _check_request(arguments: argparse.Namespace) -> None:
    if arguments.format == "svg" and len(arguments.captures) > 1:
        raise BadRequest("a flame graph shows one capture", "give one capture, or another format")
    if arguments.open and arguments.format not in _SHOWN_IN_BROWSERS:
        raise BadRequest(f"--open needs html or svg, and not {arguments.format}", "give --format html")
    if arguments.output is not None:
        for capture in arguments.captures:
            with suppress(OSError):  # one of the two does not exist: then they are not the same
                if os.path.samefile(capture, arguments.output):
                    raise BadRequest("the report would replace the capture it is made from", "give another file to -o")


def _name_output(arguments: argparse.Namespace) -> None:
    """A report that is to be opened is a file: beside the first capture, unless another one is named."""
    if arguments.open and arguments.output is None:
        arguments.output = os.path.splitext(arguments.captures[0])[0] + "." + arguments.format


def _open(path: str) -> None:
    import webbrowser

    print(f"hiwater report: {path}", file=sys.stderr)
    webbrowser.open(Path(path).absolute().as_uri())


def make_report(path: str, arguments: argparse.Namespace) -> Report:
    """Open the capture at `path` and return what is asked for of it."""
    from hiwater.analysis.forest import Grouping
    from hiwater.capture import open as open_capture
    from hiwater.views.report import Report

    try:
        capture = open_capture(path)
        report = Report(
            capture,
            _moment_of(capture, arguments.at),
            arguments.kind,
            Grouping(arguments.by) if arguments.by else None,
            arguments.inverted,
            arguments.top,
            tuple(getattr(arguments, "files", ())),
            getattr(arguments, "all", False),
        )
        _ = report.holdings  # a damaged one is refused before anything is written
    except HiwaterError as error:
        problem = error.problem if repr(path) in error.problem else f"{path}: {error.problem}"
        raise type(error)(problem, error.remedy) from error
    return report


def _moment_of(capture: Capture, at: str) -> Moment:
    if at == "peak":
        return capture.peak
    if at == "end":
        return capture.end
    first, _, last = at.partition(":")
    return capture.window(float(first), float(last or first))


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
    for number, report in enumerate(reports):
        if number and arguments.format not in _FOR_MACHINES:
            stream.write("\n")
        view.write(report, stream)


@contextmanager
def open_output(arguments: argparse.Namespace) -> Iterator[TextIO]:
    """Where the report goes. A file appears, or changes, only when all of it is written."""
    try:
        if arguments.output is None:
            stream = sys.stdout
            if isinstance(stream, io.TextIOWrapper):
                encoding = "utf-8" if arguments.format in _FOR_MACHINES else stream.encoding
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
