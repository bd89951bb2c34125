"""Records one worker process of a cluster engine. Every function returns what went wrong: an error here must not fail a
task.

This runs inside the recorded process: standard library and the native module only.
"""

from __future__ import annotations

import _thread
import os
import sys
import zlib
from contextlib import suppress

from hiwater._os import native, portable
from hiwater._os.native import unrecorded
from hiwater._os.sizes import parse_size
from hiwater.recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    Result = TypeVar("Result")

SAMPLE = "256KiB"
"""The size below which blocks are sampled by default. Workers hold gigabytes: of 1 GiB in small blocks, the standard
error is 1.6 %."""
PIECE_BYTES = 32 << 20
"""The most bytes of a capture that one piece on the wire has, before compression."""

_lock = _thread.allocate_lock()
_worker: Worker | None = None


class Worker:
    """The recording of this process. `path` is that of its capture, "" without one. `why` says why there is none, or
    what was left out."""

    __slots__ = ("_recorder", "_unlimited", "path", "why")

    def __init__(self) -> None:
        self.path = self.why = ""
        self._recorder: Recorder | None = None
        self._unlimited: tuple[int, int] | None = None  # RLIMIT_AS as it was

    @property
    def is_recording(self) -> bool:
        """Whether this process is being recorded. A forked child is not."""
        return self._recorder is not None and self._recorder.owned_here

    def begin(self, path: str, facts: dict[str, str], sample: int | str | None, limit: int | str | None) -> None:
        """Start. Raises what `Recorder.start` raises."""
        if native.load().is_recording():
            raise RuntimeError("the process is recorded already, by another recording of hiwater")
        recorder = Recorder(path, sample=sample, notify=lambda _: None)
        ceiling = 0 if limit is None else parse_size(str(limit))
        if ceiling:
            facts = {**facts, "limit_bytes": str(ceiling)}
        for name, value in facts.items():
            recorder.note(name, value)
        os.makedirs(os.path.dirname(recorder.path), mode=0o700, exist_ok=True)
        recorder.start(sys.argv)
        self._recorder, self.path = recorder, recorder.path
        if ceiling:
            self._set_limit(ceiling)

    def _set_limit(self, ceiling: int) -> None:
        import resource

        self._unlimited = resource.getrlimit(resource.RLIMIT_AS)
        try:
            native.load().limit_address_space(ceiling)
        except OSError as error:
            self.why = f"the ceiling of {ceiling} bytes could not be set ({error.strerror}): there is none"

    def end(self, exit_code: int | None) -> None:
        """Stop, and give the program its limit of address space back."""
        if not self.is_recording:
            return
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        recorder.stop(exit_code)
        self.path = recorder.path
        if self._unlimited is not None:
            import resource

            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_AS, self._unlimited)


def start(
    path: str | os.PathLike[str],
    *,
    engine: str,
    worker: str,
    sample: int | str | None = None,
    limit: int | str | None = None,
    restart: str = "",
) -> Worker:
    """Record this process into `path`, which may contain `%p`, `%h` and `%r`; its folder is made. Never raises.

    `engine` is "dask", "ray" and so on; `worker` is the engine's name of this process; `restart` counts its restarts,
    where the engine does. `sample` is as for `hiwater.record()`, in bytes. `limit`, in bytes, is a ceiling for the
    process's address space until `stop()`. A second call changes nothing and returns the same recording.
    """
    facts = {"engine": engine, "worker": worker, **({"restart": restart} if restart else {})}
    return _quietly(lambda: unrecorded(_start, os.fspath(path), (facts, sample, limit)), Worker())


def checked(sample: int | str | None, limit: int | str | None) -> int | str:
    """The sample that was asked for, or the default one. Raises BadSize for a sample or a limit that is no size."""
    chosen = SAMPLE if sample is None else sample
    for size in (chosen, limit or 0):
        parse_size(str(size))
    return chosen


def _start(path: str, asked: tuple[dict[str, str], int | str | None, int | str | None]) -> Worker:
    global _worker  # noqa: PLW0603 - there is one in a process
    with _lock:
        if _worker is not None and _worker.is_recording:
            return _worker
        begun = Worker()
        try:
            begun.begin(path, *asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker goes on unrecorded, and the job's report says why
            begun.why = str(error) or type(error).__name__
            return begun
        if _worker is None:
            _register_ends()
        _worker = begun
    return begun


def _register_ends() -> None:
    import atexit

    atexit.register(stop)
    native.load().on_exit(stop)


def stop(exit_code: int | None = None) -> str:
    """Stop recording this process, and return the path of its capture; "" if `start()` did not record it. Never
    raises."""
    return _quietly(lambda: unrecorded(_stop, exit_code, None), "")


def _stop(exit_code: int | None, _: None) -> str:
    with _lock:
        if _worker is None:
            return ""
        _worker.end(exit_code)
        return _worker.path


def current() -> Worker | None:
    """The recording that `start()` began in this process, also after its end; None without one."""
    return _worker


def relabel(worker: str) -> None:
    """Change the engine's name of this process in its capture, for engines that tell it late. Never raises."""
    note("worker", worker)


def note(name: str, value: str) -> None:
    """Add a fact to the capture of this process; of several with one name, the last counts. Never raises."""
    if _worker is not None and _worker.is_recording:
        _quietly(lambda: native.load().note_fact(name, value), None)


def phase_begin(name: str) -> int:
    """Begin a phase: a task of the kind `name`. The result is for `phase_end()`. Any thread may end it. Without a
    recording, nothing happens."""
    core = native.loaded()
    return 0 if core is None else core.begin_scope(name)


def phase_end(token: int) -> None:
    """End the phase of which `phase_begin()` returned `token`."""
    if token:
        native.load().end_scope(token)


def pieces(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The capture at `path` for the wire: each piece is a zlib stream of its own. Raises OSError."""
    number = 0
    while part := piece(path, number):
        yield part
        number += 1


def piece(path: str | os.PathLike[str], number: int) -> bytes:
    """One of the `pieces()`, counted from 0; empty after the last. Raises OSError."""
    with open(path, "rb") as file:
        file.seek(number * PIECE_BYTES)
        part = file.read(PIECE_BYTES)
    return zlib.compress(part, 1) if part else b""


def _quietly(work: Callable[[], Result], otherwise: Result) -> Result:
    """Return `work()`, or `otherwise` if it raises."""
    try:
        return work()
    except Exception:  # noqa: BLE001 - nothing of ours may fail a task
        return otherwise


def _begin_in_child() -> None:
    """After a fork: the recording and the lock are the parent's."""
    global _worker, _lock
    _worker, _lock = None, _thread.allocate_lock()


portable.at_fork(after_in_child=_begin_in_child)
