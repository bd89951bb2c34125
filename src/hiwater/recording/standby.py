"""A program in standby: nothing is hooked, and no engine is loaded, until `hiwater attach` asks through the control
file.

A thread reads one word of the mapped control file twice a second. Unlike a futex, which only a thread inside the engine
could wait on, this needs no engine and works on shared volumes. The thread ends before each fork, because CPython warns
who forks with a second thread, and because it would not be in the child.
"""

from __future__ import annotations

import _thread
import os
import time
from contextlib import suppress

from hiwater import _mapping
from hiwater._os import control_file, unrecorded
from hiwater._os.own_command import is_own_command
from hiwater._os.process_identity import STATE, THREADS, WAIT_STATUS, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_POLL_SECONDS = 0.5
_PAUSE_SECONDS, _MOST_PAUSES = 0.0002, 500
_standby: Standby | None = None


def begin() -> None:
    """Put this process, and its children by fork, into standby. Raises OSError if there is no place for the control
    file."""
    global _standby  # noqa: PLW0603 - there is one in a process
    if _standby is not None:
        return
    import atexit

    _standby = Standby()
    atexit.register(_standby.end)
    os.register_at_fork(before=_standby.pause, after_in_parent=_standby.resume, after_in_child=_standby.begin_in_child)


def begin_at_start() -> None:
    """The same where the environment asks for it, `HIWATER=standby`. Without a place for the control file, the
    program runs without standby."""
    if is_own_command():
        return
    try:
        begin()
    except OSError:
        return


class Standby:
    """The control file of this process and the thread that reads it."""

    def __init__(self) -> None:
        self._number = 0  # the kernel's, of the thread
        self._map()
        self.resume()

    def _map(self) -> None:
        self._path, descriptor = control_file.create()
        self._pid = os.getpid()
        try:
            self._content = _mapping.map_shared(descriptor, control_file.BYTES)
        finally:
            os.close(descriptor)

    def resume(self) -> None:
        """Start the thread."""
        self._stop, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._stop.acquire()
        self._ended.acquire()
        try:
            _thread.start_new_thread(unrecorded.do, (Standby._watch, self, (self._stop, self._ended)))
        except RuntimeError:  # no more threads can be had
            self._ended.release()

    def pause(self) -> None:
        """End the thread, and wait until it has ended: for a moment the kernel, and so CPython, counts a thread that
        has done all its work."""
        self._stop.release()
        self._ended.acquire()
        for _ in range(_MOST_PAUSES):
            if self._number == 0 or not os.path.exists(f"/proc/self/task/{self._number}"):
                return
            time.sleep(_PAUSE_SECONDS)

    def begin_in_child(self) -> None:
        """After a fork: standby with a control file of its own. A child that can have none has its parent's mapping
        and no thread."""
        try:
            self._map()
        except OSError:
            return
        self.resume()

    def end(self) -> None:
        """At the end of the program."""
        if self._pid == os.getpid():
            with suppress(OSError):  # it is gone
                os.unlink(self._path)

    def _watch(self, locks: tuple[_thread.LockType, _thread.LockType]) -> None:
        stop, ended = locks
        self._number = _thread.get_native_id()
        try:
            while not stop.acquire(timeout=_POLL_SECONDS):
                _end_with_main_thread()
                request = control_file.pending(self._content)
                if request is not None:
                    control_file.answer(self._content, _answered(request))
        finally:
            ended.release()


def _end_with_main_thread() -> None:
    """End the process if its main thread has ended alone, or the kernel ended it, as strict seccomp does: without
    this thread it would have ended. A main thread that held the GIL then keeps this one waiting."""
    fields = stat_fields(os.getpid())
    if fields[STATE : STATE + 1] == [b"Z"] and fields[THREADS] == b"2":
        status = int(fields[WAIT_STATUS])
        if number := status & 0x7F:
            os.kill(os.getpid(), number)
        os._exit(status >> 8)


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    from hiwater.recording import attached

    return attached.answer(request)
