"""The line profiler: it chooses the functions, starts and stops the measuring, and returns the results."""

from __future__ import annotations

import threading
import weakref

from hiwater.errors import BadRequest, EngineFailed, EngineUnavailable
from hiwater.lines import child_figures, core, events, functions, python_events, wrapping
from hiwater.lines.figures import FunctionLines, LineFigures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType
    from typing import Any, Self, TypeVar

    Thing = TypeVar("Thing")


class LineProfiler:
    """Measures the lines of chosen functions while it is enabled. As a context manager it is enabled in the block.

    Heap figures are exact, and count only the line's own thread. They need the engine. Without it they are None, and
    `why_without_heap` has the reason. Resident figures are of the process, and take most of the time of a line event.
    """

    def __init__(
        self,
        functions: Iterable[object] = (),
        *,
        resident: bool = True,
        heap: bool = True,
        meter: Callable[[], int] | None = None,
        recursion_apart: bool = False,
        listener: Callable[[int, int, CodeType, int], object] | None = None,
    ) -> None:
        """Watch `functions`, each as in `add_function()`.

        `resident=False` leaves resident figures out. `heap=False` leaves heap figures out, and allocations are then not
        counted.

        `meter` is a function without arguments. Its result, in bytes, replaces the process's resident memory in all
        resident figures. It is called at every start and end of a line, in the thread that runs the line, with tracing
        off. If it raises an Exception, that goes to `sys.unraisablehook`, and the last value is used. Other exceptions,
        such as KeyboardInterrupt, reach the program. The meter should not keep the profiler alive.

        `recursion_apart=True` counts the changes of a recursive call only in that call's lines. By default, the
        outermost call of each line has them, too.

        `listener` is called before every event is counted, in the thread that runs the line, with tracing off. Its
        exceptions are treated like those of a meter. Its arguments are the kind of event (0: a line begins, 1: a
        generator or coroutine continues, 2: a frame ends, 3: a frame is suspended, or on 3.11 a generator's frame
        ends), the frame's address, which identifies the activation, the code, and the line (0 at an end). Its
        allocations are in no heap figure. It should not keep the profiler alive.

        Raises EngineUnavailable if nothing can be measured without the engine, MeterUnavailable if resident memory
        cannot be read, and BadRequest as in `add_function()`.
        """
        self._core = core.module()
        self.why_without_heap = core.why_without_heap() if heap else "it was not asked for"
        if not resident and listener is None and not core.counts_heap():
            raise EngineUnavailable(
                f"{self.why_without_heap}, and without it there are figures of resident memory alone",
                "measure resident memory, too",
            )
        recorder = self._core.LineRecorder(
            resident=resident, meter=meter, recursion_apart=recursion_apart, listener=listener
        )
        self._state = _State(self._core, recorder, counts=not self.why_without_heap)
        self._finalizer = weakref.finalize(self, self._state.close)
        self._found: dict[int, tuple[CodeType, int, int, int]] = {}  # by id: code, group, first and last line
        self._enabled = 0
        for function in functions:
            self.add_function(function)

    def add_function(self, function: object) -> None:
        """Watch a function, a method, a property, a partial, a coroutine function, a generator function, a code object,
        or all functions of a class or a module. Functions, lambdas and comprehensions inside are watched, too.

        Raises BadRequest if it has no Python code.
        """
        codes = functions.codes_of(function)
        if not codes and not isinstance(function, type) and not hasattr(function, "__path__"):
            raise BadRequest(f"{function!r} has no Python code to watch", "give a function written in Python")
        for code in codes:
            self._add_code(code)

    def wrap(self, function: Thing) -> Thing:
        """Watch `function` whenever it is called from now on. Usable as a decorator: it returns the function to call.

        From Python 3.12 on that is `function` itself. On 3.11 it is an object of the same kind that traces the thread
        during the call. If there cannot be one, the function is measured as after `enable()`.
        """
        self.add_function(function)
        if events.LOCAL_EVENTS:
            self._state.start(wrapping=True)
            return function
        wrapped: Thing | None = wrapping.wrap(function, self._begin_call, self._core.lines_detach_here)
        if wrapped is None and functions.codes_of(function):
            self.enable()
        return function if wrapped is None else wrapped

    __call__ = wrap

    def enable(self, *, here: bool = False) -> None:
        """Measure from now on in every thread, or with `here=True` only in the calling thread, which must then call
        `disable()`. Calls nest: each needs its `disable()`.

        Raises EngineFailed if the engine cannot count here, or if all tool ids of `sys.monitoring` are in use.
        """
        self._enabled += 1
        if self._enabled == 1:
            try:
                self._state.start(enabled=True, here=here)
            except BaseException:
                self._enabled = 0
                self._state.stop_enabled()
                raise

    def disable(self) -> None:
        """Undo one `enable()`. The open lines of the calling thread end here. The open lines of other threads are
        not counted."""
        if self._enabled == 0:
            return
        self._enabled -= 1
        if self._enabled == 0:
            self._state.stop_enabled()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """A trace function for `sys.settrace()`, as an alternative to `enable()`."""
        if not self.watches(frame.f_code):
            return None
        self._state.start(fed=True)
        python_events.feed(self._core, frame, event, argument)
        return self.trace

    def watches(self, code: CodeType) -> bool:
        """Whether the lines of this code object are measured."""
        return id(code) in self._state.codes

    def close(self) -> None:
        """End all measuring, also of wrapped functions, which continue to work. Results stay."""
        self._enabled = 0
        self._state.close()

    def clear(self) -> None:
        """Reset all figures to zero. The functions stay."""
        self._state.recorder.clear()

    def keep_in(self, folder: str) -> None:
        """Reset all figures to zero, and keep them in a file of this process in `folder`, for its parent to read;
        see `child_figures`."""
        if core.counts_heap():  # else there is no recorder that could: this process's figures are not seen
            self._state.recorder.keep_in(child_figures.new_file(folder))
            self._core.heap_continue_in_child()

    def results(self) -> list[FunctionLines]:
        """Return every watched function with its lines that ran, in the order in which the functions were added."""
        found = []
        for code, group, first_line, last_line in self._found.values():
            figures = [LineFigures(*row) for row in self._state.recorder.figures(group)]
            if self.why_without_heap:
                for line in figures:
                    line.kept_bytes = line.allocated_bytes = line.peak_bytes = None
            begun = self._state.recorder.begun(group)
            found.append(FunctionLines(code.co_filename, code.co_qualname, first_line, last_line, figures, *begun))
        return found

    @property
    def codes(self) -> list[CodeType]:
        """The code objects of the functions watched, in the order of `results()`."""
        return [code for code, *_ in self._found.values()]

    @property
    def displaced(self) -> int:
        """The number of threads in which another tracer replaced ours (Python 3.11). Their later lines are missing."""
        return events.displaced()

    def __enter__(self) -> Self:
        self.enable()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.disable()

    def _add_code(self, code: CodeType) -> None:
        if id(code) in self._found:
            return
        inside = functions.nested_codes(code)
        first_line, last_line = functions.line_range([code, *inside])
        label = child_figures.label(code.co_filename, code.co_qualname)
        group = self._state.recorder.add_group(first_line, last_line, label)
        self._found[id(code)] = (code, group, first_line, last_line)
        self._state.watch(code, group, nested=False)
        for inner in inside:
            self._state.watch(inner, group, nested=True)

    def _begin_call(self) -> None:
        self._state.start(wrapping=True)
        self._core.lines_attach_here()


