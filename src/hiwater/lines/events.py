"""Switching line events on and off: sys.monitoring on the code objects alone from Python 3.12 on, a trace function
on 3.11."""

from __future__ import annotations

import sys

from hiwater.errors import EngineFailed
from hiwater.lines import core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType
    from typing import Any

# Whether events come for the code objects alone, wherever they run: then nothing has to be wrapped around a function.
LOCAL_EVENTS = sys.version_info >= (3, 12)

if sys.version_info >= (3, 12):
    _TOOL_NAME = "hiwater lines"
    _TOOL_IDS = (4, 3, 2, 1, 5, 0)  # those nobody has a name for first, the debugger's last
    _monitoring = sys.monitoring
    _LOCAL = _monitoring.events.LINE | _monitoring.events.PY_RESUME | _monitoring.events.PY_RETURN
    _LOCAL |= _monitoring.events.PY_YIELD
    if sys.version_info >= (3, 13):
        # Nothing is done with it, but without it there is no LINE event where the body begins on the line of `def` or
        # `lambda`.
        _LOCAL |= _monitoring.events.PY_START
    # An exception leaves a frame, or enters a generator, with no event of the code object's own.
    _GLOBAL = _monitoring.events.PY_UNWIND | _monitoring.events.PY_THROW

    _tool_id: int | None = None
    _users_of_code: dict[int, int] = {}  # by id: equal code objects have events of their own

    def switch_on(codes: Iterable[CodeType]) -> None:
        """Have events for these code objects, wherever they run. Calls count. Raises EngineFailed."""
        tool = _claim()
        for code in codes:
            users = _users_of_code.get(id(code), 0)
            _users_of_code[id(code)] = users + 1
            if users == 0:
                _monitoring.set_local_events(tool, code, _LOCAL)

    def switch_off(codes: Iterable[CodeType]) -> None:
        """Undo one `switch_on` of these code objects."""
        for code in codes:
            users = _users_of_code.get(id(code), 0) - 1
            if users > 0:
                _users_of_code[id(code)] = users
            elif _users_of_code.pop(id(code), None) is not None and _tool_id is not None:
                _monitoring.set_local_events(_tool_id, code, 0)
        if not _users_of_code:
            _release()

    def _claim() -> int:
        global _tool_id  # noqa: PLW0603 - there is one sys.monitoring, and one of us in it
        if _tool_id is not None:
            return _tool_id
        for number in _TOOL_IDS:
            if _monitoring.get_tool(number) is not None:
                continue
            _monitoring.use_tool_id(number, _TOOL_NAME)
            for name, callback in core.module().lines_callbacks().items():
                _monitoring.register_callback(number, getattr(_monitoring.events, name), callback)
            _monitoring.set_events(number, _GLOBAL)
            _tool_id = number
            return number
        tools = ", ".join(str(_monitoring.get_tool(number)) for number in sorted(_TOOL_IDS))
        raise EngineFailed(
            f"every place for a tool that watches lines is taken ({tools})", "leave one of these tools out of this run"
        )

    def _release() -> None:
        global _tool_id  # noqa: PLW0603 - see _claim
        if _tool_id is None:
            return
        _monitoring.set_events(_tool_id, 0)
        for name in core.module().lines_callbacks():
            _monitoring.register_callback(_tool_id, getattr(_monitoring.events, name), None)
        _monitoring.free_tool_id(_tool_id)
        _tool_id = None

    def displaced() -> int:
        """In how many threads another tool has taken our place: none, each has its own."""
        return 0

else:
    import threading

    _users = 0
    _found_hook: Callable[..., Any] | None = None

    def switch_on(codes: Iterable[CodeType]) -> None:  # noqa: ARG001 - a thread is traced as a whole
        """Have events in every thread there is and in those that `threading` starts. Calls count."""
        global _users, _found_hook  # noqa: PLW0603 - there is one trace function in each thread
        _users += 1
        if _users > 1:
            return
        core.module().lines_attach_all()
        _found_hook = threading.gettrace()
        threading.settrace(_in_new_thread)

    def switch_off(codes: Iterable[CodeType]) -> None:  # noqa: ARG001 - as above
        """Undo one `switch_on`. Tracers found in the threads are back afterwards; one that came since stays."""
        global _users, _found_hook  # noqa: PLW0603 - see switch_on
        _users -= 1
        if _users > 0:
            return
        core.module().lines_detach_all()
        if threading.gettrace() is _in_new_thread:
            threading.settrace(_found_hook)
        _found_hook = None

    def _in_new_thread(frame: FrameType, event: str, argument: Any) -> Any:
        """The first event of a thread: the hook found at `switch_on` is set as it would have been, and we join it."""
        hook = _found_hook
        sys.settrace(hook)
        if _users > 0:
            core.module().lines_join()
        return hook(frame, event, argument) if hook is not None else None

    def displaced() -> int:
        """In how many threads another tracer has taken our place: their lines are missing from there on."""
        return int(core.module().lines_displaced())
