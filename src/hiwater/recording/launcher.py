"""Runs a program in this process as the interpreter would, and ends it in the same way.

There are three steps, so that a recording can begin and end between them: `prepare` puts the interpreter into the state
that a program expects, `launch` runs the program, and `conclude` treats the exception that ended it as the interpreter
does.
"""

from __future__ import annotations

import builtins
import sys

import hiwater
from hiwater._os import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import NoReturn

    from hiwater.recording.target import Target

_FLAGS = frozenset("bBdEiIOPqRsSuvx")  # the interpreter's options of one letter that take no value
_STATUS_OF_AN_INTERRUPT = 130  # 128 + SIGINT


def prepare(target: Target, hiwater_arguments: int) -> ModuleType:
    """Put the interpreter into the state that `target` would find under `python`, and return its `__main__`.

    `hiwater_arguments` is the number of arguments at the end of `sys.orig_argv` that belong to hiwater's command line.
    """
    sys.argv = target.argv
    sys.orig_argv = [*_interpreter_arguments(hiwater_arguments), *target.original]
    if not sys.flags.safe_path and sys.path:
        del sys.path[0]  # hiwater's entry: the folder of its script, or the current folder with -m
    if target.path_head is not None and (target.container or not sys.flags.safe_path):
        sys.path.insert(0, target.path_head)
    main = _new_main()
    sys.modules["__main__"] = main
    return main


def launch(target: Target, main: ModuleType) -> BaseException | None:
    """Run `target` in `main` and return the exception that ended it, without hiwater's frames in its traceback."""
    entry, arguments = target.entry(main)
    # Like the interpreter, keep no reference: the module must end when the program removes it from sys.modules.
    del main
    sys.audit(*target.audit)
    ended_by: BaseException | None = None
    try:
        _hiwater_launch_(entry, arguments)
    except BaseException as error:  # noqa: BLE001 - `conclude` handles whatever ends the program
        _forget_our_frames(error)
        ended_by = error
    if target.is_file:
        _flush("stderr")
        _flush("stdout")
    return ended_by


def _flush(name: str) -> None:
    """Flush a stream of `sys`, as `flush_io` in CPython's pythonrun.c does: the program may have replaced the
    stream."""
    try:
        _hiwater_launch_(getattr(sys, name).flush, ())
    except BaseException:  # noqa: BLE001 - the interpreter ignores whatever this raises
        return


def _hiwater_launch_(entry: Callable[..., object], arguments: tuple[object, ...]) -> None:
    # The engine recognises this frame by its name: the frames below it are in no stack and do not count for the
    # recursion limit.
    call = _call_at_the_bottom()
    if call is None:
        entry(*arguments)
    else:
        call(entry, arguments)


def _call_at_the_bottom() -> Callable[[Callable[..., object], tuple[object, ...]], object] | None:
    """Return the engine's call, which gives the program the same recursion depth as without hiwater; None without
    the engine."""
    try:
        call: Callable[..., object] = native.load().call_at_the_bottom
    except hiwater.errors.HiwaterError:
        return None
    return call


def exit_status(error: BaseException | None) -> int:
    """Return the exit status of the interpreter after `error`."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return _STATUS_OF_AN_INTERRUPT if _is_interrupt(error) else 1


def conclude(error: BaseException | None) -> int:
    """Report `error` as the interpreter does; return the exit status, or raise the exception with which the interpreter
    must end.

    SystemExit is raised again for the interpreter. So is KeyboardInterrupt, without a second traceback: after its
    finalization, the interpreter then dies of SIGINT, as shells expect.
    """
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        raise error
    _print_uncaught(error)
    if _is_interrupt(error):
        _interrupt_silently()
    return 1


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether the interpreter dies of SIGINT after `error`: since 3.14 also for a subclass of KeyboardInterrupt."""
    if sys.version_info >= (3, 14):
        return isinstance(error, KeyboardInterrupt)
    return type(error) is KeyboardInterrupt


def _interpreter_arguments(hiwater_arguments: int) -> list[str]:
    """Return the interpreter and its options from sys.orig_argv, without the script or `-m` of hiwater or of a
    drop-in module."""
    original = sys.orig_argv
    head = original[: len(original) - hiwater_arguments]
    if head:
        head.pop()
    if head and head[-1].startswith("-") and head[-1].endswith("m") and _FLAGS.issuperset(head[-1][1:-1]):
        flags = head.pop()[1:-1]  # `-m`, or combined options such as `-Im`
        if flags:
            head.append("-" + flags)
    return head


def _new_main() -> ModuleType:
    # importlib.machinery would be another loaded module, which the program could see.
    from _frozen_importlib import BuiltinImporter

    main = type(sys)("__main__")
    names = main.__dict__
    names["__loader__"] = BuiltinImporter
    if sys.version_info < (3, 14):  # later versions create it on demand
        names["__annotations__"] = {}
    names["__builtins__"] = builtins
    return main


def _forget_our_frames(error: BaseException) -> None:
    traceback = error.__traceback__
    while traceback is not None:
        ours = traceback.tb_frame.f_code is _hiwater_launch_.__code__
        traceback = traceback.tb_next
        if ours:
            break
    error.__traceback__ = traceback


def _print_uncaught(error: BaseException) -> None:
    """Treat `error` as PyErr_Print does: store it in `sys`, and have the hook show it."""
    traceback = error.__traceback__
    _remember(type(error), error, traceback)
    hook = getattr(sys, "excepthook", None)
    sys.audit("sys.excepthook", hook, type(error), error, traceback)
    if hook is None:
        _write_error("sys.excepthook is missing\n")
        sys.__excepthook__(type(error), error, traceback)
        return
    try:
        _hiwater_launch_(hook, (type(error), error, traceback))
    except SystemExit:
        raise
    except BaseException as failure:  # noqa: BLE001 - the interpreter shows whatever a hook raises
        failed: BaseException = failure
    else:
        return
    _forget_our_frames(failed)
    _write_error("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failed), failed, failed.__traceback__)
    _write_error("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, traceback)


def _remember(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, traceback


def _write_error(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)


def _interrupt_silently() -> NoReturn:
    """Raise KeyboardInterrupt without a second traceback and without changes in `sys`."""
    names = ("excepthook", "last_exc", "last_type", "last_value", "last_traceback")
    before = {name: getattr(sys, name) for name in names if hasattr(sys, name)}

    def restore(*_: object) -> None:
        for name, value in before.items():
            setattr(sys, name, value)

    sys.excepthook = restore
    raise KeyboardInterrupt
