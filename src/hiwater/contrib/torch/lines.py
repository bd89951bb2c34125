"""Measures GPU memory line by line: `with hiwater.contrib.torch.LineProfiler(train_step) as profiler: ...`, then
`profiler.display()`.

Figures come from torch's caching allocator (`torch.cuda.memory_stats()` and similar functions), read at each line event
of the watched functions. They are the device's: what any thread allocates during a line counts for it. So a line that
calls `.backward()` has the peak of the backward pass, although autograd's threads run no Python lines. Peaks are read
and reset as for scopes: those that the program reads stay true.
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
    from types import CodeType
    from typing import Any, Self, TextIO, TypeVar

    from hiwater.lines.device_columns import Row

    Thing = TypeVar("Thing")

DEFAULT_COLUMNS = ("active_bytes.all.peak", "reserved_bytes.all.peak")
"""The columns that `display()` shows by default."""


class LineProfiler:
    """Measures a device's memory for each line of chosen functions while it is enabled. As a context manager it is
    enabled in the block.

    Without a device, or before the program uses one, `display()` is empty and says why. No cache is emptied, no
    statistic of the program is reset, and other tracers and debuggers continue.
    """

    def __init__(self, *functions: object, target_gpu: Any = 0, ram: bool = False) -> None:
        """Watch `functions`, each as in `add_function()`.

        `target_gpu` is a number, "cuda:1", a `torch.device`, or another device that hiwater knows ("jax:cuda:0",
        `hiwater.meters.devices.Device`). `ram=True` also measures host memory. The columns are `ram.kept`,
        `ram.allocated` and `ram.peak_above_start` (bytes of the line's thread), and `ram.resident` (growth of the
        process's resident memory). Raises BadRequest if `target_gpu` names no device.
        """
        self._target = DeviceTarget(target_gpu)
        self._recorder = DeviceRecorder(self._target.choose)
        self._target.report_to(self._recorder.take_peaks)
        self._lines = MemoryLines(resident=ram, heap=ram, listener=self._recorder.hear)
        self._ram = ram
        self._groups: dict[int, tuple[CodeType, DeviceGroup]] = {}  # by the code object's address
        self.enabled = False
        self._finalizer = weakref.finalize(self, self._target.close)
        for function in functions:
            self.add_function(function)

    @property
    def target_gpu(self) -> Any:
        """The device on which lines that begin now are measured. It may be set at any time, also in a watched
        function."""
        return self._target.device

    @target_gpu.setter
    def target_gpu(self, device: Any) -> None:
        self._target.set(device)

    def add_function(self, function: object) -> None:
        """Watch a function, method, generator function, coroutine function, or all functions of a class, with the
        functions inside.

        If it has no Python code, only warns.
        """
        codes = found_in.codes_of(function)
        if not codes:
            warnings.warn(f"{function!r} has no Python code whose lines could be watched", stacklevel=2)
        for code in codes:
            self._watch(code)

    def wrap(self, function: Thing) -> Thing:
        """Watch `function` whenever it is called, enabled or not. Usable as a decorator: it returns the function to
        call."""
        self.add_function(function)
        return self._lines.wrap(function)

    def enable(self) -> None:
        """Measure from now on in every thread. Raises EngineFailed if all tool ids of `sys.monitoring` are in use."""
        if not self.enabled:
            self._lines.enable()
            self.enabled = True

    def disable(self) -> None:
        """Stop measuring, and stop resetting the device's peaks. The figures stay."""
        if self.enabled:
            self.enabled = False
            self._lines.disable()
            self._recorder.stop()
            self._target.close()

    def register_callback(self) -> None:
        """Replace a tracer that replaced ours (Python 3.11). Nothing else has to be registered by hand."""
        if self.enabled:
            self._lines.disable()
            self._lines.enable()

    def close(self) -> None:
        """End all measuring, also of wrapped functions, which continue to work. The figures stay."""
        self.enabled = False
        self._lines.close()
        self._recorder.stop()
        self._target.close()

    def clear(self) -> None:
        """Reset all figures to zero. The functions stay."""
        self._recorder.clear(group for _, group in self._groups.values())
        self._lines.clear()

    def display(self, func: Any = None, columns: Sequence[str] = DEFAULT_COLUMNS) -> LinesDisplay:
        """Return the table: text, and in a notebook HTML with bars.

        `func` is a function, a qualified name, or several of them; None means all that ran. `columns` are names of
        `memory_stats()`, and of hiwater: `hits`, `increment` (the growth), `peak_above_start`, `device`,
        `NAME.increment` and `NAME.peak_above_start` for every statistic NAME that has a `current`, and with `ram=True`
        those of host memory. Peaks and levels are the highest of all calls. Running totals (`….allocated`, `….freed`,
        `num_…`) and increments are sums over all calls. The line of the `def` has the state at entry.

        Raises UnknownStatistic, a ValueError, for an unknown column or function.
        """
        chosen = list(self._chosen(func))
        known = statistics_of(figure for _, group in self._groups.values() for figure in group.figures.values())
        resolved = columns_of(list(columns), known, "" if self._ram else "only the device was asked for")
        host = dict(zip(map(id, self._lines.codes), self._lines.results(), strict=True)) if self._ram else {}
        shown = []
        if known or not any(column.needs_device for column in resolved):
            for code, group in chosen:
                ram = {line.line: line for line in host[id(code)].lines} if self._ram else {}
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

    def __exit__(self, *_: object) -> None:
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
        """The lines whose peaks are only lower bounds, and why."""
        bounds = [
            f"{code.co_qualname}:{line}"
            for code, group in chosen
            for line, figure in sorted(group.figures.items())
            if not figure.intact
        ]
        if not bounds:
            return []
        why = next((source.refusal for source in self._target.sources if source.refusal), "")
        why = why or "something else reset the device's peaks meanwhile"
        return [f"lower bounds: the peaks of {', '.join(bounds)}: {why}"]

    def _why_empty(self, known: set[str]) -> str:
        if known:
            return ""
        return "; ".join(dict.fromkeys(why for source in [self._target.choose()] if (why := source.why_not)))
