"""`hiwater check`: a gate for CI. It holds the figures of captures, or of programs that it runs, against a baseline
and against limits."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib import import_module
from typing import TYPE_CHECKING

from hiwater._os.sizes import parse_size
from hiwater.cli import check_baseline, check_programs, output, progress
from hiwater.cli import report as report_verb
from hiwater.cli.messages import say
from hiwater.errors import BadRequest, BadSize, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hiwater.analysis.baseline import Tolerance
    from hiwater.cli.check_baseline import Before
    from hiwater.cli.parsing import Parser
    from hiwater.report.check_report import CheckReport

FORMATS = {
    "text": "hiwater.report.text.check_text",
    "markdown": "hiwater.report.text.check_markdown",
    "github": "hiwater.report.export.check_github",
    "junit": "hiwater.report.export.check_junit",
    "json": "hiwater.report.export.check_json",
}
_FIGURES = {
    "peak": ("peak_bytes", "allocated at the peak"),
    "allocated": ("allocated_bytes", "the sum of all allocations"),
    "allocations": ("allocations", "the number of allocations"),
    "kept": ("kept_bytes", "still allocated at the end"),
    "resident": ("resident_bytes", "resident memory at its peak"),
    "device": ("device_bytes", "allocated memory of devices at its peak"),
}
PARSER = {
    "usual": ("--baseline", "--update", "--peak", "--tolerance", "--format"),
    "usage": "hiwater check [CAPTURE… | -- PROGRAM…] [--baseline FILE] [limits] [options]",
    "description": (
        "Compares memory with a baseline and with limits. Without captures it runs the programs of [tool.hiwater.check]"
        " in pyproject.toml."
    ),
    "epilog": """examples:
  hiwater check train.hiw --peak 2GiB                              a limit
  hiwater check train.hiw --baseline memory.json --update          write the baseline, to be committed
  hiwater check train.hiw --baseline memory.json                   and compare with it
  hiwater check branch.hiw --baseline main.hiw --format markdown   with the lines that grew
  hiwater check --baseline memory.json -- train.py --epochs 1      run a program as `hiwater run` does, and check it
  hiwater check --write github=- --write junit=memory.xml          all programs of pyproject.toml, for CI

