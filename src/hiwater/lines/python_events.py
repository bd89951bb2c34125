"""Line events without the engine: sys.monitoring's callbacks from Python 3.12 on, sys.settrace on 3.11; and events
handed over.

On 3.11 a trace function in Python can only be set in the calling thread: threads that run already stay unmeasured.
"""

from __future__ import annotations

import sys
from opcode import opmap

from hiwater.lines import python_recorder
from hiwater.lines.python_recorder import is_watched, lines_on_exit, lines_on_line, lines_on_resume

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

# Generators, coroutines, async generators: inspect.CO_…; inspect itself is slow to import.
_SUSPENDABLE = 0x20 | 0x80 | 0x200
_RESUME = opmap["RESUME"]


def feed(core: Any, frame: FrameType, event: str, argument: Any) -> None:
    """Tell `core` of an event as trace functions get it."""
    code = frame.f_code
    if event == "line":
        core.lines_on_line(frame, code, frame.f_lineno)
    elif event == "return":
        core.lines_on_exit(frame, code, bool(code.co_flags & _SUSPENDABLE) and argument is not None)
    elif event == "call" and _goes_on(frame):
        core.lines_on_resume(frame, code, frame.f_lineno)


def _goes_on(frame: FrameType) -> bool:
    """Whether a "call" event continues a generator or coroutine after a yield or await."""
    if not frame.f_code.co_flags & _SUSPENDABLE:
        return False
    code = frame.f_code.co_code  # two bytes an instruction; it begins at the first RESUME
    return frame.f_lasti > code[::2].index(_RESUME) * 2


if sys.version_info >= (3, 12):

    def callbacks() -> dict[str, Callable[..., None]]:
        """A callback for each event of sys.monitoring that lines need."""
        return {
            "LINE": _line, "PY_RESUME": _resumed, "PY_THROW": _resumed, "PY_RETURN": _returned, "PY_YIELD": _yielded,
            "PY_UNWIND": _returned,
        }  # fmt: skip

    def _line(code: CodeType, line: int) -> None:
        lines_on_line(sys._getframe(1), code, line)

    def _resumed(code: CodeType, *_: object) -> None:
        if is_watched(code):
            frame = sys._getframe(1)
            lines_on_resume(frame, code, frame.f_lineno)

    def _returned(code: CodeType, *_: object) -> None:
        if is_watched(code):
            lines_on_exit(sys._getframe(1), code, suspends=False)

    def _yielded(code: CodeType, *_: object) -> None:
        lines_on_exit(sys._getframe(1), code, suspends=True)

else:
    import threading

    class _Attached(threading.local):
        """Why this thread is traced by us, and the tracer found there."""

        count = 0  # of attach_here() calls
        joined = 0  # the round of attach_all() that it belongs to
        stands = False
        before: Any = None

    _here = _Attached()
    _round = 0  # moves with each attach_all() and detach_all(): odd while all threads are wanted
    _displaced = 0

    def attach_here() -> None:
        """Trace the calling thread; calls count. A tracer found there goes on to be called and comes back at the
        end."""
        _here.count += 1
        _stand_in()

    def detach_here() -> None:
        if _here.count > 0:
            _here.count -= 1
            _leave()

    def attach_all() -> None:
        """Trace the calling thread, and those that `join` later."""
        global _round  # noqa: PLW0603 - one for all threads
        _round += 1
        join()

    def join() -> None:
        _here.joined = _round
        _stand_in()

    def detach_all() -> None:
        """Other threads than the calling one go back to their own tracers at their next call."""
        global _round  # noqa: PLW0603 - see attach_all
        _round += 1
        _leave()

    def displaced() -> int:
        """How often a thread's tracing had been taken over by somebody else when it was to end."""
        return _displaced

    def _is_wanted() -> bool:
        return _here.count > 0 or (_here.joined == _round and _round % 2 == 1)

    def _stand_in() -> None:
        if sys.gettrace() is _trace_calls:
            return
        _here.before = sys.gettrace()
        _here.stands = True
        sys.settrace(_trace_calls)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # what runs already gets no "call" event
            if is_watched(frame.f_code) and not isinstance(frame.f_trace, _Local):
                frame.f_trace = _Local(frame.f_trace)
            frame = frame.f_back

    def _leave() -> None:
        global _displaced  # noqa: PLW0603 - one for all threads
        if _is_wanted() or not _here.stands:
            return
        before, _here.before, _here.stands = _here.before, None, False
        if sys.gettrace() is _trace_calls:
            sys.settrace(before)
        else:
            _displaced += 1  # whoever did it stays

    def _trace_calls(frame: FrameType, event: str, argument: Any) -> Any:
        found = _here.before
        if not _is_wanted():
            _leave()
        inner = found(frame, event, argument) if found is not None else None
        if event != "call" or not is_watched(frame.f_code):
            return inner
        feed(python_recorder, frame, event, argument)
        return _Local(inner)

    class _Local:
        """The trace function of one frame: ours, then that of the tracer found in the thread."""

        __slots__ = ("_inner",)

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
            feed(python_recorder, frame, event, argument)
            if frame.f_trace is not self:
                return frame.f_trace  # a meter that enters the debugger has put its own there
            if self._inner is not None:
                self._inner = self._inner(frame, event, argument) or self._inner
            return self
