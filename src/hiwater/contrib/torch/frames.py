"""The variables of the running program: frames of every thread, the notebook's or script's namespace, other modules'
globals.

Before Python 3.13, reading a function's variables leaves a copy of them in its frame. The copy would keep tensors alive
that the function drops later. So it is emptied, unless it has other references or a tracer uses it.
"""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

_LEAVES_A_COPY = sys.version_info < (3, 13)
_OWN_REFERENCES = 3  # to a frame's copy of its variables: the frame's, ours, and the argument of getrefcount
_MOST_FRAMES = 1000
_NOT_USERS = ("torch", "hiwater", "numpy", "IPython", "ipykernel", "_pytest", "pluggy")
_NOTEBOOK_HISTORY = ("_", "__", "___", "Out", "In", "_oh", "_ih", "_dh")


@dataclass(slots=True)
class Namespace:
    """Variables, and the text around their names: `before` is `pkg.mod.` for a module, `after` is ` in f()` for a
    function."""

    before: str
    after: str
    variables: list[tuple[str, Any]] = field(default_factory=list)


def of_program() -> Iterator[Namespace]:
    """The main program first, then the functions of every thread from the innermost out (this thread first), then
    their modules."""
    main = sys.modules.get("__main__")
    modules: dict[str, dict[str, Any]] = {}
    if main is not None:
        yield _of_module("", vars(main), history=False)
    threads = sys._current_frames()
    try:
        mine = threading.get_ident()
        for thread in sorted(threads, key=lambda ident: ident != mine):
            frame: FrameType | None = threads[thread]
            for _ in range(_MOST_FRAMES):
                if frame is None:
                    break
                yield from _of_frame(frame, modules)
                frame = frame.f_back
    finally:
        frame = None
        threads.clear()  # this frame is among them: a cycle would keep all frames of all threads alive
    for name, variables in modules.items():
        yield _of_module(f"{name}.", variables, history=True)
    if main is not None:
        yield _of_module("", {name: vars(main)[name] for name in list(vars(main)) if _is_history(name)}, history=True)


def of_other_modules() -> Iterator[Namespace]:
    """The globals of all modules except the standard library's and torch's: for tensors that were not found
    elsewhere."""
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in _NOT_USERS or name == "__main__" or type(module) is not type(sys):
            continue
        yield _of_module(f"{name}.", vars(module), history=True)


def _of_module(before: str, variables: dict[str, Any], history: bool) -> Namespace:
    found = [
        item for item in list(variables.items())
        if type(item[0]) is str and not item[0].startswith("__") and (history or not _is_history(item[0]))
    ]  # fmt: skip
    return Namespace(before, "", found)


def _is_history(name: str) -> bool:
    """Whether a notebook gives this name to results. The user's names are better."""
    return name in _NOTEBOOK_HISTORY or (name.startswith("_") and name.lstrip("_i").isdigit())


def _of_frame(frame: FrameType, modules: dict[str, dict[str, Any]]) -> Iterator[Namespace]:
    module = frame.f_globals.get("__name__")
    code = frame.f_code
    if type(module) is not str or module.partition(".")[0] == "hiwater":
        return
    if module != "__main__" and module.partition(".")[0] not in _NOT_USERS:
        modules.setdefault(module, frame.f_globals)
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield Namespace("", f" in {code.co_name}()", variables_of(frame))


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """A function's variables now. No new copy of them stays in its frame."""
    variables = frame.f_locals
    found = [(name, value) for name, value in variables.items() if type(name) is str]
    if _LEAVES_A_COPY and not _is_traced(frame) and sys.getrefcount(variables) <= _OWN_REFERENCES:
        variables.clear()
    return found


def _is_traced(frame: FrameType) -> bool:
    """Whether a debugger may write variables back from the copy. An empty copy would then delete them."""
    return sys.gettrace() is not None or threading.gettrace() is not None or frame.f_trace is not None
