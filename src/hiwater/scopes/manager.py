"""Gives each of many scopes an exact peak, although a peak exists only once per process.

At every beginning and end of any scope, under one lock, the manager reads each meter's peak, notes it and resets it.
These readings are numbered: an epoch is the number of a reading. A scope's peak is then the highest note since its
epoch, also if scopes nest, overlap, or belong to other threads and tasks. A scope measures the whole process, so scopes
that are open at the same time include each other's memory.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from threading import get_ident

from hiwater import meters
from hiwater._os import portable
from hiwater._os.native import unrecorded
from hiwater.errors import MeterUnavailable
from hiwater.meters import counters
from hiwater.scopes.scope import MeterFigures, Scope, Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hiwater.meters.base import Meter
    from hiwater.meters.counters import Counters


_MOST_SLOTS = 64
_BUSY = "the scope began or ended in a signal handler or finaliser, which came while this was being read"


class ScopeManager:
    """The process's open scopes and the meters they use."""

    def __init__(
        self,
        create: Callable[[str], Meter] = meters.create,
        list_devices: Callable[[], list[str]] = meters.device_names,
    ) -> None:
        self._create = create
        self._list_devices = list_devices
        # Re-entrant: a signal handler or a finaliser may begin or end a scope while its thread holds the lock. The
        # interpreter runs it where a function is called, so each call may change what is here, but not a slot that
        # `is_busy`: such a scope has no figure of it.
        self._lock = threading.RLock()
        self._epoch = 0
        self._slots: dict[tuple[str, int], Slot] = {}
        self._refused: dict[str, str] = {}
        self._active: list[Slot] = []
        self._open: dict[int, Scope] = {}
        self._spent_ns = 0
        portable.at_fork(after_in_child=self._after_fork)

    @property
    def open_scopes(self) -> int:
        return len(self._open)

    @property
    def is_busy_here(self) -> bool:
        """Whether this thread is inside the manager."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as threading.Condition asks

    def enter(self, scope: Scope) -> None:
        """Begin a scope; the current readings are its baseline. Raises MeterUnavailable for a meter that the scope
        names and that does not work."""
        unrecorded(ScopeManager._enter, self, scope)

    def _enter(self, scope: Scope) -> None:
        arrived = time.perf_counter_ns()
        with self._lock:
            scope.slots = self._acquire(scope, self._join_devices(also=scope))
            self._read_and_reset()
            scope.epoch = self._epoch
            scope.figures = [MeterFigures(slot) for slot in scope.slots]
            scope.is_open = True
            scope.thread = get_ident()
            scope.started_at = time.time()
            scope.spent_ns = -self._spent_ns
            self._open[id(scope)] = scope
            scope.began = counters.read()
            self._spent_ns += time.perf_counter_ns() - arrived

    def exit(self, scope: Scope) -> None:
        """End a scope. Does nothing the second time."""
        unrecorded(ScopeManager._exit, self, scope)

    def _exit(self, scope: Scope) -> None:
        if not scope.is_open:
            return
        ended = counters.read()
        with self._lock:
            if not scope.is_open:
                return
            self._join_devices()
            self._read_and_reset()
            self._finish(scope, ended)
            scope.is_open = False
            del self._open[id(scope)]
            self._release(scope.slots)
            self._spent_ns += time.perf_counter_ns() - ended[0]
            scope.spent_ns += self._spent_ns

    def restart(self, scope: Scope) -> Scope:
        """End a scope and return an equal one that begins at the same time, for measurements without a gap."""
        return unrecorded(ScopeManager._restart, self, scope)

    def _restart(self, scope: Scope) -> Scope:
        arrived = time.perf_counter_ns()
        with self._lock:
            self._join_devices()
            self._read_and_reset()
            following = Scope(scope.name, scope.wanted)
            self._finish(scope, counters.read())
            following.slots, following.epoch, following.thread = scope.slots, self._epoch, get_ident()
            following.figures = [MeterFigures(slot) for slot in scope.slots]
            following.began, following.started_at = scope.ended, time.time()
            scope.is_open, following.is_open = False, True
            del self._open[id(scope)]
            self._open[id(following)] = following
            self._spent_ns += time.perf_counter_ns() - arrived
            scope.spent_ns += self._spent_ns
            following.spent_ns = -self._spent_ns
            return following

    def result_so_far(self, scope: Scope) -> Scope:
        """Return the result of an open scope so far, as a scope that ends now; the open one continues."""
        return unrecorded(ScopeManager._result_so_far, self, scope)

    def _result_so_far(self, scope: Scope) -> Scope:
        with self._lock:
            if not scope.is_open:
                return scope
            arrived = time.perf_counter_ns()
            self._join_devices()
            self._read_and_reset()
            seen = Scope(scope.name, scope.wanted)
            for field in ("epoch", "began", "started_at", "thread", "is_open"):
                setattr(seen, field, getattr(scope, field))
            seen.unmeasured = dict(scope.unmeasured)
            seen.figures = []
            for figure in scope.figures:
                copy = MeterFigures(figure.slot, came_late=figure.came_late)
                copy.start, copy.totals = figure.start, figure.totals
                seen.figures.append(copy)
            self._finish(seen, counters.read())
            self._spent_ns += time.perf_counter_ns() - arrived
            seen.spent_ns = scope.spent_ns + self._spent_ns
            return seen

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note all peaks, and hold all scopes while a recording begins or ends, because that resets the same peaks."""
        with self._lock:
            self._read_and_reset()
            yield

    def add_overhead(self, nanoseconds: int) -> None:
        """Add to the overhead of hiwater that the open scopes show."""
        with self._lock:
            self._spent_ns += nanoseconds

    def _read_and_reset(self) -> None:
        enough = 2 * len(self._open) + 64
        me = get_ident()
        for slot in tuple(self._active):
            if slot.thread not in (0, me):
                continue  # only the scopes of that thread read it
            if slot.users == 0 or slot.is_busy:
                continue
            slot.is_busy = True
            try:
                slot.read_and_reset(self._epoch)
            finally:
                slot.is_busy = False
            if len(slot.peaks.epochs) > enough:
                slot.peaks.keep([scope.epoch for scope in self._open.values()])
        self._epoch += 1

    def _finish(self, scope: Scope, ended: Counters) -> None:
        scope.ended = ended
        me = get_ident()
        for figure in scope.figures:
            slot = figure.slot
            if slot.thread not in (0, me):
                scope.unmeasured[slot.name] = "the scope was read in another thread than the one that began it"
                continue
            if slot.is_busy:
                scope.unmeasured[slot.name] = _BUSY
                continue
            figure.end = slot.now
            totals = slot.meter.totals() if figure.totals is not None else None
            if figure.totals is not None and totals is not None:
                figure.allocated = totals[0] - figure.totals[0], totals[1] - figure.totals[1]
            figure.peak = max(figure.start, slot.peaks.highest_since(scope.epoch))
            figure.intact = slot.is_intact_since(scope.epoch)
            if slot.failed:
                scope.unmeasured[slot.name] = slot.failed
        if scope.unmeasured:
            scope.figures = [figure for figure in scope.figures if figure.slot.name not in scope.unmeasured]

    def _join_devices(self, also: Scope | None = None) -> list[str]:
        """Add devices that have come into use to the open scopes; their figures and peaks start at 0.

        Returns the meters of the devices in use now; empty if neither an open scope nor `also` measures devices.
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
                    scope.slots.append(slot)
                    scope.figures.append(MeterFigures(slot, came_late=True))
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
                if slot is None:
                    continue
                if slot in slots:
                    slot.users -= 1
                else:
                    slots.append(slot)
        except MeterUnavailable:
            self._release(slots)
            raise
        return slots

    def _slot(self, name: str, scope: Scope, *, required: bool) -> Slot | None:
        """The slot of a meter, with one user more; None where it cannot be measured."""
        key = (name, get_ident() if name in meters.PER_THREAD else 0)
        slot = self._slots.get(key)
        if slot is not None and slot.is_busy:
            scope.unmeasured[name] = _BUSY
            return None
        if slot is not None and slot.users > 0:
            slot.users += 1
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
            # A device library may raise anything. It must not break the measured program if the scope does not name the
            # meter.
            if ":" not in name:
                raise
            self._refused[name] = scope.unmeasured[name] = f"{type(error).__name__}: {error}"
            if required:
                raise MeterUnavailable(
                    f"{name} cannot be read: {scope.unmeasured[name]}", "remove it from the meters"
                ) from error
            return None

    def _begin(self, key: tuple[str, int]) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            self._forget_threads()
            slot = self._slots.setdefault(key, Slot(self._create(key[0]), key[1]))
        if self._open:
            self._read_and_reset()  # opening one meter may disturb the peak of another
        if slot.users == 0:
            slot.is_busy = True
            try:
                slot.meter.open()
                slot.failed = ""
                slot.disturbed_at = slot.risen_at = -1
                self._active.append(slot)  # its next note covers the time before: it is older than what uses it
            finally:
                slot.is_busy = False
        slot.users += 1
        return slot

    def _forget_threads(self) -> None:
        """Drop unused slots of threads, which may have ended, once there are many."""
        if len(self._slots) > _MOST_SLOTS:
            self._slots = {key: slot for key, slot in self._slots.items() if slot.thread == 0 or slot.users > 0}

    def _release(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            slot.users -= 1
            if slot.users == 0:
                slot.is_busy = True
                self._active.remove(slot)
                slot.peaks.clear()
                try:
                    slot.meter.close()
                except Exception as error:  # noqa: BLE001 - the scope has ended, and has its figures
                    self._refused[slot.name] = f"{type(error).__name__}: {error}"
                finally:
                    slot.is_busy = False

    def _after_fork(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have locked it
        for slot in self._slots.values():
            slot.is_busy = False  # that thread may have been reading it
        for slot in self._active:
            slot.meter.forked()
        me = get_ident()
        for scope in [scope for scope in self._open.values() if scope.thread != me]:
            scope.is_open = False  # its thread does not exist in the child, so nothing will end it
            del self._open[id(scope)]
            self._release(scope.slots)


SCOPE_MANAGER = ScopeManager()
"""The manager of this process."""
