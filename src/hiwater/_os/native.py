"""Loads the native module, or explains in one line why that is impossible here. Calls work of hiwater inside a recorded
program, so that the recording leaves it out."""

from __future__ import annotations

import os
import sys

import hiwater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import TypeVar

    Subject = TypeVar("Subject")
    Argument = TypeVar("Argument")
    Result = TypeVar("Result")

NO_ENGINE = "this hiwater was built without its engine, so it cannot record"
_loaded: ModuleType | None = None


def load() -> ModuleType:
    """Return `hiwater._core`.

    Raises EngineUnavailable when hiwater was built without it or the loader refuses it, EngineFailed on an interpreter
    that the engine does not support.
    """
    if is_free_threaded():
        raise hiwater.errors.EngineFailed(
            "the engine does not work on a free-threaded build of CPython yet, so nothing can be recorded here",
            f"use the usual build of Python {sys.version_info[0]}.{sys.version_info[1]} to record",
        )
    global _loaded  # noqa: PLW0603 - a repeated import statement allocates, and a recording in progress would show that
    if _loaded is not None:
        return _loaded
    try:
        from hiwater import _core
    except ImportError as error:
        raise hiwater.errors.EngineUnavailable(*_explain(error)) from error
    here = f"{sys.version_info[0]}.{sys.version_info[1]} {'debug' if is_debug_build() else 'release'}"
    if here != _core.BUILT_FOR:  # a debug build of CPython loads modules of the release build, too
        raise hiwater.errors.EngineFailed(
            f"the engine was built for CPython {_core.BUILT_FOR} and cannot read the frames of this one, {here}",
            "install hiwater with the pip of this interpreter",
        )
    if os.sysconf("SC_PAGE_SIZE") != _core.PAGE_BYTES:
        raise hiwater.errors.EngineFailed(
            f"the kernel's pages have {os.sysconf('SC_PAGE_SIZE') >> 10} KiB, and the engine knows pages of"
            f" {_core.PAGE_BYTES >> 10} KiB alone, so nothing can be recorded here",
            "boot a kernel with such pages to record",
        )
    _loaded = _core
    return _loaded


def loaded() -> ModuleType | None:
    """Return `hiwater._core` if it has been loaded, without loading it. While another thread loads it, `sys.modules`
    has it without its functions."""
    found = sys.modules.get("hiwater._core")
    if found is None or found.__spec__ is None or found.__spec__._initializing:  # type: ignore[attr-defined] # importlib's own, in all versions
        return None
    return found


# The engine recognises this function by its name. It takes two arguments, because a tuple of them would be allocated
# before the first line.
def _hiwater_own_(work: Callable[[Subject, Argument], Result], subject: Subject, argument: Argument) -> Result:
    core = loaded()
    if core is None:
        return work(subject, argument)
    core.enter_own_work()
    try:
        return work(subject, argument)
    finally:
        core.leave_own_work()


unrecorded = _hiwater_own_
"""Return `work(subject, argument)`. A recording in progress leaves out what this and its callees allocate."""


def is_free_threaded() -> bool:
    """Whether this interpreter was built without the GIL, whatever PYTHON_GIL says."""
    return "t" in sys.abiflags


def is_debug_build() -> bool:
    """Whether this interpreter was configured --with-pydebug."""
    return "d" in sys.abiflags


def _explain(error: ImportError) -> tuple[str, str]:
    # `from package import missing` is a plain ImportError; only a file that exists and fails to load has a path.
    if isinstance(error, ModuleNotFoundError) or "cannot import name" in str(error):
        return (
            NO_ENGINE,
            "install it on Linux x86-64 or aarch64, where the engine is built",
        )
    return f"the engine cannot be loaded ({error})", "reinstall hiwater for this interpreter"
