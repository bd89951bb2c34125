"""Live heap and live Python objects, from the engine, which counts every allocation. Peaks are exact to the byte.

Without a recording, the engine counts without stacks, and only while a scope is open. To begin and end counting takes a
millisecond, so counting goes on for a second after the last scope: a function called in a loop does not pay this cost
at each call. The figures cover blocks allocated since counting began. They include what hiwater allocates between two
readings: some hundred bytes for each open scope.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from functools import partial

from hiwater._os import portable
from hiwater._os.unrecorded_thread import UnrecordedThread
from hiwater.errors import EngineFailed, EngineUnavailable
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

LINGER_SECONDS = 1.0
_THREAD = 2


class SharedCounting:
    """The engine's counting, shared by the meters of this module. The first meter that opens begins it; it ends some
    time after the last closes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._core: ModuleType | None = None
        self._users = 0
        self._process = os.getpid()
        # The process that counts: a forked child inherits the figures, but not the thread that ends the counting.
        self._counting_in = 0
        self._ends_at = 0.0
        self._cancel: threading.Event | None = None
        self._thread: threading.Thread | None = None
        portable.at_fork(before=self._settle, after_in_child=self.after_fork)

    def open(self) -> None:
        """Begin counting; raises MeterUnavailable."""
        with self._lock:
            if self._counting_in == 0:
                core = self._load()
                try:
                    core.heap_open()
                except (OSError, core.EngineFault) as error:
                    raise MeterUnavailable(f"the heap cannot be counted ({error})", "see `hiwater doctor`") from error
                self._core = core
                self._counting_in = os.getpid()
            self._users += 1

    def close(self, *, lingers: bool = True) -> None:
        """Remove one user. After the last one, counting ends LINGER_SECONDS later unless a new one comes; at once if
        it does not linger."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            self._ends_at = time.monotonic() + LINGER_SECONDS
            if not lingers:
                self.end()
            elif self._thread is None:
                self._cancel = threading.Event()
                self._thread = UnrecordedThread(self._linger, self._cancel)
                self._thread.start()

    def now(self) -> tuple[int, int, int]:
        """Return live bytes, those of Python's allocators, and the calling thread's balance, since counting began."""
        live = self._core.heap_now()  # type: ignore[union-attr]
        return live[0], live[2], live[6]

    def by_kind(self) -> dict[str, int]:
        """Return live bytes by kind; empty while counting is off."""
        if self._core is None or self._counting_in != os.getpid():
            return {}
        live = self._core.heap_now()
        return {"python": live[2], "native": live[3], "mapping": live[4], "shared": live[5]}

    def totals(self) -> tuple[int, int, int, int]:
        """Return bytes and allocations of the process, then of the calling thread, as differences only. Call it only
        while counting is open."""
        found: tuple[int, int, int, int] = self._core.heap_totals()  # type: ignore[union-attr]
        return found

    def reader(self, which: int) -> Callable[[], Reading]:
        """Return a function that reads figure `which` and its peak since the last call, and resets the peak. 0 is the
        whole heap, 1 is Python's allocators, 2 is the balance of the calling thread. Call it only while counting is
        open.

        It is a function of the engine, without a layer of Python, because scopes call it at every beginning and end.
        """
        core: Any = self._core
        return core.thread_heap_read_and_reset if which == _THREAD else partial(core.heap_read_and_reset, which)

    def end(self) -> None:
        """End counting now unless a scope is open."""
        with self._lock:
            if self._users == 0 and self._counting_in == os.getpid() and self._core is not None:
                self._counting_in = 0
                self._core.heap_close()

    def _linger(self, cancelled: threading.Event) -> None:
        while True:
            left = self._ends_at - time.monotonic()
            stop = cancelled.wait(max(0.0, left))
            with self._lock:
                if stop or self._users > 0 or time.monotonic() >= self._ends_at:
                    self._thread = None if self._cancel is cancelled else self._thread
                    break
        if not stop:
            self.end()

    def _settle(self) -> None:
        # Since Python 3.12, a process that forks while it has a second thread gets a warning. Our thread must not cause
        # it.
        with self._lock:
            thread, cancel = self._thread, self._cancel
            self._thread = self._cancel = None
        if thread is None or cancel is None or thread is threading.current_thread():
            return
        cancel.set()
        thread.join()
        for _ in range(200):  # the kernel still counts a joined thread for a short time
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):
                break
            time.sleep(0.0001)
        self.end()

    def after_fork(self) -> None:
        """Restore the state in a forked child; does nothing the second time."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._thread = self._cancel = None
        core = self._core
        if self._counting_in == 0 or core is None:
            return
        # The engine stops in a child. Close what the parent opened, and count from 0 if a scope of this thread is still
        # open.
        with suppress(core.EngineFault):  # the engine may have closed it already
            core.heap_close()
        self._counting_in = 0
        if self._users > 0:
            users, self._users = self._users, 0
            try:
                self.open()
            except MeterUnavailable:
                self._counting_in = 0
            self._users = users

    @staticmethod
    def _load() -> ModuleType:
        from hiwater._os import native

        try:
            core = native.load()
        except (EngineUnavailable, EngineFailed) as error:
            raise MeterUnavailable(error.problem, error.remedy) from error
        if not hasattr(core, "heap_open"):
            raise MeterUnavailable("this engine cannot count without recording", "install the engine of this version")
        return core