class _State:
    """The state that must be cleaned up when a profiler is deleted. It has no reference to the profiler."""

    def __init__(self, core: Any, recorder: Any, *, counts: bool) -> None:
        self.core = core
        self.recorder = recorder
        self.codes: dict[int, CodeType] = {}  # by id; keeps them alive as long as the recorder
        self._counts = counts  # whether allocations are to be counted
        self._enabled = False
        self._here = False  # enabled in one thread
        self._wrapping = False
        self._fed = False  # events are handed over by a trace function of the caller's
        self._counting = False
        self._switched: dict[int, CodeType] = {}  # codes whose events are on
        self._attached = 0  # the one thread that is traced (3.11)

    def watch(self, code: CodeType, group: int, *, nested: bool) -> None:
        self.recorder.watch(code, group, nested=nested)
        self.codes[id(code)] = code
        self._switch()

    def start(self, *, enabled: bool = False, wrapping: bool = False, fed: bool = False, here: bool = False) -> None:
        if (self._enabled or not enabled) and (self._wrapping or not wrapping) and (self._fed or not fed):
            return
        self._count()
        self._enabled |= enabled
        self._wrapping |= wrapping
        self._fed |= fed
        if enabled:
            self._here = here
        self.recorder.set_active(True, here=here)
        self._switch()

    def stop_enabled(self) -> None:
        self._enabled = False
        if self._wrapping and events.LOCAL_EVENTS:
            return
        self._switch()
        if not self._wrapping:
            self._stop_counting()

    def close(self) -> None:
        self._enabled = self._wrapping = self._fed = False
        self._switch()
        self._stop_counting()

    def _switch(self) -> None:
        """Switch events on and off as the state requires."""
        here = self._enabled and self._here and not events.LOCAL_EVENTS
        if here and not self._attached:
            self._attached = threading.get_ident()
            self.core.lines_attach_here()
        elif self._attached and not here:
            if self._attached == threading.get_ident():  # nobody can end it for another thread
                self.core.lines_detach_here()
            self._attached = 0
        wanted = (self._enabled and not here) or (self._wrapping and events.LOCAL_EVENTS)
        if wanted:
            missing = {number: code for number, code in self.codes.items() if number not in self._switched}
            # On 3.11 threads are traced as a whole: once for all code objects.
            if missing and (events.LOCAL_EVENTS or not self._switched):
                events.switch_on(missing.values())
            self._switched.update(missing)
        elif self._switched:
            events.switch_off(self._switched.values())
            self._switched = {}

    def _count(self) -> None:
        if self._counting or not self._counts:
            return
        try:
            self.core.heap_open()
        except (OSError, self.core.EngineFault) as error:
            raise EngineFailed(
                f"memory cannot be counted here ({error})", "`hiwater doctor` says what works here"
            ) from error
        self._counting = True

    def _stop_counting(self) -> None:
        try:
            if not self._fed:
                self.recorder.set_active(False)
        finally:  # a meter may let KeyboardInterrupt through
            if self._counting:
                self._counting = False
                self.core.heap_close()
