"""`hiwater sample`: records the timeline of any process and its children from outside."""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import sys
import tempfile
import time
from contextlib import suppress

from hiwater import __version__
from hiwater._os import accuracy, portable, processes, procfs, settings
from hiwater._os.durations import parse_duration
from hiwater._os.sizes import format_size
from hiwater.capture import destination
from hiwater.cli.messages import say
from hiwater.errors import HiwaterError, NotFound, NotRunnable, UsageError
from hiwater.recording.facts import json_list
from hiwater.recording.summary import from_here
from hiwater.sampling.recording import SampleRecording
from hiwater.sampling.scope_file import VARIABLE as SCOPES_VARIABLE
from hiwater.sampling.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from hiwater.cli.parsing import Parser
    from hiwater.sampling.watcher import Watched

_DEFAULT_INTERVAL = "10ms"
_STATUS_EVERY_NS = 200_000_000
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_THE_TERMINAL = ("SIGINT", "SIGQUIT")  # the command has them from there, too
PARSER = {
    "usual": ("-i", "-t", "--no-children", "-o", "--live"),
    "usage": "hiwater sample [options] (PID | -- COMMAND …)",
    "description": "Measures the resident memory of a process, and of all that it starts, from outside. The process is not changed, slowed or restarted.",
    "epilog": """examples:
  hiwater sample 4711                              until it ends, or Ctrl-C
  hiwater sample --interval 1ms -o run.hiw -- make -j4
  hiwater sample --timeout 30s --no-children 4711
  hiwater report run.hiw --format timeline         draw it

exit codes: of a command, its own (a signal that ended it is raised again); of a process, 0; 2 wrong options, 125 hiwater could not
start, 126 not runnable or not readable, 127 not found or ended already
""",
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("pid", metavar="PID", nargs="?", help="the id of a process")
    parser.option(
        "-i, --interval TIME", f"time between samples: 1ms or more, such as 0.1 or 5s (default: {_DEFAULT_INTERVAL})"
    )
    parser.option("-t, --timeout TIME", "stop sampling after this time; the processes go on")
    parser.option(
        "--children",
        "watch the processes that it starts, too (default), or only itself",
        action=argparse.BooleanOptionalAction,
        default=True,
    )
    parser.option(
        "-o, --output FILE",
        "the capture; %%p is the id of the process, %%h the host (default: hiwater-<program>.<pid>.hiw)",
    )
    parser.option("--live", "show a line of figures on the terminal for a command, too; for a PID it is always shown")
    parser.option("-q, --quiet", "print warnings only")


def run(arguments: argparse.Namespace) -> int:
    """Sample the process or command, and return the exit code. Raises HiwaterError."""
    job = _Job(arguments, arguments.command)
    return job.watch_command(arguments.command) if arguments.command else job.watch_process()


class _Job:
    """One run of `hiwater sample`."""

    def __init__(self, parsed: argparse.Namespace, command: list[str]) -> None:
        """Raises UsageError."""
        chosen = settings.here()
        self._pid = _number(parsed.pid, command)
        self._interval_ns = int(parse_duration(parsed.interval or chosen.text("interval") or _DEFAULT_INTERVAL) * 1e9)
        self._timeout_ns = int(parse_duration(parsed.timeout) * 1e9) if parsed.timeout else None
        self._children: bool = parsed.children
        self._pattern: str | None = parsed.output or chosen.text("output")
        self._quiet: bool = parsed.quiet or chosen.flag("quiet", False)
        self._live: bool = not self._quiet and (parsed.live or not command)
        self._interval_ns = max(1, self._interval_ns)

    # A process that is there already

    def watch_process(self) -> int:
        """Watch until the process ends, the time is over, or the user interrupts it, which is the usual end."""
        memory = processes.open_target(self._pid)
        argv = processes.command_of(self._pid)
        path = self._path(argv, self._pid)
        stop = _Interruption((signal.SIGINT, signal.SIGTERM))
        started_ns = time.monotonic_ns()
        recording = SampleRecording(
            path, pid=self._pid, start_ticks=memory.start_ticks, facts=self._facts(argv), started_ns=started_ns
        )
        memory.close()
        watcher = Watcher(self._pid, recording, interval_ns=self._interval_ns, children=self._children)
        self._watch(watcher, recording, started_ns, stop)
        has_ended = watcher.root.end_ns is not None
        self._finish(watcher, recording, None, started_ns, path)
        if not self._quiet:
            after = f"after {(time.monotonic_ns() - started_ns) / 1e9:.1f} s"
            say(f"process {self._pid} has ended {after}" if has_ended else f"process {self._pid} runs on")
        if stop.signal == signal.SIGTERM:
            _end_by(stop.signal)
        return 0

    # A command

    def watch_command(self, command: list[str]) -> int:
        """Start a command, watch it to its end, and return its exit code. An error of ours never changes how it
        ends."""
        self._path(command, os.getpid())  # before anything is started
        descriptor, scopes_path = tempfile.mkstemp(prefix="hiwater-scopes-")
        os.close(descriptor)
        try:
            started_ns = time.monotonic_ns()
            try:
                gate = _Gate(command, scopes_path) if portable.HAS_PROC else _Ungated(command, scopes_path)
            except OSError as error:
                say(
                    f"warning: the command runs without being sampled: hiwater cannot start another process ({error.strerror})"
                )
                os.unlink(scopes_path)
                _run_here(command)
            try:
                self._watch_started(command, gate, started_ns, scopes_path)
            except (NotFound, NotRunnable):
                raise
            except Exception as error:  # noqa: BLE001 - whatever went wrong here, the command must still run and end as without hiwater
                reason = str(error) if isinstance(error, HiwaterError) else f"{type(error).__name__}: {error}"
                say(f"warning: the command runs without being sampled: {reason}")
                gate.open()
            code = gate.wait()
        finally:
            with suppress(FileNotFoundError):
                os.unlink(scopes_path)
        if code < 0:
            _end_by(-code)
        return code if code >= 0 else 128 - code

    def _watch_started(self, command: list[str], gate: _Gate | _Ungated, started_ns: int, scopes_path: str) -> None:
        """Watch the command from before its first instruction. Raises NotFound or NotRunnable if it cannot start."""
        path = self._path(command, gate.pid)
        ticks = processes.start_ticks_of(gate.pid) or 0
        recording = SampleRecording(
            path, pid=gate.pid, start_ticks=ticks, facts=self._facts(command), started_ns=started_ns
        )
        recording.read_scopes_from(scopes_path)
        try:
            watcher = Watcher(
                gate.pid, recording, interval_ns=self._interval_ns, children=self._children, is_fresh=True
            )
            gate.open()
        except HiwaterError:
            recording.abandon()
            raise
        watcher.root.name, watcher.root.command = os.path.basename(command[0]), command
        recording.appeared(watcher.root)
        self._watch(watcher, recording, started_ns, None)
        if watcher.root.end_ns is None:
            if not self._quiet:
                say("the time is up: sampling has stopped, the command runs on")
            self._finish(watcher, recording, None, started_ns, path)
            return
        code = gate.take_final_figures(watcher)
        self._finish(watcher, recording, code, started_ns, path)

    # Both

    def _path(self, argv: list[str], pid: int) -> str:
        """The path of the capture. Raises CaptureUnwritable."""
        program = os.path.basename(argv[0]) if argv and argv[0] else "process"
        path = destination.absolute(destination.expand(self._pattern or destination.default_pattern(program), pid))
        destination.check(path)
        return path

    def _facts(self, argv: list[str]) -> dict[str, str]:
        return {
            "hiwater": __version__,
            "recorder": "sample",
            "argv": json_list(argv),
            "interval_ns": str(self._interval_ns),
            "platform": portable.platform_name(),
            "host": portable.host_name(),
        }

    def _watch(self, watcher: Watcher, recording: SampleRecording, started_ns: int, stop: _Interruption | None) -> None:
        status = _Status(self._live and sys.stderr is not None and sys.stderr.isatty())

        def end_of_tick(now: int) -> bool:
            recording.end_of_tick(now)
            status.show(now, started_ns, watcher, recording)
            return stop is not None and stop.signal != 0

        until = None if self._timeout_ns is None else started_ns + self._timeout_ns
        try:
            watcher.run(until_ns=until, on_tick=end_of_tick, stop_on=stop.readable if stop is not None else -1)
        finally:
            status.clear()

    def _finish(
        self, watcher: Watcher, recording: SampleRecording, code: int | None, started_ns: int, path: str
    ) -> None:
        watcher.close()
        recording.fact("children_found_by", watcher.finds_children_by)
        recording.fact("ticks", str(watcher.ticks))
        recording.fact("missed_ticks", str(watcher.missed_ticks))
        recording.fact("sum_peak_bytes", str(recording.sum_peak_bytes))
        recording.finish(watcher.processes, code, watcher.root.end_ns or time.monotonic_ns())
        if recording.failure is not None:
            say(f"warning: the capture is not complete: {recording.failure}")
        if not self._quiet:
            for line in _summary(watcher, recording, from_here(path), (time.monotonic_ns() - started_ns) / 1e9):
                say(line)


def _number(text: str | None, command: list[str]) -> int:
    """The number of the process; 0 for a command."""
    if command:
        if text is not None:
            raise UsageError(f"{text!r} is before --", "give a PID or a command, not both")
        return 0
    if text is None:
        raise UsageError("there is nothing to sample", "give a PID, or `--` and a command")
    if not text.isdecimal():
        raise UsageError(f"{text!r} is not a process id", f"write `hiwater sample -- {text} …` to start a command")
    return int(text)


def _own_peak() -> int:
    """The peak of this process. A child's `ru_maxrss` begins with it, and exec keeps it."""
    memory = procfs.ProcessMemory(os.getpid())
    figures = memory.peak_and_resident()
    memory.close()
    return figures[0] if figures is not None else 0


class _Gate:
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


class _Ungated:
    """A command on a system without /proc, where it is watched from a moment after its start. It has the methods of
    `_Gate`."""

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


def _run_here(command: list[str]) -> NoReturn:
    """Become the command. Raises NotFound or NotRunnable."""
    try:
        _execute(command, os.environ)
    except OSError as error:
        raise _refusal(command[0], error.errno or 0) from error


def _execute(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], command, environment)  # noqa: S606 - the command is what was asked for


