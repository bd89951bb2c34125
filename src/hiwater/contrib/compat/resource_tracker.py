"""The classes ResourceTracker and MemoryMonitor of the article "Beyond tracemalloc": its names, its log lines, exact
peaks."""

from __future__ import annotations

import sys
import time

from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.scopes.tracker import TrackedRun, Tracker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, ClassVar, Self

    from hiwater.scopes.device_usage import DeviceUsage
    from hiwater.scopes.logs import Log
    from hiwater.scopes.usage import Level, Usage

DEFAULT_INTERVAL = 0.1


class MemoryMonitor:
    """Resident memory of this process between `start()` and `stop()`; can be started again.

    The peak is the kernel's high-water mark where the kernel has one. Then no thread samples, and `interval` has no
    influence on the peak.
    """

    _highest_bytes: ClassVar[int] = 0

    def __init__(self, interval: float = DEFAULT_INTERVAL, logger: Any = print) -> None:
        """`interval` is in seconds; `logger` is stored but never called. Raises BadInterval, a ValueError."""
        from hiwater._os.durations import checked_interval

        self.interval = checked_interval(interval)
        self.logger = logger or print
        self._tracker = Tracker(meters=("resident",))
        self._run: TrackedRun | None = None
        self._started_here = False  # an open run of `_tracker`, not of a ResourceTracker
        self._read_bytes: tuple[int, int] | None = None

    @property
    def running(self) -> bool:
        """Whether memory is being measured now."""
        return self._run is not None and self._run.scope.is_open

    @property
    def initial_cpu_memory(self) -> int | None:
        """Resident bytes at the start of the measurement; None before it."""
        if self._run is not None:
            return self._run.usage.resident.start_bytes
        return self._read_bytes[0] if self._read_bytes is not None else None

    @property
    def peak_cpu_memory(self) -> int:
        """Peak of resident bytes since the start; 0 before it."""
        if self._run is not None:
            return self._run.usage.resident.peak_bytes
        return self._read_bytes[1] if self._read_bytes is not None else 0

    def start(self) -> None:
        """Begin to measure; does nothing if the monitor is running."""
        if not self.running:
            self._run = self._tracker.start()
            self._started_here = True

    def stop(self) -> None:
        """End the measurement; does nothing if the monitor is not running, or if the block of a ResourceTracker ends
        it."""
        if self._started_here:
            self._started_here = False
            self.finished(self._tracker.stop())

    def monitor_memory(self) -> None:
        """Take a reading now. Only useful without `start()`; after `start()` the peak needs no readings."""
        if self._run is not None:
            return
        from hiwater import meters

        used = meters.create("resident").now()
        first, most = self._read_bytes or (used, used)
        self._read_bytes = (first, max(most, used))

    def get_peak_memory_usage(self) -> float:
        """Return the peak above the start, in MiB; 0 before a measurement."""
        initial = self.initial_cpu_memory
        return 0.0 if initial is None else (self.peak_cpu_memory - initial) / BYTES_PER_MIB

    @classmethod
    def get_peak_memory(cls) -> int:
        """Return the highest peak of all ended monitors of this process, in bytes."""
        return cls._highest_bytes

    def watch(self, run: TrackedRun) -> None:
        """Take the figures from a ResourceTracker's run that has just begun."""
        self.stop()
        self._run = run

    def finished(self, run: TrackedRun) -> None:
        """Include the peak of a run that has ended in `get_peak_memory()`."""
        resident = run.usage.levels.get("resident")
        if resident is not None:
            MemoryMonitor._highest_bytes = max(MemoryMonitor._highest_bytes, resident.peak_bytes)


