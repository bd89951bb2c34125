"""The result of a scope: figures with their accuracy, as attributes, table, dict, JSON and HTML."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

from hiwater._os import sizes
from hiwater._os.sizes import format_size
from hiwater.errors import MeterUnavailable
from hiwater.meters import counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.residency import Breakdown
    from hiwater.scopes.device_usage import DeviceUsage
    from hiwater.scopes.scope import MeterFigures, Scope, Slot

SCHEMA = "hiwater.usage/1"


_UNNAMED = frozenset({"torch"})  # the names of its devices are unmistakable


@dataclass(frozen=True, slots=True)
class Level:
    """One quantity during a scope, in bytes: at its beginning, at its end, and its peak in between."""

    name: str
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    exact: bool
    """Whether the peak is exact (within `error_bytes`); otherwise it is a lower bound, and `reason` says why."""
    error_bytes: int
    source: str
    whose: str
    reason: str
    allocated_bytes: int | None = None
    """The sum of the sizes of all allocations, also of those freed since; None for quantities without allocations."""
    allocations: int | None = None
    """Their number; a reallocation is one of its new size."""

    @property
    def label(self) -> str:
        """The name in tables: `cuda:0 allocated` for `torch:cuda:0:allocated`."""
        backend, _, rest = self.name.partition(":")
        device, _, quantity = rest.rpartition(":")
        return f"{'' if backend in _UNNAMED else backend + ' '}{device} {quantity}" if device else self.name

    @property
    def peak_above_start_bytes(self) -> int:
        """Peak − start: what the scope needed in addition."""
        return self.peak_bytes - self.start_bytes

    @property
    def kept_bytes(self) -> int:
        """End − start: what the scope retained. Negative if it freed more than it allocated."""
        return self.end_bytes - self.start_bytes

    @property
    def transient_bytes(self) -> int:
        """Peak − the higher of start and end: what was only live for a part of the scope."""
        return self.peak_bytes - max(self.start_bytes, self.end_bytes)

    def to_dict(self) -> dict[str, object]:
        """Return all of it but the name as plain values."""
        derived = ("peak_above_start_bytes", "kept_bytes", "transient_bytes")
        found = asdict(self) | {name: getattr(self, name) for name in derived}
        del found["name"]
        return found


class Usage:
    """The result of one scope. `usage.resident`, `.heap`, `.python` and every other measured meter are Levels."""

    def __init__(self, scope: Scope) -> None:
        """Take the figures of `scope`, which has ended or is a result so far."""
        began, ended = scope.began, scope.ended
        assert began is not None
        assert ended is not None
        self.name = scope.name
        self.complete = not scope.is_open
        self.error = scope.error
        """The class of the exception that ended the scope, or ""."""
        self.started_at = scope.started_at
        """Seconds since the epoch, for logs; durations come from a monotonic clock."""
        self.wall_seconds = (ended[0] - began[0]) / 1e9
        self.overhead_seconds = scope.spent_ns / 1e9
        """The overhead of hiwater's scopes and samples while this one was open, including its own beginning and end."""
        self.levels = {figure.slot.name: _level(figure) for figure in scope.figures}
        self._on_devices: list[Slot] = [figure.slot for figure in scope.figures if ":" in figure.slot.name]
        self.unmeasured = dict(scope.unmeasured)
        """Meters that could not be read, with the reason."""
        self.counters = counters.difference(began, ended)
        self._breakdown: Breakdown | None = None

    @property
    def resident(self) -> Level:
        """Resident bytes of the whole process."""
        return self._level("resident")

    @property
    def heap(self) -> Level:
        """Live bytes of all allocators and anonymous mappings, of blocks allocated since counting began."""
        return self._level("heap")

    @property
    def python(self) -> Level:
        """Live bytes of Python's allocators: objects and their buffers."""
        return self._level("python")

    @property
    def thread(self) -> Level:
        """What the thread of the scope allocated minus what it freed, counted from 0 at the scope's start. Allocations
        of other threads are not included; those of other tasks of the same thread, while the scope was open, are.
        """
        return self._level("thread")

    @cached_property
    def gpu(self) -> list[DeviceUsage]:
        """The figures of each device, ordered by library and by its order of devices; empty if no device was in use."""
        if not self._on_devices:
            return []
        from hiwater.meters.devices.device_meter import DeviceMeter
        from hiwater.scopes.device_usage import of_devices

        meters = [slot.meter for slot in self._on_devices if isinstance(slot.meter, DeviceMeter)]
        return of_devices((meter.device, meter.quantity, self.levels[meter.name]) for meter in meters)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process, user and system, all threads."""
        return float(self.counters["cpu_user_seconds"] or 0) + float(self.counters["cpu_system_seconds"] or 0)

    @property
    def page_faults(self) -> int:
        """Minor and major page faults."""
        return int(self.counters["minor_page_faults"] or 0) + int(self.counters["major_page_faults"] or 0)

    @property
    def context_switches(self) -> int:
        """Voluntary and involuntary context switches."""
        return int(self.counters["voluntary_switches"] or 0) + int(self.counters["involuntary_switches"] or 0)

    @property
    def breakdown(self) -> Breakdown:
        """Where resident memory is. The first access reads it, which takes some milliseconds; later ones return the
        same object."""
        if self._breakdown is None:
            from hiwater.meters.residency import breakdown

            self._breakdown = breakdown()
        return self._breakdown

    def __getattr__(self, name: str) -> Level | int | float | None:
        # Called only for names that are no attributes: the other meters, and the counters.
        levels = self.__dict__.get("levels", {})
        if name in levels:
            found: Level = levels[name]
            return found
        known = self.__dict__.get("counters", {})
        if name in known:
            value: int | float | None = known[name]
            return value
        raise AttributeError(f"this usage has no {name!r}; it has {', '.join([*levels, *known])}")

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain values. Later versions only add keys."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "complete": self.complete,
            "error": self.error,
            "started_at": self.started_at,
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "page_faults": self.page_faults,
            "context_switches": self.context_switches,
            **self.counters,
            "overhead_seconds": self.overhead_seconds,
            "levels": {name: level.to_dict() for name, level in self.levels.items()},
            "gpu": [device.to_dict() for device in self.gpu],
            "unmeasured": self.unmeasured,
        }

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict()` as JSON."""
        import json

        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        rows = [_HEADS, *(_row(level) for level in self._shown_levels())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
        lines = [self._headline()]
        lines += ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([*lines, *self._notes()])

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} peak {format_size(level.peak_bytes)}" for name, level in self.levels.items())
        return f"<hiwater.Usage {self.name!r}: {shown}, {self.wall_seconds:.3g} s>"

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(word)}</th>" for word in _HEADS)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _row(level)) + "</tr>"
            for level in self._shown_levels()
        )
        notes = "".join(f"<br><small>{escape(note)}</small>" for note in self._notes())
        return f"<div><b>{escape(self._headline())}</b><table><tr>{head}</tr>{body}</table>{notes}</div>"

    def _level(self, name: str) -> Level:
        level = self.levels.get(name)
        if level is None:
            reason = self.unmeasured.get(name, "the scope did not measure it")
            raise MeterUnavailable(
                f"this scope has no {name!r} figure: {reason}", f"it has {', '.join(self.levels) or 'wall_seconds'}"
            )
        return level

    def _shown_levels(self) -> list[Level]:
        """All Levels, without the thread's if it equals that of the heap: then no other thread allocated anything."""
        thread, heap = self.levels.get("thread"), self.levels.get("heap")
        if thread is None or heap is None:
            return list(self.levels.values())
        apart = abs(thread.kept_bytes - heap.kept_bytes)
        apart += abs(thread.peak_above_start_bytes - heap.peak_above_start_bytes)
        # The two are read one after the other, and reading allocates a little.
        return [level for level in self.levels.values() if level is not thread or apart > _OVERHEAD_BYTES]

    def _headline(self) -> str:
        ended = "" if self.complete else ", still open"
        failed = f", ended by {self.error}" if self.error else ""
        return f"{self.name or 'scope'}: {_seconds(self.wall_seconds)}, CPU {_seconds(self.cpu_seconds)}{ended}{failed}"

    def _notes(self) -> list[str]:
        used = []
        if self.counters["minor_page_faults"] is not None:
            used += [f"page faults {self.page_faults:,}", f"context switches {self.context_switches:,}"]
        read, written = self.counters["io_read_bytes"], self.counters["io_write_bytes"]
        if read is not None and written is not None:
            used += [f"read {format_size(int(read))}", f"written {format_size(int(written))}"]
        notes = [", ".join([*used, f"overhead of hiwater {_seconds(self.overhead_seconds)}"])]
        late = [level.label for level in self.levels.values() if level.exact and level.reason == _CAME_LATE]
        notes += [f"{', '.join(late)}: {_CAME_LATE}"] if late else []
        notes += [
            f"{level.label}: at least this much: {level.reason}" for level in self.levels.values() if not level.exact
        ]
        notes += [f"{name}: not measured: {reason}" for name, reason in self.unmeasured.items()]
        return notes


