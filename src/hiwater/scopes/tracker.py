"""`hiwater.track()`: the memory and time of a block, a function or a coroutine.

The figures of a block are in `t.usage`: `with hiwater.track("load") as t: ...`, then `print(t)`.
"""

from __future__ import annotations

import sys
import threading
from collections import deque

from hiwater._os.native import unrecorded
from hiwater.scopes import calls
from hiwater.scopes.manager import SCOPE_MANAGER
from hiwater.scopes.scope import Scope
from hiwater.scopes.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar, overload

    from hiwater.scopes.logs import Log, Sampling

    Function = TypeVar("Function", bound=Callable[..., Any])

REMEMBERED = 1000
"""How many finished runs a tracker keeps."""


class _Shown:
    """The output formats of a result, for classes with a `usage`."""

    @property
    def usage(self) -> Usage:
        """The figures."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, object]:
        """Return the usage as plain values."""
        return self.usage.to_dict()

    def to_json(self, indent: int | None = None) -> str:
        """Return the usage as JSON."""
        return self.usage.to_json(indent)

    def _repr_html_(self) -> str:
        return self.usage._repr_html_()

    def __str__(self) -> str:
        return str(self.usage)


class TrackedRun(_Shown):
    """One pass through a tracker. While it is open, `usage` has the figures so far."""

    def __init__(self, tracker: Tracker, place: tuple[int, int], frame: int) -> None:
        self.scope = Scope(tracker.name, tracker.meters)
        self.place = place
        self.frame = frame
        self._usage: Usage | None = None
        self.sampling: Sampling | None = None
        self.timeline: list[tuple[float, int]] = []
        """Samples, if the tracker has an `interval`: a list of (seconds since the start, resident bytes)."""

    @property
    def usage(self) -> Usage:
        """The figures of the run; while it is open, those so far."""
        if self.scope.is_open:
            return Usage(SCOPE_MANAGER.result_so_far(self.scope))
        if self._usage is None:
            self._usage = Usage(self.scope)
        return self._usage

    def __repr__(self) -> str:
        return f"<hiwater.TrackedRun {self.scope.name!r} {'open' if self.scope.is_open else 'finished'}>"


class Tracker(_Shown):
    """A named place to measure: context manager (plain and async) and decorator. It is reusable and re-entrant, and
    many threads and tasks can use it at the same time. Each pass is a separate TrackedRun; `usage` is that of the last
    finished run, or of the last begun one if none has finished.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        meters: Sequence[str] | None = None,
        log: Log | None = None,
        interval: float | None = None,
    ) -> None:
        """Describe what to measure; nothing happens before a block begins.

        `meters` are names from `hiwater.meters.NAMES` and of devices ("gpu" means all in use, "torch:cuda:0:active" one
        figure). The default is resident, heap, python, thread and all devices in use, where they work. `log` is a file
        that gets a JSON line at every beginning and end, and every second in between, so that a program that is killed
        leaves its figures; or a logging.Logger, which gets the table. `interval` (seconds) is the sampling interval of
        the timeline; without it there is none. Raises BadInterval, a ValueError, for an `interval` that is not a number
        above 0.
        """
        if interval is not None:
            interval = unrecorded(_checked_interval, interval, None)
        self.name = name or ""
        self.meters = None if meters is None else tuple(meters)
        self.calls = 0
        self._log = log
        self._interval = interval
        self._runs: deque[TrackedRun] = deque(maxlen=REMEMBERED)
        self._open: list[TrackedRun] = []
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        """The figures of the last finished run; if none has finished, of the last begun one. Raises MeterUnavailable
        before the first run."""
        if self._runs:
            return self._runs[-1].usage
        if self._open:
            return self._open[-1].usage
        from hiwater.errors import MeterUnavailable

        raise MeterUnavailable("nothing has been measured yet", "enter the tracker, or call the function it decorates")

    @property
    def runs(self) -> tuple[TrackedRun, ...]:
        """The finished runs, the latest last. At most REMEMBERED are kept; `calls` counts all."""
        return tuple(self._runs)

    def start(self) -> TrackedRun:
        """Begin a run without a `with` block, e.g. over several notebook cells."""
        return self._begin(0)

    def stop(self) -> TrackedRun:
        """End the last run that this thread or task began; raises MeterUnavailable when there is none."""
        return self._end(0, None)

    def __enter__(self) -> TrackedRun:
        return self._begin(id(sys._getframe(1)))

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._end(id(sys._getframe(1)), kind)

    async def __aenter__(self) -> TrackedRun:
        return self._begin(id(sys._getframe(1)))

    async def __aexit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._end(id(sys._getframe(1)), kind)

    def __call__(self, function: Function) -> Function:
        """Return a wrapper of `function` that measures every call. Coroutines and generators are measured from their
        first step to their end, including waits."""
        if not self.name:
            self.name = getattr(function, "__qualname__", repr(function))
        wrapped = calls.wrapped(function, lambda: self)
        wrapped.tracker = self
        measured: Function = wrapped
        return measured

    def __str__(self) -> str:
        if not self._runs and not self._open:
            return f"{self.name or 'scope'}: nothing has been measured yet"
        if self.calls <= 1:
            return str(self.usage)
        total = sum(run.usage.wall_seconds for run in self._runs)
        most = max((run.usage for run in self._runs), key=_above_start)
        title = (
            f"{self.calls:,} runs, {total:.3g} s in total; the last one, and the one with the highest peak above its"
            " start:"
        )
        return "\n".join([title, str(self.usage), str(most)])

    def _repr_html_(self) -> str:
        if self._runs or self._open:
            return super()._repr_html_()
        from html import escape

        return f"<div>{escape(str(self))}</div>"

    def __repr__(self) -> str:
        return f"<hiwater.Tracker {self.name!r}, {self.calls} runs, {len(self._open)} open>"

    def _begin(self, frame: int) -> TrackedRun:
        return unrecorded(Tracker._begin_run, self, frame)

    def _begin_run(self, frame: int) -> TrackedRun:
        run = TrackedRun(self, _place(), frame)
        if self._log is not None or self._interval is not None:
            from hiwater.scopes.logs import Sampling

            run.sampling = Sampling(run, self._log, self._interval)
        with self._lock:
            self._open.append(run)
        try:
            SCOPE_MANAGER.enter(run.scope)
        except BaseException:
            with self._lock:
                self._open.remove(run)
            if run.sampling is not None:
                run.sampling.give_up()
            raise
        if run.sampling is not None:
            run.sampling.begin()
        return run

    def _end(self, frame: int, kind: type[BaseException] | None) -> TrackedRun:
        run = unrecorded(Tracker._end_run, self, (frame, kind))
        self._report_run(run)  # recorded: a logger belongs to the program
        return run

    def _end_run(self, ending: tuple[int, type[BaseException] | None]) -> TrackedRun:
        frame, kind = ending
        run = self._mine(frame)
        SCOPE_MANAGER.exit(run.scope)
        run.scope.error = kind.__name__ if kind is not None else ""
        with self._lock:
            if run in self._open:
                self._open.remove(run)
            self._runs.append(run)
            self.calls += 1
        if run.sampling is not None:
            run.sampling.end()
        return run

    def _report_run(self, run: TrackedRun) -> None:
        """Called with each finished run, for subclasses."""

    def _mine(self, frame: int) -> TrackedRun:
        """Find the run that ends: a `with` block ends in the frame where it began; any other run is the latest of
        its thread or task."""
        place = _place()
        with self._lock:
            candidates = self._open
            for run in reversed(candidates):
                if frame and run.frame == frame:
                    return run
            for run in reversed(candidates):
                if run.place == place:
                    return run
            if candidates:
                return candidates[-1]
        from hiwater.errors import MeterUnavailable

        raise MeterUnavailable("no run is open", "call start() before stop()")