exit codes: 0 nothing exceeds its limit, 1 a limit or the tolerance is exceeded, 2 wrong options, capture or baseline,
125 the output cannot be written, 126 a program that was run failed
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "captures", metavar="CAPTURE", nargs="*",
        help="a capture, compared under the name of its program; NAME=CAPTURE gives another name",
    )  # fmt: skip
    parser.option("--baseline FILE", "a baseline, a capture, a JSON report, or a folder of NAME.hiw from --save")
    parser.option("--update", "compare, write the figures into the baseline, and exit with 0")
    parser.option(
        "--tolerance T",
        "by how much figures may differ: 5%%, 64KiB or 5%%,64KiB (the larger); default 5%%,64KiB, of resident memory"
        " 10%%,8MiB",
    )
    parser.option("--figures F,…", f"only these figures: {', '.join(_FIGURES)}")
    for name, (_, words) in _FIGURES.items():
        metavar = "N" if name == "allocations" else "SIZE"
        parser.add_argument(f"--{name}", metavar=metavar, help=f"limit: {words}")
    parser.option("--program NAME", "only this program of pyproject.toml; may be repeated", action="append")
    parser.option(
        "--warm-up", "run each program once before the run that counts, because the first run compiles modules"
    )
    parser.option("--save FOLDER", "keep the captures of programs in this folder, as NAME.hiw")
    parser.option("--format", "what to write (default: text)", choices=FORMATS, default="text")
    parser.option("-o, --output OUT", "write to this file; without it, to standard output")
    parser.option(
        "--write FORMAT=OUT",
        "write this format, too; with - as OUT, to standard output; may be repeated",
        action="append",
        default=[],
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, write what was found, and return the exit code. Raises HiwaterError."""
    is_given = bool(arguments.captures or arguments.command)
    settings = check_programs.NONE if is_given else check_programs.settings()  # they are for the programs beside them
    outputs = [(arguments.format, arguments.output), *map(_output, arguments.write)]
    tolerance = _tolerance(arguments.tolerance or settings.text("tolerance"))
    figures = _figures(arguments.figures or settings.text("figures"))
    limits = {
        figure: _limit(name, getattr(arguments, name))
        for name, (figure, _) in _FIGURES.items()
        if getattr(arguments, name)
    }
    path = arguments.baseline or settings.path("baseline")
    _refuse_nothing(path, limits, arguments.update)
    before = check_baseline.read(path, may_miss=arguments.update)  # not after the programs: --save may replace it
    with tempfile.TemporaryDirectory(prefix="hiwater-check-") as folder:
        captures = _captures(arguments, settings, arguments.save or folder)
        with progress.shown(f"reading {', '.join(captures.values())}"):
            report = _check(captures, before, limits, figures, tolerance, arguments.update)
        for output_format, file in outputs:
            _write(report, output_format, file)
    if not report.is_kept and "text" not in (output_format for output_format, _ in outputs):
        say(report.lead)
    return 0 if report.is_kept or arguments.update else 1


def _captures(arguments: argparse.Namespace, settings: check_programs.CheckSettings, folder: str) -> dict[str, str]:
    """The paths of the captures by the name of each program; programs are run."""
    if arguments.captures and (arguments.command or arguments.program):
        raise BadRequest("there are captures and a program to run", "give one of them")
    if arguments.captures:
        return _all_named(arguments.captures)
    if arguments.command:
        programs = {check_programs.name_of(arguments.command): arguments.command}
        return check_programs.record(programs, os.getcwd(), folder, warm_up=arguments.warm_up)
    programs = settings.programs(arguments.program)
    return check_programs.record(
        programs, settings.folder, folder, warm_up=arguments.warm_up or settings.flag("warm_up")
    )


def _all_named(words: Sequence[str]) -> dict[str, str]:
    """The paths by name. Raises BadRequest for two of one name."""
    found: dict[str, str] = {}
    for name, path in map(_named, words):
        if name in found:
            raise BadRequest(
                f"{found[name]!r} and {path!r} are both called {name!r}", "give one another name: NAME=CAPTURE"
            )
        found[name] = path
    return found


def _named(word: str) -> tuple[str, str]:
    """The name and the path in `NAME=CAPTURE`; a path alone has the name of its program. A file with = in its name
    is one."""
    name, equals, path = word.partition("=")
    if equals and name and path and not os.path.exists(word):
        return name, path
    from hiwater.analysis.check import program_name

    return program_name(report_verb.open_run([word]).captures[0].process.argv), word


def _check(
    captures: Mapping[str, str],
    before: Before,
    limits: Mapping[str, int],
    figures: Sequence[str],
    tolerance: Tolerance | None,
    update: bool,
) -> CheckReport:
    from hiwater.analysis.check import check, measured
    from hiwater.report.check_report import CheckReport

    now = {name: measured(report_verb.open_run([capture])) for name, capture in captures.items()}
    path = before.path
    checked = check(
        before.programs if path is not None else None,
        now,
        tolerance=tolerance,
        limits=limits,
        figures=figures,
        may_miss=update,
    )
    if update:
        check_baseline.update(before, now, figures)
    here = check_baseline.environment_of(now)
    absent = () if len(before.programs) == 1 == len(now) else sorted(before.programs.keys() - now.keys())
    return CheckReport(tuple(checked), path, before.environment, here, tuple(absent), updated=update)


def _refuse_nothing(path: str | None, limits: Mapping[str, int], update: bool) -> None:
    if update and path is None:
        raise UsageError("--update has no file to write", "give it one: --baseline memory.json")
    if path is None and not limits:
        raise UsageError("there is nothing to check against", "give --baseline FILE, or a limit such as --peak 200MiB")


def _limit(name: str, text: str) -> int:
    """The limit in bytes, or the number of allocations. Raises BadSize, which names the option."""
    try:
        return parse_size(text)
    except BadSize as error:
        raise BadSize(f"--{name}: {error.problem}", error.remedy) from None


def _tolerance(text: str | None) -> Tolerance | None:
    from hiwater.analysis.baseline import parse_tolerance

    return None if text is None else parse_tolerance(text)


def _figures(text: str | None) -> list[str]:
    """The names of the figures in `peak,allocations`; none for all. Raises UsageError."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    for word in words:
        if word not in _FIGURES:
            raise UsageError(f"{word!r} is not a figure", f"choose some of {', '.join(_FIGURES)}")
    return [_FIGURES[name][0] for name in _FIGURES if name in words]


def _output(text: str) -> tuple[str, str | None]:
    """The format and the file in `FORMAT=OUT`. Raises UsageError."""
    output_format, _, file = text.partition("=")
    if output_format not in FORMATS or not file:
        raise UsageError(
            f"--write {text!r} is not FORMAT=OUT", f"choose a format of {', '.join(FORMATS)}, and a file or -"
        )
    return output_format, file


def _write(report: CheckReport, output_format: str, file: str | None) -> None:
    place = argparse.Namespace(format=output_format, output=None if file == output.STDOUT else file)
    with output.opened(place) as stream:
        import_module(FORMATS[output_format]).write(report, stream)
