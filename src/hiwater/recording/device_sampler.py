"""What a recording notes of accelerators: their figures in time, each with the peak since the one before, from a thread that exists only
while the program uses one.

As long as no GPU library is loaded nothing of this runs: the engine's own thread has the interpreter look into `sys.modules` now and then.
Once a device is in use, a Python thread measures one stretch after the other, as scopes do, so that no peak falls between two samples.
"""

from __future__ import annotations

import _thread
import time

from hiwater._os import unrecorded
from hiwater.recording.imports_under_way import is_import_under_way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from hiwater.meters.devices.base import Backend, Device
    from hiwater.meters.devices.device_meter import DeviceMeter
    from hiwater.scopes.manager import Figure, Scope

    T = TypeVar("T")

SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 1.0
_SHARE_OF_AGE = 1024  # as the engine spaces what it keeps: those in between bring its last one up to date
_PATIENCE_SECONDS = 2.0
_TERMS_SECONDS, _TERMS_GROWTH = 1.0, 1.05
UNKNOWN = -1


class Noted:
    """A device in the capture."""

    def __init__(self, number: int, backend: Backend, device: Device, *, came_late: bool) -> None:
        self.number = number
        self.backend = backend
        self.device = device
        self.peaks = dict.fromkeys(("allocated", "reserved", "used"), UNKNOWN)
        self.context_bytes = UNKNOWN
        self.is_new = came_late
        self.now: dict[str, int] = {}
        self.terms_at = 0.0
        self.terms_height = -1
        # A mark of the source's whole life is the recording's where the device came into use within it, or where it has risen since.
        self.note = backend.refusal(device)
        has_mark = any(standing.peak != UNKNOWN for standing in backend.standings(device).values())
        self.exact = not self.note or (came_late and has_mark)

    def judge(self, figures: Iterable[Figure]) -> None:
        """Take in whether these figures, of one stretch, miss nothing."""
        for figure in figures:
            if figure.slot.meter.mark_only_rises:
                self.exact = self.exact or figure.intact
            elif not figure.intact:
                self.exact, self.note = False, figure.slot.meter.disturbance