_OVERHEAD_BYTES = 4096
_CAME_LATE = (
    "counted from 0, because the program began to use the device during the scope (peaks before a reset by the program"
    " are not known)"
)
_HEADS = ("", "start", "end", "peak", "peak above start", "kept", "transient", "exact")


def _level(figure: MeterFigures) -> Level:
    traits = figure.slot.meter.traits
    # A lifetime peak is exact for this scope if it rose during the scope.
    exact = figure.intact and (traits.exact or (traits.keeps_peak and not traits.resets_peak))
    reason = traits.reason if traits.exact == exact or not exact else ""
    if not exact and not traits.reason:
        reason = figure.slot.meter.disturbance
    if figure.came_late and exact:
        reason = _CAME_LATE
    zero = figure.start if traits.relative else 0
    return Level(
        traits.name,
        figure.start - zero,
        figure.end - zero,
        figure.peak - zero,
        exact,
        traits.error_bytes,
        traits.source,
        traits.whose,
        reason,
        *(figure.allocated or (None, None)),
    )


def _row(level: Level) -> tuple[str, ...]:
    figures = (
        level.start_bytes, level.end_bytes, level.peak_bytes, level.peak_above_start_bytes, level.kept_bytes,
        level.transient_bytes,
    )  # fmt: skip
    exact = sizes.accuracy_of_peak(exact=level.exact, error_bytes=level.error_bytes)
    return (level.label, *map(format_size, figures), exact)


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
