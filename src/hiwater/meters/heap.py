"""Live heap and live Python objects, from the engine: every allocation counted, peaks exact to the byte.

Without a recording the engine counts without stacks, and only while somebody measures. Beginning and ending that takes a
millisecond, so counting lingers for a second after the last scope: a function called in a loop does not pay it on each call.
Figures are of blocks allocated since counting began. What hiwater itself allocates between two readings is in them: some
hundred bytes for each open scope.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

from hiwater.errors import EngineFailed, EngineUnavailable
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

LINGER_SECONDS = 1.0


class Counting:
    """The engine's counting, shared by the meters of this module: begun by the first that opens, ended a while after the last closes.

    The engine has two marks and starts both anew at once; a mark that was not asked for this time is carried to when it is.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._core: ModuleType | None = None
        self._users = 0
        self._process = os.getpid()
        self._carried = [0, 0]
        self._counting_in = (
            0  # the process that counts: a forked child inherits the figures, not the thread that ends it
        )
        self._ends_at = 0.0
        self._cancel: threading.Event | None = None
        self._thread: threading.Thread | None = None
        os.register_at_fork(before=self._settle, after_in_child=self.after_fork)

    def open(self) -> None:
        """Begin to count; raises MeterUnavailable."""
        with self._lock:
            if self._counting_in == 0:
                core = self._load()
                try:
                    core.heap_open()
                except (OSError, core.EngineFault) as error:
                    raise MeterUnavailable(f"the heap cannot be counted ({error})", "see `hiwater doctor`") from error
                self._core = core
                self._counting_in = os.getpid()
                self._carried = [0, 0]
            self._users += 1

    def close(self) -> None:
        """Leave; counting ends LINGER_SECONDS later if nobody has come meanwhile."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            self._ends_at = time.monotonic() + LINGER_SECONDS
            if self._thread is None:
                self._cancel = threading.Event()
                self._thread = threading.Thread(target=self._linger, args=(self._cancel,), name="hiwater", daemon=True)
                self._thread.start()

    def now(self) -> tuple[int, int]:
        """Return (live bytes, live bytes of Python's allocator) of what was allocated since counting began."""
        live = self._core.heap_now()  # type: ignore[union-attr]
        return live[0], live[2]

    def by_kind(self) -> dict[str, int]:
        """Return live bytes by kind, or nothing while nobody counts."""
        if self._core is None or self._counting_in != os.getpid():
            return {}
        live = self._core.heap_now()
        return {"python": live[2], "native": live[3], "mapping": live[4]}

    def fold(self, which: int) -> Reading:
        """Return one figure, its peak since it was last asked for, and start its mark anew."""
        core = self._core
        total, python = core.heap_fold()  # type: ignore[union-attr]
        now = core.heap_now()[2 * which]  # type: ignore[union-attr]
        carried = self._carried
        carried[0] = max(carried[0], total)
        carried[1] = max(carried[1], python)
        peak = carried[which]
        carried[which] = 0
        return now, max(now, peak), True

    def end(self) -> None:
        """End counting now if nobody measures."""
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
        # A process that forks while it has a second thread is warned (Python 3.12), and ours is no business of the program's.
        with self._lock:
            thread, cancel = self._thread, self._cancel
            self._thread = self._cancel = None
        if thread is None or cancel is None or thread is threading.current_thread():
            return
        cancel.set()
        thread.join()
        for _ in range(200):  # joined, and still counted by the kernel for a moment
            if not os.path.exists(f"/proc/self/task/{thread.native_id}"):
                break
            time.sleep(0.0001)
        self.end()

    def after_fork(self) -> None:
        """Make good what a fork took away; does nothing the second time."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._thread = self._cancel = None
        core = self._core
        if self._counting_in == 0 or core is None:
            return
        # The engine stops in a child. Close what the parent opened, and count anew if a scope of this thread is still open.
        with suppress(core.EngineFault):  # it may have forgotten by itself
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
        from hiwater.engine import native

        try:
            core = native.load()
        except (EngineUnavailable, EngineFailed) as error:
            raise MeterUnavailable(error.problem, error.remedy) from error
        if not hasattr(core, "heap_open"):
            raise MeterUnavailable("this engine cannot count without recording", "install the engine of this version")
        return core


COUNTING = Counting()


class _Counted(Meter):
    _which = 0
    _source = ""
    _whose = "process"

    @property
    def traits(self) -> Traits:
        """Exact to the byte, of what was allocated since counting began."""
        return Traits(self.name, self._source, self._whose, cost_us=0.5)

    def open(self) -> None:
        """Raises MeterUnavailable where hiwater has no engine."""
        COUNTING.open()

    def close(self) -> None:
        """Counting goes on for a while: see Counting."""
        COUNTING.close()

    def forked(self) -> None:
        """The engine stops in a child: count anew there."""
        COUNTING.after_fork()

    def now(self) -> int:
        """Return live bytes of blocks allocated since counting began."""
        return COUNTING.now()[self._which]

    def fold(self) -> Reading:
        """Return (live now, its peak since the last fold, True)."""
        return COUNTING.fold(self._which)


class Heap(_Counted):
    """Live bytes of the whole heap: Python's objects, malloc's blocks, usable anonymous mappings. Requested bytes, not rounded."""

    name = "heap"
    _which = 0
    _source = "engine: every allocation counted"


class PythonObjects(_Counted):
    """Live bytes that Python's allocators handed out: objects, and the buffers of lists, strings and dicts, of any size."""

    name = "python"
    _which = 1
    _source = "engine: Python's allocators"
    _whose = "interpreter"
