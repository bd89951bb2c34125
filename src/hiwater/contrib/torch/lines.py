"""Line by line on the GPU: `with hiwater.contrib.torch.LineProfiler(train_step) as profiler: ...`, then `profiler.display()`.

Figures come from torch's caching allocator (`torch.cuda.memory_stats()` and its kin), read at each line event of the functions watched. They
are the device's: what any thread allocates meanwhile counts for the line, so one that calls `.backward()` has the peak of the backward
pass, although autograd's threads run no Python lines. Peaks are read and reset as for scopes: the program's own stay true.
"""

from __future__ import annotations

import sys
import warnings
import weakref

from hiwater._os.sizes import format_size
from hiwater.errors import UnknownStatistic
from hiwater.lines import LineProfiler as MemoryLines
from hiwater.lines import functions as found_in
from hiwater.lines.device_columns import columns_of, statistics_of
from hiwater.lines.device_display import FunctionRows, LinesDisplay
from hiwater.lines.device_recorder import DeviceGroup, DeviceRecorder
from hiwater.lines.device_source import DeviceTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, TracebackType
    from typing import Any, Self, TextIO, TypeVar

    from hiwater.lines.device_columns import Row

    Thing = TypeVar("Thing")

DEFAULT_COLUMNS = ("active_bytes.all.peak", "reserved_bytes.all.peak")
"""What `display()` shows unless told otherwise."""


