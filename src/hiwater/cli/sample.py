"""`hiwater sample`: records the timeline of any process and its children from outside."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import tempfile
import time
from contextlib import suppress

from hiwater import __version__
from hiwater._os import destination, portable, process_identity, processes, procfs, settings, sizes
from hiwater._os.durations import parse_duration
from hiwater._os.sizes import format_size
from hiwater.cli import sampled_command
from hiwater.cli.messages import say
from hiwater.errors import HiwaterError, NotFound, NotRunnable, UsageError
from hiwater.recording.facts import json_list
from hiwater.recording.last_lines import from_here
from hiwater.sampling.recording import SampleRecording
from hiwater.sampling.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.cli.parsing import Parser
    from hiwater.sampling.watcher import Watched

_DEFAULT_INTERVAL = "10ms"
_STATUS_EVERY_NS = 200_000_000
PARSER = {
    "usual": ("-i", "-t", "--no-children", "-o", "--live"),
    "usage": "hiwater sample [options] (PID | -- COMMAND …)",
    "description": (
        "Measures the resident memory of a process, and of all that it starts, from outside. The process is not"
        " changed, slowed or restarted."
    ),
    "epilog": """examples:
  hiwater sample 4711                              until it ends, or Ctrl-C
  hiwater sample --interval 1ms -o run.hiw -- make -j4
  hiwater sample --timeout 30s --no-children 4711
  hiwater report run.hiw --format timeline         draw it

exit codes: of a command, its own (a signal that ended it is raised again); of a process, 0; 2 wrong options,
125 hiwater could not start, 126 not runnable or not readable, 127 not found or ended already
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
            sampled_command.end_by(stop.signal)
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
                gate = sampled_command.start(command, scopes_path)
            except OSError as error:
                say(
                    "warning: the command runs without being sampled: hiwater cannot start another process"
                    f" ({error.strerror})"
                )
                os.unlink(scopes_path)
                sampled_command.run_here(command)
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
            sampled_command.end_by(-code)
        return code if code >= 0 else 128 - code

    def _watch_started(
        self,
        command: list[str],
        gate: sampled_command.Gate | sampled_command.Ungated,
        started_ns: int,
        scopes_path: str,
    ) -> None:
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
            "host": process_identity.host_name(),
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
        text = (
            f"{(now - started_ns) / 1e9:8.1f} s  {format_size(root.last_bytes)}  peak"
            f" {format_size(root.peak_bytes)}{below}"
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _summary(watcher: Watcher, recording: SampleRecording, shown: str, seconds: float) -> list[str]:
    root = watcher.root
    how = sizes.accuracy_of_peak(exact=root.peak_is_exact, error_bytes=procfs.peak_error_bytes())
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
