"""`hiwater diff`: what grew between two captures.

Exits with 0; with 1 when --fail-on-increase was given and its limit is broken; with 2 for a wrong request or a capture
that cannot be read; with 125 when the comparison cannot be written.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import TYPE_CHECKING

from hiwater._os.sizes import parse_size
from hiwater.cli import output, progress
from hiwater.cli import report as report_verb
from hiwater.cli.messages import say
from hiwater.errors import BadRequest, UsageError

if TYPE_CHECKING:
    from hiwater.analysis.diff import Limit, MatchedComparison
    from hiwater.cli.parsing import Parser
    from hiwater.report.diff_request import DiffReport

FORMATS = {
    "text": "hiwater.report.text.diff_text",
    "json": "hiwater.report.export.json_diff",
    "markdown": "hiwater.report.text.diff_markdown",
    "html": "hiwater.report.html.diff_page",
}
_GROUPINGS = ("stack", "function", "line", "file", "module")
PARSER = {
    "usage": "hiwater diff [options] A B",
    "usual": ("--by", "--at", "--format", "-o", "--fail-on-increase"),
    "description": "Shows what grew between two captures, by line and by stack, even if lines moved.",
    "epilog": """examples:
  hiwater diff before.hiw after.hiw                        both peaks, and the lines and stacks that grew
  hiwater diff before.hiw after.hiw --at end               what is live at the end of B and was not at the end of A
  hiwater diff before.hiw after.hiw --by function          which functions grew
  hiwater diff before.hiw after.hiw --format html --open   one page with everything, in the browser
  hiwater diff main.hiw branch.hiw --format markdown       for a comment on a change
  hiwater diff main.hiw branch.hiw --fail-on-increase 5%   exit code 1 if the peak grew by more
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("before", metavar="A", help="the earlier capture (*.hiw)")
    parser.add_argument("after", metavar="B", help="the later one")
    report_verb.add_format(parser, FORMATS)
    report_verb.add_common_arguments(parser)
    parser.option("--by", "only rows of this kind (default: lines of your code, then stacks)", choices=_GROUPINGS)
    report_verb.add_frames(parser)
    parser.option(
        "--fail-on-increase SIZE|PERCENT",
        "exit with 1 if the compared figure grew by more than 10MiB or 5%%, for example; it is the allocated peak"
        " unless --at or --kind select another",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the comparison, and return the exit code; a broken limit is one line on stderr. Raises HiwaterError."""
    arguments.format = report_verb.chosen_format(arguments.format, FORMATS)
    limit = None if arguments.fail_on_increase is None else parse_limit(arguments.fail_on_increase)
    output.refuse_to_open(arguments, ("html",))
    output.name(arguments, arguments.after, ".diff")  # its own page may be there, too
    output.refuse_to_replace((arguments.before, arguments.after), arguments.output)
    with progress.shown(f"comparing {arguments.before} with {arguments.after}"):
        report = _compare(arguments, limit)
    with output.opened(arguments) as out, progress.shown_until_output("making the report", out) as stream:
        more = (arguments.source,) if arguments.format == "html" else ()
        import_module(FORMATS[arguments.format]).write(report, stream, *more)
    output.finish(arguments)
    if report.verdict is None or report.verdict.kept:
        return 0
    from hiwater.report.diff_request import verdict_words

    say(verdict_words(report.verdict))
    return 1


def parse_limit(text: str) -> Limit:
    """The limit for `text` (`10MiB`, `5%`, `0`). Raises UsageError or BadSize."""
    from hiwater.analysis.diff import Limit

    if not text.strip().endswith("%"):
        return Limit(bytes=parse_size(text))
    try:
        percent = float(text.strip()[:-1])
    except ValueError:
        percent = -1.0
    if not 0 <= percent < float("inf"):
        raise UsageError(f"{text!r} is not a percentage of 0 or more", "write --fail-on-increase 5% or 10MiB")
    return Limit(percent=percent)


def _compare(arguments: argparse.Namespace, limit: Limit | None) -> DiffReport:
    from hiwater.analysis.diff import compare_as_recorded, judge
    from hiwater.analysis.matching import process_pairs
    from hiwater.capture.native_frames import Frames
    from hiwater.report import native_frames
    from hiwater.report.diff_request import DiffReport

    sides = [report_verb.open_run([path], arguments.kind).captures for path in (arguments.before, arguments.after)]
    for remark in native_frames.compare(sides, Frames(arguments.frames), is_page=arguments.format == "html"):
        say(remark)
    pairs = process_pairs(*sides)
    if not pairs:
        raise BadRequest("the two captures have no process in common", "give one process of each, as all.hiw/NAME")
    comparisons = [
        compare_as_recorded(before, after, at=arguments.at, kind=arguments.kind, by=arguments.by or "stack")
        for before, after in pairs
    ]
    ordered = sorted(comparisons, key=_growth, reverse=True)
    others = tuple(ordered) if max(map(len, sides)) > 1 else ()
    unmatched = (len(sides[0]) - len(pairs), len(sides[1]) - len(pairs))
    verdicts = [judge(comparison, limit) for comparison in ordered] if limit else [None]
    verdict = next((one for one in verdicts if one is not None and not one.kept), verdicts[0])
    return DiffReport(ordered[0], arguments.by, arguments.top, verdict, others, unmatched, arguments.frames)


def _growth(comparison: MatchedComparison) -> tuple[int, int]:
    return comparison.allocated.change or 0, comparison.resident.change or 0
