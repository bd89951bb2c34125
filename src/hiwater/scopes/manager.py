"""Many scopes, one mark: how each interval gets its own exact peak from counters that exist once per process.

At every beginning and end of any scope, under one lock: read each meter's mark, note it, start it anew. A scope's peak is then the
highest note taken after it began, whether scopes nest, overlap, or belong to other threads and tasks. What is measured is the
process during the scope, so scopes that are open together see each other's memory.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from contextlib import contextmanager
from threading import get_ident

from hiwater import meters
from hiwater._os import unrecorded
from hiwater.errors import MeterUnavailable
from hiwater.meters import counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hiwater.meters.base import Meter
    from hiwater.meters.counters import Counters


_MOST_SLOTS = 64


class Peaks:
    """Notes of peaks in order of time, answering "the highest since moment m" without a walk over open scopes.

    A note that a later one reaches can never be an answer again, so what is kept falls strictly: the first note at or after m is
    the highest. Adding one costs O(1) on average, asking O(log n).
    """

    __slots__ = ("moments", "values")

    def __init__(self) -> None:
        self.moments: list[int] = []
        self.values: list[int] = []

    def add(self, moment: int, value: int) -> None:
        """Note `value`; moments never go back."""
        values = self.values
        while values and values[-1] <= value:
            values.pop()
            self.moments.pop()
        values.append(value)
        self.moments.append(moment)

    def highest_since(self, moment: int) -> int:
        """Return the highest value noted at `moment` or later; there must be one."""
        return self.values[bisect_left(self.moments, moment)]

    def keep(self, askers: Sequence[int]) -> None:
        """Forget all notes that none of `askers` (moments in order) will be told."""
        positions = sorted({bisect_left(self.moments, moment) for moment in askers} - {len(self.moments)})
        self.moments = [self.moments[i] for i in positions]
        self.values = [self.values[i] for i in positions]

    def clear(self) -> None:
        """Forget everything."""
        self.moments.clear()
        self.values.clear()


class Slot:
    """A meter in use: its notes, how many scopes want it, and when its mark was last disturbed or unreadable."""

    __slots__ = ("disturbed_at", "failed", "meter", "name", "now", "peaks", "risen_at", "thread", "users")

    def __init__(self, meter: Meter, thread: int = 0) -> None:
        self.meter = meter
        self.thread = thread
        """The thread whose own figure it is; 0 for a figure that all share."""
        self.name = meter.name
        self.peaks = Peaks()
        self.users = 0
        self.now = 0
        self.disturbed_at = self.risen_at = -1
        self.failed = ""

    def read_and_reset(self, moment: int) -> None:
        """Take a note. A meter that fails costs its own figure, never the program."""
        try:
            self.now, peak, intact = self.meter.read_and_reset()
        except Exception as error:  # noqa: BLE001 - whatever a meter meets, the watched program must not suffer
            self.failed = f"{type(error).__name__}: {error}"
            intact, peak = False, self.now
        self.peaks.add(moment, peak)
        if intact:
            self.risen_at = moment
        else:
            self.disturbed_at = moment

    def is_intact_since(self, moment: int) -> bool:
        """Whether the notes since then miss nothing. A mark that only rises tells so with its last rise; another one must be whole always."""
        return self.risen_at >= moment if self.meter.mark_only_rises else self.disturbed_at < moment


class Figure:
    """What one meter said of one scope, raw."""

    __slots__ = ("came_late", "end", "intact", "peak", "slot", "start")

    def __init__(self, slot: Slot, *, came_late: bool = False) -> None:
        self.slot = slot
        self.came_late = came_late
        """Whether what is measured came into being within the scope: it began at 0 then."""
        self.start = self.end = self.peak = 0 if came_late else slot.now
        self.intact = True


class Scope:
    """One interval. Made by `ScopeManager.enter`; complete once it has been through `ScopeManager.exit`."""

    __slots__ = (
        "began", "ended", "error", "figures", "is_open", "moment", "name", "slots", "spent_ns", "started_at", "thread", "unmeasured", "wanted", "wants_devices",
    )  # fmt: skip

    def __init__(self, name: str, wanted: Sequence[str] | None = None) -> None:
        self.name = name
        self.wanted = wanted
        self.wants_devices = wanted is None or "gpu" in wanted
        self.is_open = False
        self.moment = 0
        self.slots: list[Slot] = []
        self.figures: list[Figure] = []
        self.unmeasured: dict[str, str] = {}
        self.began: Counters | None = None
        self.ended: Counters | None = None
        self.spent_ns = 0
        self.started_at = 0.0
        self.thread = 0
        self.error = ""


class ScopeManager:
    """The process's open scopes and the meters they use."""

    def __init__(
        self,
        create: Callable[[str], Meter] = meters.create,
        read_counters: Callable[[], Counters] = counters.read,
        list_devices: Callable[[], list[str]] = meters.device_names,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._create = create
        self._read_counters = read_counters
        self._list_devices = list_devices
        self._clock_ns = clock_ns
        # Re-entrant: a signal handler or a finaliser may begin a scope while its thread is in here.
        self._lock = threading.RLock()
        self._moment = 0
        self._slots: dict[tuple[str, int], Slot] = {}
        self._refused: dict[str, str] = {}
        self._active: list[Slot] = []
        self._open: dict[int, Scope] = {}
        self._spent_ns = 0
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def open_scopes(self) -> int:
        """How many scopes are open now."""
        return len(self._open)

    def enter(self, scope: Scope) -> None:
        """Begin a scope: its baseline is what the meters say now. Raises MeterUnavailable for a meter that was asked for by name."""
        unrecorded.do(ScopeManager._enter, self, scope)

    def _enter(self, scope: Scope) -> None:
        arrived = self._clock_ns()
        with self._lock:
            scope.slots = self._acquire(scope, self._join_devices(also=scope))
            self._read_and_reset()
            scope.moment = self._moment
            scope.figures = [Figure(slot) for slot in scope.slots]
            scope.is_open = True
            scope.thread = get_ident()
            scope.started_at = time.time()
            scope.spent_ns = -self._spent_ns
            self._open[id(scope)] = scope
            scope.began = self._read_counters()
            self._spent_ns += self._clock_ns() - arrived

    def exit(self, scope: Scope) -> None:
        """End a scope. Does nothing the second time."""
        unrecorded.do(ScopeManager._exit, self, scope)

    def _exit(self, scope: Scope) -> None:
        if not scope.is_open:
            return
        ended = self._read_counters()
        with self._lock:
            if not scope.is_open:
                return
            self._join_devices()
            self._read_and_reset()
            self._finish(scope, ended)
            scope.is_open = False
            del self._open[id(scope)]
            self._let_go(scope.slots)
            self._spent_ns += self._clock_ns() - ended[0]
            scope.spent_ns += self._spent_ns

    def turn(self, scope: Scope) -> Scope:
        """End a scope and return one like it that begins at the same moment: for whoever measures one stretch after the other."""
        return unrecorded.do(ScopeManager._turn, self, scope)

    def _turn(self, scope: Scope) -> Scope:
        arrived = self._clock_ns()
        with self._lock:
            self._join_devices()
            self._read_and_reset()
            following = Scope(scope.name, scope.wanted)
            self._finish(scope, self._read_counters())
            following.slots, following.moment, following.thread = scope.slots, self._moment, get_ident()
            following.figures = [Figure(slot) for slot in scope.slots]
            following.began, following.started_at = scope.ended, time.time()
            scope.is_open, following.is_open = False, True
            del self._open[id(scope)]
            self._open[id(following)] = following
            self._spent_ns += self._clock_ns() - arrived
            scope.spent_ns += self._spent_ns
            following.spent_ns = -self._spent_ns
            return following

    def look(self, scope: Scope) -> Scope:
        """Return what a scope has come to so far, as a scope that ended now; the open one goes on."""
        return unrecorded.do(ScopeManager._look, self, scope)

    def _look(self, scope: Scope) -> Scope:
        with self._lock:
            if not scope.is_open:
                return scope
            arrived = self._clock_ns()
            self._join_devices()
            self._read_and_reset()
            seen = Scope(scope.name, scope.wanted)
            for field in ("moment", "began", "started_at", "thread", "is_open"):
                setattr(seen, field, getattr(scope, field))
            seen.unmeasured = dict(scope.unmeasured)
            seen.figures = []
            for figure in scope.figures:
                copy = Figure(figure.slot, came_late=figure.came_late)
                copy.start = figure.start
                seen.figures.append(copy)
            self._finish(seen, self._read_counters())
            self._spent_ns += self._clock_ns() - arrived
            seen.spent_ns = scope.spent_ns + self._spent_ns
            return seen

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Hold all scopes while a recording begins or ends, which starts the same marks anew: what they say is noted before."""
        with self._lock:
            self._read_and_reset()
            yield

    def spend(self, nanoseconds: int) -> None:
        """Add to what hiwater's own work has cost: scopes that are open show it as their overhead."""
        with self._lock:
            self._spent_ns += nanoseconds

    def _read_and_reset(self) -> None:
        moment = self._moment
        enough = 2 * len(self._open) + 64
        me = get_ident()
        for slot in self._active:
            if slot.thread not in (0, me):
                continue  # that thread's own scopes ask for it, and nobody else
            slot.read_and_reset(moment)
            if len(slot.peaks.moments) > enough:
                slot.peaks.keep([scope.moment for scope in self._open.values()])
        self._moment = moment + 1

    def _finish(self, scope: Scope, ended: Counters) -> None:
        scope.ended = ended
        me = get_ident()
        for figure in scope.figures:
            slot = figure.slot
            if slot.thread not in (0, me):
                scope.unmeasured[slot.name] = "it was asked for in another thread than the one that began it"
                continue
            figure.end = slot.now
            figure.peak = max(figure.start, slot.peaks.highest_since(scope.moment))
            figure.intact = slot.is_intact_since(scope.moment)
            if slot.failed:
                scope.unmeasured[slot.name] = slot.failed
        if scope.unmeasured:
            scope.figures = [figure for figure in scope.figures if figure.slot.name not in scope.unmeasured]

    def _join_devices(self, also: Scope | None = None) -> list[str]:
        """Give the scopes that are open the devices that came into use since: those began at 0, and their marks, too.

        Returns the devices in use now, unless nobody wants them: no open scope, nor the one that is about to be.
        """
        waiting = [scope for scope in self._open.values() if scope.wants_devices]
        if not waiting and (also is None or not also.wants_devices):
            return []
        names = self._list_devices()
        refusals = meters.device_refusals()
        for scope in (*waiting, also) if refusals else ():
            if scope is not None and scope.wants_devices:
                scope.unmeasured.update(refusals)
        for name in names:
            for scope in waiting:
                if name in scope.unmeasured or any(slot.name == name for slot in scope.slots):
                    continue
                slot = self._slot(name, scope, required=False)
                if slot is not None:
                    slot.users += 1
                    scope.slots.append(slot)
                    scope.figures.append(Figure(slot, came_late=True))
                    scope.unmeasured.pop("gpu", None)
        return names

    def _acquire(self, scope: Scope, devices: list[str]) -> list[Slot]:
        wanted = scope.wanted
        names: Iterable[str]
        if wanted is None:
            names = (*meters.DEFAULT, *devices)
        else:
            names, empty = meters.expand(wanted, devices)
            scope.unmeasured.update(empty)
        slots: list[Slot] = []
        try:
            for name in names:
                slot = self._slot(name, scope, required=wanted is not None)
                if slot is not None and slot not in slots:
                    slots.append(slot)
                    slot.users += 1
        except MeterUnavailable:
            self._let_go(slots)
            raise
        return slots

    def _slot(self, name: str, scope: Scope, *, required: bool) -> Slot | None:
        key = (name, get_ident() if name in meters.PER_THREAD else 0)
        slot = self._slots.get(key)
        if slot is not None and slot.users > 0:
            return slot
        reason = self._refused.get(name)
        if reason is not None and not required:
            scope.unmeasured[name] = reason
            return None
        try:
            return self._begin(key)
        except MeterUnavailable as error:
            self._refused[name] = scope.unmeasured[name] = str(error)
            if required:
                raise
            return None
        except Exception as error:
            # What a library of devices raises is its own; the watched program must not suffer where nobody asked for the figure.
            if ":" not in name:
                raise
            self._refused[name] = scope.unmeasured[name] = f"{type(error).__name__}: {error}"
            if required:
                raise MeterUnavailable(f"{name} cannot be read: {scope.unmeasured[name]}", "leave it out") from error
            return None

    def _begin(self, key: tuple[str, int]) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            self._forget_threads()
            slot = self._slots[key] = Slot(self._create(key[0]), key[1])
        if self._open:
            self._read_and_reset()  # beginning to measure one thing may disturb the mark of another
        slot.meter.open()
        slot.failed = ""
        slot.disturbed_at = slot.risen_at = -1
        self._active.append(slot)  # its next note, of what lies before, is older than any scope that will ask
        return slot

    def _forget_threads(self) -> None:
        """Threads come and go: keep the slots of few that measure nothing now."""
        if len(self._slots) > _MOST_SLOTS:
            self._slots = {key: slot for key, slot in self._slots.items() if slot.thread == 0 or slot.users > 0}

    def _let_go(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            slot.users -= 1
            if slot.users == 0:
                self._active.remove(slot)
                slot.peaks.clear()
                try:
                    slot.meter.close()
                except Exception as error:  # noqa: BLE001 - the scope is over, and its figures are taken
                    self._refused[slot.name] = f"{type(error).__name__}: {error}"

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent's may have held it
        for slot in self._active:
            slot.meter.forked()
        me = get_ident()
        for scope in [scope for scope in self._open.values() if scope.thread != me]:
            scope.is_open = False  # its thread does not exist here, so nobody will end it
            del self._open[id(scope)]
            self._let_go(scope.slots)


SCOPE_MANAGER = ScopeManager()
"""The process's own."""
