"""`hiwater merge`: many captures into one file, each as it was.

Exits with 0, with 2 for a capture that cannot be read, with 125 when the merged one cannot be written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import suppress

from hiwater.errors import CaptureUnwritable, HiwaterError

_EXAMPLES = """examples:
  hiwater merge -o job.hiw run.*.hiw           all ranks of a job in one file
  hiwater report job.hiw                       each process\'s peaks, the worst first, and what they held at once
  hiwater merge -o job.hiw job.hiw late.hiw    one more; what is in it already stays as it is
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Make the parser of this verb."""
    parser = subparsers.add_parser(
        "merge",
        help="put many captures into one file",
        description="Puts many captures into one file, each as it was: processes, ranks and machines stay apart.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("captures", metavar="CAPTURE", nargs="+", help="a capture, or one that was merged before")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the merged capture")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Merge; the exit code. Talks on stderr in one line when it cannot."""
    try:
        count = _merge(arguments.captures, arguments.output)
    except HiwaterError as error:
        print(f"hiwater merge: {error}", file=sys.stderr)
        return error.exit_code
    if not arguments.quiet:
        from hiwater.cli.messages import say

        say(
            f"merged {count} capture{'' if count == 1 else 's'} into {arguments.output}: read it with `hiwater report {arguments.output}`"
        )
    return 0


def _merge(paths: list[str], output: str) -> int:
    from hiwater.capture import container, destination
    from hiwater.cli.report import naming

    output = destination.absolute(output)
    destination.check(output)
    packed = []
    for path in paths:
        with naming(path):
            packed += container.pack(path)
    target = os.path.realpath(output)
    try:
        descriptor, made = tempfile.mkstemp(prefix=".hiwater-merge-", dir=os.path.dirname(target))
    except OSError as error:
        raise destination.explain(output, error) from error
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            count = container.write(packed, stream)
        os.replace(made, target)  # with its owner's rights alone, as a capture
    except OSError as error:
        raise _unwritable(output, error) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(made)
    return count


def _unwritable(output: str, error: OSError) -> CaptureUnwritable:
    from hiwater.capture import destination

    return destination.explain(output, error)