class ResourceTracker(Tracker):
    """The published ResourceTracker with exact peaks: `with ResourceTracker(logger, monitoring_interval=0.1) as
    tracker: ...`.

    Each run ends with the published log lines, in their order: "Execution time", "Peak Python Allocated Memory", "Peak
    CUDA GPU Memory Usage (Incremental)", "Peak System RAM Usage (Incremental)"; each figure is in MiB (2**20 bytes) and
    comes first after the colon. `tracker.usage` has all figures. A tracker can be used repeatedly, nested and
    concurrently, with or without a logger. `monitoring_interval` (seconds) is the sampling interval of the timeline and
    has no influence on peaks. `start_time` and `end_time` are those of the last run, in seconds since 1970, as from
    `time.time()`; None before it.
    """

    def __init__(
        self,
        logger: Any = None,
        monitoring_interval: float | None = None,
        *,
        name: str | None = None,
        meters: Sequence[str] | None = None,
        log: Log | None = None,
    ) -> None:
        """`logger` is anything with an `info` method, or a function such as print. Raises BadInterval, a ValueError,
        for a `monitoring_interval` that is not a number above 0."""
        super().__init__(name, meters=meters, log=log, interval=monitoring_interval)
        self.logger = logger
        self.monitoring_interval = monitoring_interval
        self.monitor = MemoryMonitor(
            DEFAULT_INTERVAL if monitoring_interval is None else monitoring_interval, logger=logger
        )
        self.start_time: float | None = None
        self.end_time: float | None = None

    def __enter__(self) -> Self:  # type: ignore[override]
        self._begin(id(sys._getframe(1)))
        return self

    def _begin(self, frame: int) -> TrackedRun:
        started = time.time()
        run = super()._begin(frame)
        self.start_time = started
        self.monitor.watch(run)
        return run

    def _report_run(self, run: TrackedRun) -> None:
        self.end_time = time.time()
        self.monitor.finished(run)
        write_line: Callable[[str], object] | None = getattr(self.logger, "info", self.logger)
        if write_line is not None:
            for line in _published_lines(run.usage, counts_devices=self.meters is None or "gpu" in self.meters):
                write_line(line)

    def get_peak_memory_usage(self) -> float:
        """Return the peak of resident memory above its start, in MiB."""
        return self.usage.resident.peak_above_start_bytes / BYTES_PER_MIB

    def get_peak_gpu_memory_usage(self) -> float:
        """Return the highest peak above the start of all devices, in MiB; 0 if no device was in use, and before the
        first run."""
        if not self._runs and not self._open:
            return 0.0
        return max((device.peak_above_start_bytes for device in self.usage.gpu), default=0) / BYTES_PER_MIB

    @property
    def timeline(self) -> list[tuple[float, int]]:
        """Samples of the last run: a list of (seconds since its start, resident bytes)."""
        return self._runs[-1].timeline if self._runs else self._open[-1].timeline if self._open else []


def _published_lines(usage: Usage, *, counts_devices: bool) -> list[str]:
    """The lines for the logger: the four published ones, then those of other devices, then the meters that could not
    be read."""
    lines = [f"Execution time: {usage.wall_seconds:.2f} seconds"]
    lines += _python_line(usage)
    if counts_devices or usage.gpu:
        lines += _device_lines(usage.gpu)
    lines += _level_line("Peak System RAM Usage (Incremental)", usage, "resident")
    named = {"heap", "python", "resident"}
    return lines + [f"{name}: not measured: {reason}" for name, reason in usage.unmeasured.items() if name not in named]


def _python_line(usage: Usage) -> list[str]:
    name = "Peak Python Allocated Memory"
    python = usage.levels.get("python")
    if "heap" not in usage.levels and python is not None:
        return [f"{name}: {_figures(python)} (Python's objects alone)"]
    note = (
        f" (all allocations, {python.peak_above_start_bytes / BYTES_PER_MIB:.2f} MiB of Python's objects)"
        if python
        else ""
    )
    return [line + note * ("not measured" not in line) for line in _level_line(name, usage, "heap")]


def _level_line(name: str, usage: Usage, meter: str) -> list[str]:
    level = usage.levels.get(meter)
    if level is not None:
        return [f"{name}: {_figures(level)}"]
    return [f"{name}: not measured: {usage.unmeasured[meter]}"] if meter in usage.unmeasured else []


def _device_lines(devices: Sequence[DeviceUsage]) -> list[str]:
    """A line for each device; the published one also if torch uses no CUDA device."""
    published = "Peak CUDA GPU Memory Usage (Incremental)"
    lines, others = [], []
    for device in devices:
        if device.backend == "torch" and device.name.startswith("cuda"):
            lines.append(f"{published}: {_figures(device.chief)} ({device.name})")
        else:
            others.append(f"Peak {device.backend} Memory Usage (Incremental): {_figures(device.chief)} ({device.name})")
    return (lines or [f"{published}: 0.00 MiB (torch uses no CUDA device)"]) + others


def _figures(level: Level) -> str:
    bound = "" if level.exact else " or more"
    return (
        f"{level.peak_above_start_bytes / BYTES_PER_MIB:.2f} MiB{bound}, kept"
        f" {level.kept_bytes / BYTES_PER_MIB:.2f} MiB"
    )