COUNTING = SharedCounting()


class _Counted(Meter):
    _which = 0
    _source = ""
    _whose = "process"
    _relative = False

    @property
    def traits(self) -> Traits:
        """Exact to the byte for blocks allocated since counting began, except during a sampled recording."""
        return Traits(self.name, self._source, self._whose, relative=self._relative, cost_us=0.5)

    @property
    def disturbance(self) -> str:
        """During a sampled recording, figures are estimates."""
        return "a sampled recording was in progress, so this is an estimate and may be too high or too low"

    def open(self) -> None:
        """Raises MeterUnavailable where hiwater has no engine."""
        COUNTING.open()
        if "read_and_reset" not in self.__dict__:
            self.read_and_reset = COUNTING.reader(self._which)  # type: ignore[method-assign]  # see there

    def close(self) -> None:
        """Counting continues for LINGER_SECONDS: see SharedCounting."""
        COUNTING.close()

    def forked(self) -> None:
        """The engine stops in a child: count from 0 there."""
        COUNTING.after_fork()

    def now(self) -> int:
        """Return live bytes of blocks allocated since counting began; for a thread, its balance since an arbitrary
        start."""
        return COUNTING.now()[self._which]

    def read_and_reset(self) -> Reading:
        """Return (live now, its peak since the last reset, True). Replaced by the engine's own function once the
        meter is open."""
        return COUNTING.reader(self._which)()


class Heap(_Counted):
    """Live bytes of the whole heap: Python's objects, malloc's blocks, usable anonymous mappings, and shared memory
    that the process created. Requested bytes, not rounded."""

    name = "heap"
    _which = 0
    _source = "engine: every allocation counted"

    def totals(self) -> tuple[int, int]:
        """Bytes and allocations of the process."""
        return COUNTING.totals()[:2]


class PythonObjects(_Counted):
    """Live bytes from Python's allocators: objects, and the buffers of lists, strings and dicts, of any size."""

    name = "python"
    _which = 1
    _source = "engine: Python's allocators"
    _whose = "interpreter"


class ThreadHeap(_Counted):
    """What one thread allocated minus what it freed, in all allocators. Negative when it frees blocks of other
    threads."""

    name = "thread"
    per_thread = True
    _which = _THREAD
    _source = "engine: this thread's allocations minus its frees"
    _whose = "thread"
    _relative = True

    def totals(self) -> tuple[int, int]:
        """Bytes and allocations of the calling thread."""
        return COUNTING.totals()[2:]
