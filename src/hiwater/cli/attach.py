"""`hiwater attach`: begins recording a process that runs already. `hiwater detach` ends it.

Exits with 0, with 125 for a failure of hiwater's own, with 126 when the process cannot be attached to, with 127 when it
is not there.
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress

from hiwater._os import control_request, destination, procfs
from hiwater._os.durations import parse_duration
from hiwater._os.ownership import program_of
from hiwater._os.settings import Settings
from hiwater._os.sizes import format_size, parse_size
from hiwater.cli import gdb, injected, remote_exec
from hiwater.cli.messages import say
from hiwater.cli.run_arguments import RunArguments
from hiwater.errors import AttachRefused, NoSuchProcess, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hiwater.cli.parsing import Parser

PARSER = {
    "usage": "hiwater attach [options] PID",
    "usual": ("-o", "--sample", "--snapshot-every", "--method", "-q"),
    "description": (
        "Records a process that runs already, from now on. The process must be in standby (`hiwater run --standby`), or"
        " run Python 3.14 or newer."
    ),
    "epilog": """examples:
  hiwater attach 4711 -o live.hiw              record process 4711 from now on
  hiwater attach 4711 --sample 64KiB           the same with less overhead
  hiwater snapshot 4711 -o now.hiw             what it has recorded so far
  hiwater detach 4711                          end the recording
  hiwater attach 4711 --method gdb             reach a program that is not in standby, and runs a Python before 3.14
""",
}
TIMEOUT_SECONDS = 8.0


def add_arguments(parser: Parser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="the id of the process")
    parser.option("-o, --output FILE", "the capture (default: hiwater-<program>.PID.hiw)")
    parser.option("--sample SIZE", "record every block of SIZE and more, and a random sample of the smaller ones")
    parser.option(
        "--snapshot-every T",
        "note what is live after each interval T (10s, 5min): `hiwater leaks` then shows what grows",
        type=parse_duration,
        default=0,
    )
    parser.option(
        "--own PACKAGE",
        "an installed package whose code is yours, so that a report can begin with a line of it; may be repeated",
        action="append",
        default=[],
    )
    add_method(parser)
    parser.option("-q, --quiet", "print errors only")


def add_method(parser: Parser) -> None:
    """Add the option that `attach` and `detach` share."""
    parser.option(
        "--method",
        "gdb: attach through gdb, also to a process that is not in standby; gdb stops it for about a second. auto (the"
        " default) uses only ways that do not stop it",
        choices=["auto", "gdb"],
        default="auto",
    )


def run(arguments: argparse.Namespace) -> int:
    """Attach, and return the exit code. Raises HiwaterError."""
    if arguments.sample is not None:
        parse_size(arguments.sample)
    pattern = arguments.output or destination.default_pattern(program_name(procfs.command_of(arguments.pid)))
    output = destination.absolute(destination.expand(pattern, arguments.pid))
    destination.check(output)
    request = {
        "do": "attach", "output": output, "sample": arguments.sample, "snapshot_every": arguments.snapshot_every,
        "own": arguments.own,
    }  # fmt: skip
    answer = ask(arguments.pid, request, arguments.method)
    if not arguments.quiet:
        say(
            f"process {arguments.pid} is being recorded into {answer['path']}: `hiwater detach {arguments.pid}` ends it"
        )
    return 0


def program_name(command: Sequence[str]) -> str:
    """What the process with this command line runs, as `hiwater run` names captures; of `hiwater run`, its
    program."""
    kind, program = program_of(command[1:])
    if os.path.basename(program) == "hiwater" and "run" in command:
        found = RunArguments(Settings({}, None))
        with suppress(UsageError):
            found.read(command[command.index("run") + 1 :])
        kind, program = found.kind, found.program
    if kind == "script":
        program = os.path.splitext(os.path.basename(program))[0]
    return "command" if kind == "command" else program or "process"


def detach(arguments: argparse.Namespace) -> int:
    """Detach, and return the exit code. Raises HiwaterError."""
    answer = ask(arguments.pid, {"do": "detach"}, arguments.method)
    if not arguments.quiet:
        say(f"peak {format_size(answer['peak_bytes'])} allocated since it was attached; capture {answer['path']}")
    return 0


def ask(pid: int, request: dict[str, Any], method: str = "auto") -> dict[str, Any]:
    """Have the process do what is requested, and return its answer. Raises NoSuchProcess, ProcessNotReadable or
    AttachRefused."""
    if not procfs.state_of(pid):
        raise NoSuchProcess(f"there is no process {pid}", "check the id: the process may have ended")
    descriptor = control_request.open_of(pid)
    if descriptor is None:
        reach = gdb.ask if method == "gdb" else remote_exec.ask
        answer = reach(pid, request, TIMEOUT_SECONDS)
    else:
        found = control_request.ask(descriptor, request, TIMEOUT_SECONDS)
        os.close(descriptor)
        if found is None:
            raise AttachRefused(
                f"process {pid} is in standby and has not answered for {TIMEOUT_SECONDS:.0f} s"
                f" ({injected.occupation(pid)})",
                "try again: it answers as soon as a thread of it can run Python",
            )
        answer = found
    return _checked(pid, request, answer)


def _checked(pid: int, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it has what it must have: the process may be another user's, and no hiwater. Raises
    AttachRefused otherwise."""
    if isinstance(answer.get("problem"), str):
        problem, remedy = (" ".join(str(answer.get(name, "")).split()) for name in ("problem", "remedy"))
        raise AttachRefused(f"process {pid}: {problem}", remedy)
    expected = {"path": str} if request["do"] == "attach" else {"path": str, "peak_bytes": int}
    if not all(isinstance(answer.get(name), kind) for name, kind in expected.items()):
        raise AttachRefused(
            f"process {pid} gave an answer that hiwater does not understand",
            "check which program it runs, and with which version of hiwater",
        )
    return answer
