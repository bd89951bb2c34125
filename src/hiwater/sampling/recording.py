"""A sink for watchers that writes a capture: every reading of every process, thinned in long recordings."""

from __future__ import annotations

import os
from contextlib import suppress

from hiwater._os import trust
from hiwater._os.procfs import peak_error_bytes
from hiwater.capture.format import KINDS
from hiwater.capture.process import STATE_ENDED, STATE_FAILED
from hiwater.capture.writer import UNKNOWN_EXIT_CODE, UNKNOWN_EXIT_STATUS, CaptureWriter
from hiwater.recording.facts import json_list
from hiwater.sampling.scope_file import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hiwater.sampling.watcher import Watched

_FLUSH_EVERY_NS = 250_000_000  # a killed sampler loses at most this much
_SAMPLES_AT_ONE_STEP = 200_000  # of a process: after so many, only the highest of two is kept, then of four …
_NO_KINDS = (0,) * len(KINDS)
_SCOPES_READ_BYTES = 1 << 20


class SampleRecording:
    """The capture of one `hiwater sample`. A full disk ends the recording, and the program continues."""

    def __init__(self, path: str, *, pid: int, start_ticks: int, facts: Mapping[str, str], started_ns: int) -> None:
        """Create the capture. Raises CaptureUnwritable."""
        self._writer = CaptureWriter(path, pid=pid, start_ticks=start_ticks, facts=facts, started_ns=started_ns)
        self._started_ns = started_ns
        self._flushed_ns = started_ns
        self._thinned: dict[int, _Thinned] = {}
        self._scope_descriptor: int | None = None
        self._scope_text = b""
        self.failure: str | None = None
        self.sum_peak_bytes = 0
        self._last: dict[int, int] = {}
        self.sum_now_bytes = 0
        """Resident bytes of all living processes, each with all of its shared pages."""
        self._root: Watched | None = None

    def read_scopes_from(self, path: str) -> None:
        """Read scopes from this file, to which the watched processes append."""
        self._scope_descriptor = trust.open_regular(path)

    # Called by a watcher

    def appeared(self, process: Watched) -> None:
        """Also called when a process starts another program."""
        self._store("processes", process.number, self._row(process))
        if process.number == 0:
            self._root = process

    def sampled(self, process: Watched, at_ns: int, resident_bytes: int) -> None:
        self.sum_now_bytes += resident_bytes - self._last.get(process.number, 0)
        self._last[process.number] = resident_bytes
        self.sum_peak_bytes = max(self.sum_peak_bytes, self.sum_now_bytes)
        thinned = self._thinned.setdefault(process.number, _Thinned())
        kept = thinned.take(max(0, at_ns - self._started_ns), resident_bytes)
        if kept is not None:
            self._keep(process.number, *kept)

    def ended(self, process: Watched) -> None:
        self.sum_now_bytes -= self._last.pop(process.number, 0)
        self._flush_process(process)

    def _flush_process(self, process: Watched) -> None:
        thinned = self._thinned.pop(process.number, None)
        rest = thinned.rest() if thinned is not None else None
        if rest is not None:
            self._keep(process.number, *rest)
        self._store("processes", process.number, self._row(process))

    def _keep(self, number: int, at_ns: int, resident_bytes: int) -> None:
        if number == 0:
            self._store("timeline", None, (at_ns, resident_bytes, *_NO_KINDS))
        else:
            self._store("process_samples", None, (at_ns, resident_bytes, number, 0))

    def _row(self, process: Watched) -> tuple[int, ...]:
        end = 0 if process.end_ns is None else max(1, process.end_ns - self._started_ns)
        status = UNKNOWN_EXIT_STATUS if process.exit_status is None else process.exit_status
        return (
            process.pid, process.parent_pid, self._string(process.name), self._string(json_list(process.command)),
            max(0, process.start_ns - self._started_ns), end, process.peak_bytes, int(process.peak_is_exact), status,
        )  # fmt: skip

    # The file

    def fact(self, key: str, value: str) -> None:
        """Add a fact about the process and the sampling."""
        self._store("facts", None, (self._string(key), self._string(value)))

    def end_of_tick(self, now: int) -> None:
        """Write buffered data, at intervals."""
        if now - self._flushed_ns < _FLUSH_EVERY_NS:
            return
        self._flushed_ns = now
        self._read_scopes()
        if self._root is not None:
            self._set_resident(self._root)
        self._attempt(self._writer.flush)

    def finish(self, processes: list[Watched], exit_code: int | None, ended_ns: int) -> None:
        """Complete the capture. `exit_code` is the target's, if known."""
        for process in processes:
            if process.number in self._thinned:
                self._flush_process(process)
        self._store("processes", 0, self._row(processes[0]))
        self._read_scopes()
        if self._scope_descriptor is not None:
            os.close(self._scope_descriptor)
        self._set_resident(processes[0])
        if self.failure is not None:
            with suppress(OSError):  # this needs no space on the disk
                self._writer.close(state=STATE_FAILED)
            return
        known = UNKNOWN_EXIT_CODE if exit_code is None else exit_code
        self._attempt(
            lambda: self._writer.close(state=STATE_ENDED, exit_code=known, ended_ns=ended_ns - self._started_ns)
        )

    def abandon(self) -> None:
        """Remove the capture, because there was no process to watch."""
        self._writer.close()
        os.unlink(self._writer.path)

    def _set_resident(self, root: Watched) -> None:
        self._writer.set(
            resident_start_bytes=root.first_bytes,
            resident_last_bytes=root.last_bytes,
            resident_peak_bytes=root.peak_bytes,
            resident_exact=int(root.peak_is_exact),
            resident_error_bytes=peak_error_bytes() if root.peak_is_exact else 0,
        )

    def _string(self, text: str) -> int:
        return self._writer.string(text)

    def _store(self, table: str, number: int | None, values: tuple[int, ...]) -> None:
        if self.failure is not None:
            return
        if number is not None and number < self._writer.count(table):
            self._writer.update(table, number, *values)
        else:
            self._writer.append(table, *values)

    def _attempt(self, write: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        try:
            write()
        except OSError as error:
            self.failure = error.strerror or str(error)

    def _read_scopes(self) -> None:
        if self._scope_descriptor is None:
            return
        while True:
            text = os.read(self._scope_descriptor, _SCOPES_READ_BYTES)
            if not text:
                return
            whole, _, self._scope_text = (self._scope_text + text).rpartition(b"\n")
            for name, (start_ns, end_ns, pid, thread_id, depth, *sizes) in parse(whole):
                if end_ns >= self._started_ns:
                    times = (max(0, start_ns - self._started_ns), end_ns - self._started_ns)
                    self._store("scopes", None, (self._string(name), pid, thread_id, depth, *times, *sizes))


class _Thinned:
    """The samples of one process: at first all, then the highest of every two, of every four, and so on."""

    __slots__ = ("best", "kept", "step", "waiting")

    def __init__(self) -> None:
        self.step = 1
        self.kept = 0
        self.waiting = 0
        self.best: tuple[int, int] | None = None

    def take(self, at_ns: int, count: int) -> tuple[int, int] | None:
        """Take a sample; return the one to keep, if any."""
        if self.best is None or count > self.best[1]:
            self.best = (at_ns, count)
        self.waiting += 1
        if self.waiting < self.step:
            return None
        self.kept += 1
        if self.kept % _SAMPLES_AT_ONE_STEP == 0:
            self.step *= 2
        return self.rest()

    def rest(self) -> tuple[int, int] | None:
        best, self.best, self.waiting = self.best, None, 0
        return best
