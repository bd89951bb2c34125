"""`hiwater courtesy`: borrows the memory of a program's tensors, and returns it on a signal, after a time, or when a command has ended."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import time

from hiwater._os.durations import parse_duration
from hiwater.cli.messages import say
from hiwater.contrib.torch import meeting
from hiwater.errors import (
    CourtesyFailed,
    CourtesyUnavailable,
    NoSuchProcess,
    NotFound,
    NotRunnable,
    UsageError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.contrib.torch.meeting import Connection

_LONGEST_RETURN_SECONDS = 60.0  # tens of gigabytes take seconds to copy back
PARSER = {
    "usage": "hiwater courtesy [options] PID [-- COMMAND …]",
    "description": """\
Asks a program that called hiwater.contrib.torch.courtesy_listen() to move its tensors to RAM, holds the memory free, and gives it back: at Ctrl-C,
after a time, or when a command has ended. If this command dies, the program takes its memory back by itself.""",
    "epilog": """examples:
  hiwater courtesy 4711                           until Ctrl-C
  hiwater courtesy --for 10min 4711
  hiwater courtesy 4711 -- python evaluate.py     while this runs

exit codes: of a command, its own; otherwise 0; 125 the program could not move its memory, 126 it does not offer it or came to no safe point
in time, 127 no such process, 2 usage
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", help="the number of the program's process")
    parser.add_argument(
        "-t", "--timeout", metavar="TIME", default="60s", help="wait as long for a safe point (default: 60s)"
    )
    parser.add_argument("-f", "--for", metavar="TIME", dest="duration", help="give the memory back after this time")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing but errors")


def run(arguments: argparse.Namespace) -> int:
    """Borrow the memory and return it. Returns the exit code. Raises HiwaterError."""
    try:
        return _borrow(arguments, arguments.command)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # before there was anything to give back


def _borrow(asked: argparse.Namespace, command: list[str]) -> int:
    if not asked.pid.isdigit():
        raise UsageError(f"{asked.pid!r} is no process", "give the number of one, as `pgrep` shows it")
    seconds = parse_duration(asked.duration) if asked.duration else None
    patience = parse_duration(asked.timeout)
    line = _connected(int(asked.pid))
    try:
        words = _wait_until_yielded(line, asked, patience)
    except BaseException:
        line.close()  # which withdraws the request
        raise
    try:
        if not asked.quiet:
            say("\n".join([f"process {asked.pid} gives its memory:", *(f"  {one}" for one in words)]))
        return _while_lent(line, command, seconds)
    except KeyboardInterrupt:
        return 0  # the usual end
    finally:
        _give_back(line, asked)


def _connected(pid: int) -> Connection:
    """Raises NoSuchProcess, CourtesyUnavailable."""
    try:
        paths = meeting.candidates(pid)
    except FileNotFoundError:
        raise NoSuchProcess(f"there is no process {pid}", "`pgrep -a python` lists those that run") from None
    for path in paths:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            continue
        return meeting.Connection(connection)
    raise CourtesyUnavailable(
        f"process {pid} does not offer its memory",
        "it must call hiwater.contrib.torch.courtesy_listen(), under the same user and XDG_RUNTIME_DIR",
    )


def _wait_until_yielded(line: Connection, asked: argparse.Namespace, patience: float) -> list[str]:
    """Wait for the program, and return its message. Raises CourtesyUnavailable, CourtesyFailed."""
    end = time.monotonic() + patience
    line.send(ask="memory")
    while True:
        try:
            message: dict[str, Any] | None = line.receive(max(0.001, end - time.monotonic()))
        except TimeoutError:
            raise CourtesyUnavailable(
                f"process {asked.pid} came to no safe point in {asked.timeout}",
                "it must call safe_point() between its steps; see --timeout",
            ) from None
        if message is None:
            raise CourtesyFailed(f"process {asked.pid} has hung up", "see what it says itself")
        state, reason = message.get("state"), str(message.get("reason", "no reason given"))
        if state == "yielded":
            return str(message.get("words", "")).splitlines()
        if state in {"failed", "refused"}:
            raise CourtesyFailed(f"process {asked.pid} cannot give its memory", reason)


def _while_lent(line: Connection, command: list[str], seconds: float | None) -> int:
    if command:
        return _run(command)
    end = None if seconds is None else time.monotonic() + seconds
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while end is None or time.monotonic() < end:
            try:
                left = 3600.0 if end is None else max(0.001, end - time.monotonic())
                if line.receive(left) is None:
                    raise CourtesyFailed("the program has ended, or hung up", "see what it says itself")
            except TimeoutError:
                continue
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def _run(command: list[str]) -> int:
    try:
        process = subprocess.Popen(command)
    except FileNotFoundError:
        raise NotFound(f"there is no command {command[0]!r}", "check the spelling and PATH") from None
    except OSError as error:
        raise NotRunnable(f"{command[0]!r} cannot be run: {error.strerror}", "check its permissions") from None
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the terminal has sent the signal to the command, too, which ends as it likes
        return code if code >= 0 else 128 - code


def _give_back(line: Connection, asked: argparse.Namespace) -> None:
    """End the lease, and print how it ended."""
    line.send(ask="restore")
    try:
        while (message := line.receive(_LONGEST_RETURN_SECONDS)) is not None:
            if message.get("state") == "no room yet":
                say(f"process {asked.pid} waits for room: {message.get('reason')}")
            if message.get("state") == "restored":
                if not asked.quiet:
                    say(f"process {asked.pid} has its memory back")
                break
    except (TimeoutError, KeyboardInterrupt):
        say(f"process {asked.pid} has not said yet that its memory is back; it goes on by itself")
    finally:
        line.close()
