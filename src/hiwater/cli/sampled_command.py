"""The command that `hiwater sample` starts: it waits to be watched, gets the signals that are meant for it, and decides
the exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress

from hiwater._os import portable, procfs
from hiwater.errors import NotFound, NotRunnable
from hiwater.sampling.scope_file import VARIABLE as SCOPES_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from hiwater.sampling.watcher import Watched, Watcher

_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_THE_TERMINAL = ("SIGINT", "SIGQUIT")  # the command has them from there, too


def _own_peak() -> int:
    """The peak of this process. A child's `ru_maxrss` begins with it, and exec keeps it."""
    memory = procfs.ProcessMemory(os.getpid())
    figures = memory.peak_and_resident()
    memory.close()
    return figures[0] if figures is not None else 0


def start(command: list[str], scopes_path: str) -> Gate | Ungated:
    """Start it as far as it can wait here. Raises OSError if there can be no other process, NotFound or NotRunnable."""
    return Gate(command, scopes_path) if portable.HAS_PROC else Ungated(command, scopes_path)


class Gate:
    """A process that waits before it becomes the command, so that it is watched from the beginning."""

    def __init__(self, command: list[str], scopes_path: str) -> None:
        _leave_to_the_command()
        self._command = command
        self._own_peak = _own_peak()
        self._status: int | None = None
        self._is_open = False
        waiting, self._go = os.pipe()
        self._failure, failed = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go)
            _become(command, {**os.environ, SCOPES_VARIABLE: scopes_path}, waiting, failed)
        os.close(waiting)
        os.close(failed)
        for number in _known(_FORWARDED):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._forward)

    def _forward(self, number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)  # not waited for yet, so the number is still its own

    def open(self) -> None:
        """Start the command, and return when its program has begun. Raises NotFound or NotRunnable."""
        if self._is_open:
            return
        self._is_open = True
        os.write(self._go, b"g")
        os.close(self._go)
        answer = os.read(self._failure, 16)  # empty: the program began, which closed the descriptor
        os.close(self._failure)
        if answer:
            os.waitpid(self.pid, 0)
            raise _refusal(self._command[0], int(answer))

    def take_final_figures(self, watcher: Watcher) -> int:
        """Wait for the command, which has ended, and use the kernel's figure of its peak if it is the command's own.

        `ru_maxrss` begins with our peak, and includes every child that the command waited for, also one that was not
        seen. It is used if it equals the last reading of the high-water mark, or if there was no such child and it is
        above our peak.
        """
        root = watcher.root
        os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)  # its figures in /proc are final, and still there
        has_children = procfs.has_waited_for_children(root.pid)
        _, self._status, usage = os.wait4(root.pid, 0)
        whole_life = usage.ru_maxrss * 1024
        if whole_life == root.high_water_bytes or (not has_children and whole_life > self._own_peak):
            root.peak_bytes = max(root.peak_bytes, whole_life)
            root.peak_is_exact = True
        return _note_end(root, self.wait())

    def wait(self) -> int:
        """Wait for the command if that was not done yet. Returns its exit code, or the negative number of a signal."""
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(self._status)


class Ungated:
    """A command on a system without /proc, where it is watched from a moment after its start. It has the methods of
    `Gate`."""

    def __init__(self, command: list[str], scopes_path: str) -> None:
        import subprocess

        _leave_to_the_command()
        try:
            self._process = subprocess.Popen(command, env={**os.environ, SCOPES_VARIABLE: scopes_path})
        except OSError as error:
            raise _refusal(command[0], error.errno or 0) from error
        self.pid = self._process.pid

    def open(self) -> None:
        """It runs."""

    def take_final_figures(self, watcher: Watcher) -> int:
        return _note_end(watcher.root, self.wait())

    def wait(self) -> int:
        return self._process.wait()


def _note_end(root: Watched, exit_status: int) -> int:
    """Note how the command ended, and return its exit code as shells do."""
    root.exit_status = exit_status
    return exit_status if exit_status >= 0 else 128 - exit_status


def _leave_to_the_command() -> None:
    """The signals that the terminal sends to the command, too."""
    for number in _known(_FROM_THE_TERMINAL):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited over exec


def _known(names: Sequence[str]) -> list[signal.Signals]:
    """Those that this system has."""
    return [signal.Signals[name] for name in names if hasattr(signal, name)]


def _refusal(name: str, number: int) -> NotFound | NotRunnable:
    """The error for a command that the system could not execute."""
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return NotFound(f"there is no command {name!r}", "check the name and PATH")
    return NotRunnable(f"{name!r} cannot be run ({os.strerror(number)})", "check its permissions")


def _become(command: list[str], environment: dict[str, str], waiting: int, failed: int) -> NoReturn:
    """In the new process: wait for the gate, then run the command. If it cannot run, its errno is written to
    `failed`."""
    try:
        if os.read(waiting, 1):
            _execute(command, environment)
    except OSError as error:
        os.write(failed, str(error.errno).encode())
    finally:
        os._exit(127)


def run_here(command: list[str]) -> NoReturn:
    """Become the command. Raises NotFound or NotRunnable."""
    try:
        _execute(command, os.environ)
    except OSError as error:
        raise _refusal(command[0], error.errno or 0) from error


def _execute(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, environment)  # noqa: S606 - the command is what was asked for


def end_by(number: int) -> None:
    """End by the signal that ended the command, without a core file of ours."""
    with suppress(ImportError):  # Windows, which writes none
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.stdout is not None:
        sys.stdout.flush()
    if number not in _known(("SIGKILL", "SIGSTOP")):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