if TYPE_CHECKING:

    @overload
    def track(name: Function, /) -> Function: ...
    @overload
    def track(
        name: str | None = None,
        *,
        meters: Sequence[str] | None = None,
        log: Log | None = None,
        interval: float | None = None,
    ) -> Tracker: ...


def track(
    name: Any = None, *, meters: Sequence[str] | None = None, log: Log | None = None, interval: float | None = None
) -> Any:
    """Measure a block or a function: see Tracker for the arguments.

        with hiwater.track("load") as t: ...
        @hiwater.track
        @hiwater.track("fit", meters=("resident", "pss"), log="fit.jsonl")

    Raises MeterUnavailable at the beginning of the block for a meter named in `meters` that does not work here;
    BadInterval, a ValueError, immediately for an `interval` that is not a number of seconds above 0.
    """
    if callable(name):
        return Tracker(meters=meters, log=log, interval=interval)(name)
    return Tracker(name, meters=meters, log=log, interval=interval)


def _checked_interval(interval: float, _: None) -> float:
    from hiwater._os.durations import checked_interval

    return checked_interval(interval)


def _above_start(usage: Usage) -> int:
    level = next(iter(usage.levels.values()), None)
    return level.peak_above_start_bytes if level is not None else 0


def _place() -> tuple[int, int]:
    """Return the identity of the thread and, inside an event loop, of the task."""
    asyncio = sys.modules.get("asyncio")
    task = None
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
    return threading.get_ident(), id(task) if task is not None else 0