class DeviceSampler:
    """Samples the devices in use, from `begin()` to `finish()`. `core` is the native engine, which is recording."""

    def __init__(self, core: Any, noticed: Callable[[], object] | None = None) -> None:
        """`noticed` is called whenever a device may have come into use; it must not raise."""
        self._core = core
        self._noticed = noticed
        self._noted: dict[Device, Noted] = {}
        self._scope: Scope | None = None
        self._began = time.monotonic()
        self._stop = _thread.allocate_lock()
        self._turn = _thread.allocate_lock()  # the thread's samples and the last one
        self._driver = _thread.allocate_lock()  # held while its library is being loaded
        self._from_start = self._is_running = False
        self.trouble = ""
        """Why devices are not, or no longer, sampled; "" when all is well."""
        self.driver_trouble = ""
        """Why the driver's figures are missing, from the whole recording or from its end; "" when all is well, or there is no driver."""

    def begin(self, *, late: bool = False) -> bool:
        """Look for devices from now on, and return whether one is in use; it is measured from here on. `late` says that the recording
        began before the program had a library to use it: then all of its figures are the recording's."""
        self._from_start = not late
        is_in_use = self.consider()
        self._from_start = self._from_start and is_in_use
        if not is_in_use:
            self._core.on_device_library(self.consider)
        return is_in_use

    def consider(self) -> bool:
        """Begin to measure when a device is in use; return whether that is so."""
        return not is_import_under_way(self._core.DEVICE_LIBRARIES) and self._safely(self._consider)

    def finish(self) -> None:
        """Take the last sample. A device that was never come upon, as in a program that leaves no time to look, has its lifetime's peak."""
        self._core.on_device_library(None)
        if self._is_running:
            self._stop.release()
        self._safely(self._take_last)
        if self._scope is not None:
            from hiwater.scopes.manager import SCOPE_MANAGER

            SCOPE_MANAGER.exit(self._scope)

    def _safely(self, work: Callable[[], bool]) -> bool:
        """Do something of ours inside the program: what libraries raise ends the sampling, and nothing else."""
        if self.trouble:
            return True
        try:
            return unrecorded.do(_call, work, None)
        except Exception as error:  # noqa: BLE001 - libraries have errors of their own, and the recording goes on without them
            self._give_up(error)
            return True

    def _give_up(self, error: Exception) -> None:
        """Sample no longer: what devices did from here on is in no figure."""
        self.trouble = _words(error)
        for noted in self._noted.values():
            noted.exact, noted.note = False, f"not measured to the end: {self.trouble}"
            self._write(noted, noted.now, noted.now, UNKNOWN)

    def _consider(self) -> bool:
        from hiwater.meters import device_names

        if self._noticed is not None:
            self._noticed()
        if self._scope is not None:
            return True
        if not device_names():
            return False
        self._open()
        self._stop.acquire()
        self._is_running = True
        # Here, as an import by a thread waits for the GIL at each of its files, and may meet one of the program's half-way. Only the
        # driver's library, which takes its time to begin, is a thread's to load, beside the samples.
        from hiwater.meters.devices import nvml, reconcile  # noqa: F401 - loaded

        self._driver.acquire()
        _thread.start_new_thread(unrecorded.do, (_call, self._meet_driver, None))
        _thread.start_new_thread(unrecorded.do, (_call, self._run, None))
        return True

    def _meet_driver(self) -> None:
        from hiwater.meters.devices import reconcile

        try:
            self._of_driver(lambda: [reconcile.card_of(device) for device in tuple(self._noted)])
        finally:
            self._driver.release()

    def _knows_driver(self, *, last: bool) -> bool:
        """Whether the driver can be asked without a wait; at the end it is waited for."""
        if not self._driver.acquire(timeout=_PATIENCE_SECONDS if last else 0):
            return False
        self._driver.release()
        return True

    def _take_last(self) -> bool:
        from hiwater.meters import device_names, device_refusals

        if self._scope is None:
            if not device_names():
                self.trouble = "; ".join(f"{name}: {reason}" for name, reason in device_refusals().items())
                return True
            self._open()
        self.sample(last=True)
        return True

    def summary(self) -> list[dict[str, Any]]:
        """For each device its name and its peaks in bytes, UNKNOWN where not measured."""
        return [
            {"name": noted.device.name, "backend": noted.device.backend, "exact": noted.exact}
            | {f"peak_{quantity}_bytes": peak for quantity, peak in noted.peaks.items()}
            for noted in self._noted.values()
        ]

    def sample(self, *, last: bool = False) -> None:
        """Note what happened since the sample before."""
        from hiwater.scopes.manager import SCOPE_MANAGER

        if self._noticed is not None:
            self._noticed()
        # A library may hang in the thread's sample; the program's end must not.
        if not self._turn.acquire(timeout=_PATIENCE_SECONDS):
            return
        try:
            if self._scope is None or not self._scope.is_open:
                return
            done, self._scope = self._scope, SCOPE_MANAGER.turn(self._scope)
            for device, levels in _by_device(done).items():
                self._tell(self._noted.get(device) or self._note(device, levels), levels, last=last)
        finally:
            self._turn.release()

    def _open(self) -> None:
        from hiwater.scopes.manager import SCOPE_MANAGER, Scope

        scope = Scope("recording", ("gpu",))
        SCOPE_MANAGER.enter(scope)
        self._scope = scope
        for device, levels in _by_device(scope).items():
            self._note(device, levels)

    def _run(self) -> None:
        while True:
            age = time.monotonic() - self._began
            if self._stop.acquire(timeout=min(LONGEST_SECONDS, max(SHORTEST_SECONDS, age / _SHARE_OF_AGE))):
                return
            if self.trouble:
                return
            try:
                self.sample()
            except Exception as error:  # noqa: BLE001 - a library at its end must not print into the program's stderr
                self._give_up(error)
                return

    def _note(self, device: Device, levels: dict[str, Figure]) -> Noted:
        """Make the device's record. Where it came into use within the recording, its peak before we came upon it is the recording's."""
        backend = _meter_of(levels).backend
        number = self._core.add_device(device.name, device.backend, backend.source, backend.limit_bytes(device))
        noted = self._noted[device] = Noted(number, backend, device, came_late=not self._from_start)
        now = {quantity: figure.start for quantity, figure in levels.items()}
        before = {} if self._from_start else {quantity: backend.lifetime_peak(device, quantity) for quantity in levels}
        self._write(noted, now, {quantity: max(now[quantity], before.get(quantity, 0)) for quantity in now}, UNKNOWN)
        return noted

    def _tell(self, noted: Noted, levels: dict[str, Figure], *, last: bool) -> None:
        noted.judge(levels.values())
        knows_driver = self._knows_driver(last=last)
        used = self._of_driver(lambda: self._used(noted)) if knows_driver else None
        now = {quantity: figure.end for quantity, figure in levels.items()}
        peak = {quantity: figure.peak for quantity, figure in levels.items()}
        self._write(noted, now, peak, UNKNOWN if used is None else used)
        if knows_driver:
            self._of_driver(lambda: self._tell_terms(noted, max(now.values(), default=0), last=last))

    def _of_driver(self, work: Callable[[], T]) -> T | None:
        """Ask the driver. What it refuses takes nothing from the library's own figures; it is asked no more."""
        if self.driver_trouble:
            return None
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - NVML has errors of its own
            self.driver_trouble = _words(error)
            return None

    def _write(self, noted: Noted, now: dict[str, int], peak: dict[str, int], used: int) -> None:
        noted.now = now
        for quantity, value in (*peak.items(), ("used", used)):
            noted.peaks[quantity] = max(noted.peaks.get(quantity, UNKNOWN), value)
        if noted.number >= 0:
            figures = [each.get(quantity, UNKNOWN) for quantity in ("allocated", "reserved") for each in (now, peak)]
            self._core.sample_device(noted.number, *figures, used, noted.exact, "" if noted.exact else noted.note)

    def _used(self, noted: Noted) -> int:
        """What the driver counts for this process on the device; UNKNOWN where it cannot be asked, or does not tell."""
        from hiwater.meters.devices import reconcile

        found = reconcile.card_of(noted.device)
        return found[0].process(found[1], has_context=True).bytes if found is not None else UNKNOWN

    def _tell_terms(self, noted: Noted, height: int, *, last: bool) -> None:
        """Note what the memory consists of: whenever there is clearly more of it than ever, and at the end."""
        now = time.monotonic()
        if not last and (now - noted.terms_at < _TERMS_SECONDS or height <= noted.terms_height * _TERMS_GROWTH):
            return
        noted.terms_at, noted.terms_height = now, max(height, noted.terms_height)
        from hiwater.meters.devices import reconcile

        found = reconcile.of_device(noted.backend, noted.device, context_bytes=noted.context_bytes)
        if noted.is_new and found[reconcile.USED] != UNKNOWN:
            noted.context_bytes = max(0, found[reconcile.UNACCOUNTED])
            found = reconcile.of_device(noted.backend, noted.device, context_bytes=noted.context_bytes)
        noted.is_new = False
        if noted.number >= 0:
            self._core.note_device_terms(noted.number, [(term.name, term.bytes) for term in found.terms])


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _call(work: Callable[[], object], _: None) -> bool:
    return bool(work())


def _by_device(scope: Scope) -> dict[Device, dict[str, Figure]]:
    """Figures of a scope by device and quantity."""
    from hiwater.meters.devices.device_meter import DeviceMeter

    found: dict[Device, dict[str, Figure]] = {}
    for figure in scope.figures:
        meter = figure.slot.meter
        if isinstance(meter, DeviceMeter):
            found.setdefault(meter.device, {})[meter.quantity] = figure
    return found


def _meter_of(levels: dict[str, Figure]) -> DeviceMeter:
    from hiwater.meters.devices.device_meter import DeviceMeter

    meter = next(iter(levels.values())).slot.meter
    assert isinstance(meter, DeviceMeter)
    return meter