def _end_by(number: int) -> None:
    """End by the signal that ended the command, without a core file of ours."""
    with suppress(ImportError):  # Windows, which writes none
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.stdout is not None:
        sys.stdout.flush()
    if number not in _known(("SIGKILL", "SIGSTOP")):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class _Interruption:
    """Signals that end the watching. The descriptor `readable` becomes readable when one arrives."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.signal = 0
        # Windows waits for sockets alone: there it is seen at the next tick.
        self.readable, self._write = os.pipe() if hasattr(select, "poll") else (-1, -1)
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._came)

    def _came(self, number: int, _: object) -> None:
        self.signal = number
        if self._write >= 0:
            os.write(self._write, b"s")


class _Status:
    """One line on a terminal, rewritten as the figures change."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._last_ns = 0

    def show(self, now: int, started_ns: int, watcher: Watcher, recording: SampleRecording) -> None:
        if not self._is_shown or now - self._last_ns < _STATUS_EVERY_NS:
            return
        self._last_ns = now
        root = watcher.root
        alive = sum(process.end_ns is None for process in watcher.processes) - 1
        below = f"  with {alive} children {format_size(recording.sum_now_bytes)}" if alive > 0 else ""
        text = f"{(now - started_ns) / 1e9:8.1f} s  {format_size(root.last_bytes)}  peak {format_size(root.peak_bytes)}{below}"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _summary(watcher: Watcher, recording: SampleRecording, shown: str, seconds: float) -> list[str]:
    root = watcher.root
    how = accuracy.of_peak(exact=root.peak_is_exact, error_bytes=procfs.peak_error_bytes())
    lines = [f"peak {format_size(root.peak_bytes, 1)} resident ({how}) in {seconds:.1f} s, {watcher.ticks:,} samples"]
    children = watcher.processes[1:]
    if children:
        highest: Watched = max(children, key=lambda child: child.peak_bytes)
        count = f"{len(children)} child process{'es' if len(children) > 1 else ''}"
        most = f"the highest {highest.name} ({highest.pid}) with {format_size(highest.peak_bytes, 1)}"
        lines.append(
            f"{count}, {most if highest.peak_bytes else 'all too short-lived to be read'}; "
            f"all at once {format_size(recording.sum_peak_bytes, 1)} (a sum: pages that processes share count for each)"
        )
    if watcher.missed_ticks > watcher.ticks // 10:
        lines.append(f"{watcher.missed_ticks:,} samples were missed, the machine was busy: try a longer --interval")
    lines.append(f"capture {shown}: read it with `hiwater report {shown}`")
    return lines
