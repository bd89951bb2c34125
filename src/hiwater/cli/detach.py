"""`hiwater detach`: ends a recording that `hiwater attach` began."""

from __future__ import annotations

import argparse

from hiwater.cli import attach
from hiwater.cli.parsing import Parser

PARSER = {
    "description": "Ends a recording that `hiwater attach` began. The process runs on.",
    "epilog": """examples:
  hiwater detach 4711                          end the recording of process 4711
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="the id of the process")
    attach.add_method(parser)
    parser.option("-q, --quiet", "print errors only")


def run(arguments: argparse.Namespace) -> int:
    """Detach, and return the exit code. Raises HiwaterError."""
    return attach.detach(arguments)
