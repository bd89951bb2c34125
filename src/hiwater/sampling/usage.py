"""`memory_usage()`: the memory of a process or a call over time."""

from __future__ import annotations

import os
import subprocess
import time

from hiwater._os import processes
from hiwater._os.durations import checked_interval
from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.errors import BadRequest, NoSuchProcess, ProcessNotReadable
from hiwater.sampling import backends
from hiwater.sampling.ticks import Ticks, wall_seconds
from hiwater.sampling.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TextIO, TypeAlias

    from hiwater.sampling.ticks import Row

    Call: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
    Target: TypeAlias = int | str | subprocess.Popen[Any] | Callable[..., Any] | Sequence[Any]

_ENOUGH_MEASUREMENTS = 4  # a call with `max_iterations` is repeated until it has more samples than this
_SHORTEST_INTERVAL = 1e-6
_LINES_BETWEEN_FLUSHES = 50


def memory_usage(
    proc: Target = -1,
    interval: float = 0.1,
    timeout: float | None = None,
    timestamps: bool = False,
    include_children: bool = False,
    multiprocess: bool = False,
    max_usage: bool = False,
    retval: bool = False,
    stream: TextIO | None = None,
    backend: str | None = None,
    max_iterations: int | None = None,
) -> Any:
    """Return how much memory `proc` uses over time, in MiB (2**20 bytes).

    `proc` is a process number (-1: this process), a `subprocess.Popen`, a callable, or `(f,)`, `(f, args)`, `(f, args,
    kw)`.

    - A process is sampled every `interval` seconds for `timeout` seconds or until it ends; for a number without a
      `timeout`, one sample is taken immediately.
    - A call is made **once**, in the calling thread, and sampled from another process, which does not wait for the GIL.
      If the kernel has a high-water mark of resident memory (VmHWM), a peak between two samples is found and added as a
      sample, so the maximum is exact. `timeout` ends the sampling, not the call. With `max_iterations` above 1, the
      call is repeated at a tenth of the interval until there are more than 4 samples. Exceptions of the call are
      raised; no process is ever killed.

    The result is a list of MiB. With `timestamps`, each entry is `(MiB, seconds since 1970)`; with `max_usage`, the
    result is the largest entry; with `retval`, it is `(result, return value of the call)`. `include_children` adds all
    descendants, each with all of its resident memory: shared pages count once for each process. With `multiprocess`,
    each entry is a list: the process, then its children. `stream`, a text file, gets the lines of an mprof file (MEM,
    CHLD) instead, and the result is None.

    `backend` is "psutil" (default) or "posix" for resident memory, "psutil_pss" or "psutil_uss" (each sample costs 0.3
    ms or more), or "tracemalloc" (Python objects only, and only in this process).

    Raises NoSuchProcess (127), ProcessNotReadable (126), BadRequest for options that cannot be used, BadInterval (a
    ValueError) for an interval that is not a number above 0, ValueError for a tuple of another length. The list ends
    when the sampled process ends.
    """
    chosen = backends.choose_backend(backend)
    interval = checked_interval(interval)
    shape = _ResultShape(timestamps, include_children, multiprocess, max_usage, stream)
    call = _as_call(proc)
    if call is not None:
        rows, value = _of_call(call, interval, timeout, shape.wants_children, chosen, max_iterations or 1)
        shaped = shape.shaped(rows)
        return (shaped, value) if retval else shaped
    if chosen == backends.TRACEMALLOC:
        raise BadRequest("tracemalloc works only in this process", "give a function, or another backend")
    pid, is_open_ended = _process_number(proc)
    if timeout is None and not is_open_ended:
        return shape.shaped([_one_row(pid, shape.wants_children, chosen)])
    return shape.watched(pid, interval, timeout, is_open_ended, chosen)


class _ResultShape:
    """The form of the result."""

    def __init__(
        self, timestamps: bool, include_children: bool, multiprocess: bool, max_usage: bool, stream: TextIO | None
    ) -> None:
        self._timestamps = timestamps
        self._sum = include_children
        self._apart = multiprocess
        self._max = max_usage
        self._stream = stream
        self._lines = 0

    @property
    def wants_children(self) -> bool:
        return self._sum or self._apart

    def watched(self, pid: int, interval: float, timeout: float | None, is_open_ended: bool, backend: str) -> Any:
        """Watch a process from now on, and return the result; lines of a stream are written meanwhile."""
        rows: list[Row] = []
        ticks = Ticks(rows.append if self._stream is None else self._write)
        step_ns = max(1, int(interval * 1e9))
        left = None if is_open_ended or timeout is None else max(1, round(timeout / interval))
        reader = backends.READERS[backend]
        watcher = Watcher(pid, ticks, interval_ns=step_ns, children=self.wants_children, reader=reader)

        def end_of_tick(now: int) -> bool:
            nonlocal left
            ticks.end_of_tick(now)
            if left is not None:
                left -= 1
            return left == 0

        until = time.monotonic_ns() + int(timeout * 1e9) if timeout is not None and is_open_ended else None
        try:
            watcher.run(on_tick=end_of_tick, until_ns=until)
        finally:
            watcher.close()
        return self.shaped(rows)

    def shaped(self, rows: list[Row]) -> Any:
        if self._stream is not None:
            for row in rows:
                self._write(row)
            self._stream.flush()
            return None
        if self._max:
            highest = max(rows, key=self._number, default=None)
            if highest is None:
                return None
            return (self._number(highest), wall_seconds(highest[0])) if self._timestamps else self._number(highest)
        return [(self._entry(row), wall_seconds(row[0])) if self._timestamps else self._entry(row) for row in rows]

    def _number(self, row: Row) -> float:
        """One figure for a row: the sum with `include_children`, else the figure of the process."""
        children = sum(size for _, size in row[2]) if self._sum else 0
        return (row[1] + children) / BYTES_PER_MIB

    def _entry(self, row: Row) -> float | list[float]:
        if not self._apart or self._sum:
            return self._number(row)
        return [row[1] / BYTES_PER_MIB, *(size / BYTES_PER_MIB for _, size in row[2])]

    def _write(self, row: Row) -> None:
        """Write the lines of one row, in the form of an mprof file."""
        assert self._stream is not None, "only called with a stream"
        seconds = wall_seconds(row[0])
        self._stream.write(f"MEM {self._number(row):.6f} {seconds:.4f}\n")
        if self._apart:
            for pid, size in row[2]:
                self._stream.write(f"CHLD {pid} {size / BYTES_PER_MIB:.6f} {seconds:.4f}\n")
        self._lines += 1 + len(row[2])
        if self._lines >= _LINES_BETWEEN_FLUSHES:  # complete lines only: others may append to the same file
            self._stream.flush()
            self._lines = 0