class LineProfiler:
    """Measures what each line of chosen functions did to a device's memory while it is enabled; a context manager that enables it.

    Without a device, or before the program uses one, lines run as ever and `display()` says why it is empty. No cache is emptied,
    no statistic of the program's is reset, other tracers and debuggers go on.
    """

    def __init__(self, *functions: object, target_gpu: Any = 0, ram: bool = False) -> None:
        """Watch `functions`: what `add_function` takes.

        `target_gpu` is a number, "cuda:1", a `torch.device`, or any device of hiwater's ("jax:cuda:0", `hiwater.meters.devices.Device`).
        `ram=True` measures host memory as well: columns `ram.kept`, `ram.allocated`, `ram.peak_above_start` (bytes that the line's own thread
        allocated) and `ram.resident` (growth of the process's resident memory). Raises BadRequest for what names no device.
        """
        self._target = DeviceTarget(target_gpu)
        self._recorder = DeviceRecorder(self._target.choose)
        self._target.tell(self._recorder.peaks_told)
        self._lines = MemoryLines(resident=ram, heap=ram, listener=self._recorder.hear)
        self._ram = ram
        self._groups: dict[int, tuple[CodeType, DeviceGroup]] = {}  # by the code object's address
        self.enabled = False
        self._finalizer = weakref.finalize(self, self._target.close)
        for function in functions:
            self.add_function(function)

    @property
    def target_gpu(self) -> Any:
        """The device that lines which begin now are measured on; may be set at any time, in a function that is watched, too."""
        return self._target.device

    @target_gpu.setter
    def target_gpu(self, device: Any) -> None:
        self._target.set(device)

    def add_function(self, function: object) -> None:
        """Watch a function, method, generator function, coroutine function, or all functions of a class, with what is defined inside.

        Warns, and does nothing, where there is no Python code in it.
        """
        codes = found_in.codes_of(function)
        if not codes:
            warnings.warn(f"{function!r} has no Python code whose lines could be watched", stacklevel=2)
        for code in codes:
            self._watch(code)

    def wrap(self, function: Thing) -> Thing:
        """Watch `function` whenever it is called, enabled or not; return what to call instead. Usable as a decorator."""
        self.add_function(function)
        return self._lines.wrap(function)

    def enable(self) -> None:
        """Measure from now on, in every thread. Raises EngineFailed where no place for a line tool is free."""
        if not self.enabled:
            self._lines.enable()
            self.enabled = True

    def disable(self) -> None:
        """Measure no longer, and let go of the device's marks; figures stay."""
        if self.enabled:
            self.enabled = False
            self._lines.disable()
            self._recorder.stop()
            self._target.close()

    def register_callback(self) -> None:
        """Take the place of a tracer that took ours (Python 3.11); nothing else has to be done by hand."""
        if self.enabled:
            self._lines.disable()
            self._lines.enable()

    def close(self) -> None:
        """End all measuring, of wrapped functions, too; they go on working and figures stay."""
        self.enabled = False
        self._lines.close()
        self._recorder.stop()
        self._target.close()

    def clear(self) -> None:
        """Begin again from zero; the functions stay."""
        self._recorder.clear(group for _, group in self._groups.values())
        self._lines.clear()

    def display(self, func: Any = None, columns: Sequence[str] = DEFAULT_COLUMNS) -> LinesDisplay:
        """Return the table, which shows itself as text or, in a notebook, as HTML with bars.

        `func` is a function, a qualified name, or several of them; None stands for all that ran. `columns` are names of
        `memory_stats()`, and ours: `hits`, `increment` (which line grew), `peak_above_start`, `device`, `NAME.increment` and
        `NAME.peak_above_start` for every statistic NAME that has a `current`, and with `ram=True` those of host memory. Peaks and levels are the
        highest of all calls, running totals (`….allocated`, `….freed`, `num_…`) and increments the sum of them. The line of the `def` has the
        state at entry.

        Raises UnknownStatistic, a ValueError, for a column or a function that is not there.
        """
        chosen = list(self._chosen(func))
        known = statistics_of(figure for _, group in self._groups.values() for figure in group.figures.values())
        resolved = columns_of(list(columns), known, "" if self._ram else "only the device was asked for")
        beside = dict(zip(map(id, self._lines.codes), self._lines.results(), strict=True)) if self._ram else {}
        shown = []
        if known or not any(column.needs_device for column in resolved):
            for code, group in chosen:
                ram = {line.line: line for line in beside[id(code)].lines} if self._ram else {}
                rows: dict[int, Row] = {line: (figure, ram.get(line)) for line, figure in sorted(group.figures.items())}
                if rows:
                    last = group.lines[-1]
                    shown.append(FunctionRows(code.co_qualname, code.co_filename, group.first_line, last, rows))
        return LinesDisplay(shown, resolved, notes=self._notes(chosen), empty=self._why_empty(known), size=self._size)

    def print_stats(
        self, func: Any = None, columns: Sequence[str] = DEFAULT_COLUMNS, stream: TextIO | None = None
    ) -> None:
        """Write the table as text to `stream`, or to stdout."""
        (stream if stream is not None else sys.stdout).write(repr(self.display(func, columns)))

    def __enter__(self) -> Self:
        self.enable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disable()

    @staticmethod
    def _size(count: int) -> str:
        return format_size(count)

    def _watch(self, code: CodeType) -> None:
        if id(code) in self._groups:
            return
        inside = found_in.nested_codes(code)
        group = DeviceGroup(*found_in.line_range([code, *inside]))
        self._groups[id(code)] = (code, group)
        self._recorder.watch(code, group, nested=False)
        for inner in inside:
            self._recorder.watch(inner, group, nested=True)
        self._lines.add_function(code)

    def _chosen(self, func: Any) -> Iterator[tuple[CodeType, DeviceGroup]]:
        if func is None:
            yield from self._groups.values()
            return
        for one in [func] if isinstance(func, str) or callable(func) else func:
            yield from self._named(one) if isinstance(one, str) else self._of(one)

    def _named(self, name: str) -> Iterable[tuple[CodeType, DeviceGroup]]:
        found = [(code, group) for code, group in self._groups.values() if code.co_qualname == name]
        if not found:
            import difflib

            names = sorted({code.co_qualname for code, _ in self._groups.values()})
            near = difflib.get_close_matches(name, names, n=4, cutoff=0.4) or names
            raise UnknownStatistic(
                f"no function {name!r} is watched", f"did you mean {', '.join(near)}?" if near else "add it first"
            )
        return found

    def _of(self, function: object) -> Iterable[tuple[CodeType, DeviceGroup]]:
        found = [self._groups[id(code)] for code in found_in.codes_of(function) if id(code) in self._groups]
        if not found:
            raise UnknownStatistic(f"{function!r} is not watched", "give it to the profiler, or to add_function()")
        return found

    def _notes(self, chosen: Iterable[tuple[CodeType, DeviceGroup]]) -> list[str]:
        """What a reader must know: where a peak is only a lower bound."""
        bounds = [
            f"{code.co_qualname}:{line}"
            for code, group in chosen
            for line, figure in sorted(group.figures.items())
            if not figure.intact
        ]
        if not bounds:
            return []
        why = next((source.refusal for source in self._target.sources if source.refusal), "")
        why = why or "something else started the device's peaks anew meanwhile"
        return [f"lower bounds: the peaks of {', '.join(bounds)}: {why}"]

    def _why_empty(self, known: set[str]) -> str:
        if known:
            return ""
        return "; ".join(dict.fromkeys(why for source in [self._target.choose()] if (why := source.why_not)))