def _as_call(proc: Target) -> Call | None:
    """The function and its arguments, or None for a process."""
    if callable(proc):
        return proc, (), {}
    if not isinstance(proc, (tuple, list)):
        return None
    if len(proc) == 1:
        return proc[0], (), {}
    if len(proc) == 2:
        return proc[0], proc[1], {}
    if len(proc) == 3:
        return proc[0], proc[1], proc[2]
    raise ValueError(f"a call is (f,), (f, args) or (f, args, kw), not a tuple of {len(proc)}")


def _process_number(proc: Any) -> tuple[int, bool]:
    """The process number, and whether to watch until the process ends."""
    if isinstance(proc, subprocess.Popen):
        return proc.pid, True
    if hasattr(proc, "pid") and not isinstance(proc, (int, str)):  # psutil.Process and Popen, multiprocessing.Process
        return int(proc.pid), hasattr(proc, "poll")
    try:
        pid = int(proc)
    except (TypeError, ValueError):
        raise BadRequest(f"{proc!r} is neither a process nor a call", "give a number, a Popen or a function") from None
    return (os.getpid() if pid == -1 else pid), False


def _one_row(pid: int, children: bool, backend: str) -> Row:
    """One reading, without a watcher."""
    read = backends.READERS[backend]
    memory = processes.open_target(pid, read)
    try:
        now = time.monotonic_ns()
        resident = memory.resident_bytes() or 0
    finally:
        memory.close()
    if not children:
        return now, resident, ()
    found = []
    for child in processes.descendants_of(pid):
        try:
            below = read(child)
        except (NoSuchProcess, ProcessNotReadable):
            continue  # it ended during the reading
        size = below.resident_bytes()
        below.close()
        if size is not None:
            found.append((child, size))
    return now, resident, tuple(found)


def _of_call(
    call: Call, interval: float, timeout: float | None, children: bool, backend: str, repeats: int
) -> tuple[list[Row], Any]:
    """Make and sample the call; repeat it at a tenth of the interval if `repeats` allows it."""
    while True:
        sample = _traced if backend == backends.TRACEMALLOC else _sampled
        rows, value = sample(call, interval, timeout, children, backend)
        repeats -= 1
        if repeats < 1 or len(rows) > _ENOUGH_MEASUREMENTS or interval < _SHORTEST_INTERVAL:
            return rows, value
        interval /= 10


def _sampled(call: Call, interval: float, timeout: float | None, children: bool, backend: str) -> tuple[list[Row], Any]:
    from hiwater.sampling.helper import OutsideSampler
    from hiwater.sampling.resident_peak import ResidentPeak

    function, args, keywords = call
    has_peak = backends.READERS[backend] is processes.ProcessMemory
    sampler = OutsideSampler(interval=interval, children=children, backend=backend, timeout=timeout)
    with ResidentPeak(is_wanted=has_peak) as block, sampler:
        value = function(*args, **keywords)
        peak = block.so_far() if timeout is None else 0
        after = _one_row(os.getpid(), children, backend)
    rows = [row for row in sampler.rows if row[0] < after[0]]
    rows.append(after)
    if peak > max(row[1] for row in rows):
        # It was between the last sample and the end of the call. The children's memory at that time is not known.
        rows.insert(len(rows) - 1, (after[0], peak, ()))
    return rows, value


def _traced(
    call: Call,
    interval: float,
    timeout: float | None,
    children: bool,  # noqa: ARG001 - tracemalloc works only in this process
    backend: str,  # noqa: ARG001
) -> tuple[list[Row], Any]:
    """Sample tracemalloc's count and its exact peak; tracing stays on afterwards only if it was on before."""
    import threading
    import tracemalloc

    rows: list[Row] = []
    stop = threading.Event()

    def sample() -> None:
        end = None if timeout is None else time.monotonic() + timeout
        while not stop.wait(interval) and (end is None or time.monotonic() < end):
            rows.append((time.monotonic_ns(), tracemalloc.get_traced_memory()[0], ()))

    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    rows.append((time.monotonic_ns(), tracemalloc.get_traced_memory()[0], ()))
    tracemalloc.reset_peak()
    thread = threading.Thread(target=sample, name="hiwater memory_usage", daemon=True)
    thread.start()
    function, args, keywords = call
    try:
        value = function(*args, **keywords)
    finally:
        stop.set()
        thread.join()
        now, (after, peak) = time.monotonic_ns(), tracemalloc.get_traced_memory()
        if not was_tracing:
            tracemalloc.stop()
    if peak > max(size for _, size, _ in rows):
        rows.append((now, peak, ()))
    rows.append((now, after, ()))
    return rows, value
