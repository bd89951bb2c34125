"""Samples the devices of a recording: their figures over time, each with the peak since the sample before.

While no GPU library is loaded, none of this runs: the engine's thread has the interpreter check `sys.modules` from time
to time. Once a device is in use, a Python thread measures one interval after the other, as scopes do, so that no peak
is lost between two samples.
"""

from __future__ import annotations

import _thread
import sys
import time

from hiwater._os.native import unrecorded
from hiwater.recording.imports_under_way import is_import_under_way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from hiwater.meters.devices.base import Backend, Device
    from hiwater.meters.devices.device_meter import DeviceMeter
    from hiwater.scopes.scope import MeterFigures, Scope

    T = TypeVar("T")

SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 1.0
_SHARE_OF_AGE = 1024  # the engine stores samples at the same distance; those in between update its last one
_PATIENCE_SECONDS = 2.0
_TERMS_SECONDS, _TERMS_GROWTH = 1.0, 1.05
UNKNOWN = -1


class SampledDevice:
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
        # A lifetime peak is the recording's peak if the program began to use the device during the recording, or if it
        # has risen since.
        self.note = backend.refusal(device)
        has_peak = any(standing.peak != UNKNOWN for standing in backend.standings(device).values())
        self.exact = not self.note or (came_late and has_peak)

    def update_accuracy(self, figures: Iterable[MeterFigures]) -> None:
        """Update `exact` and `note` from the figures of one interval."""
        for figure in figures:
            if figure.slot.meter.has_lifetime_peak:
                self.exact = self.exact or figure.intact
            elif not figure.intact:
                self.exact, self.note = False, figure.slot.meter.disturbance


class DeviceSampler:
    """Samples the devices in use, from `begin()` to `finish()`. `core` is the native engine, which is recording."""

    def __init__(self, core: Any, on_check: Callable[[], object] | None = None) -> None:
        """`on_check` is called whenever the program may have begun to use a device; it must not raise."""
        self._core = core
        self._on_check = on_check
        self._devices: dict[Device, SampledDevice] = {}
        self._scope: Scope | None = None
        self._began = time.monotonic()
        self._stop = _thread.allocate_lock()
        self._sampling = _thread.allocate_lock()  # serialises the thread's samples and the last one
        self._driver = _thread.allocate_lock()  # locked while the driver's library is being loaded
        self._from_start = self._is_running = False
        self.trouble = ""
        """Why devices are not sampled, or no longer; "" if they are."""
        self.driver_trouble = ""
        """Why the driver's figures are missing in the whole recording or at its end; "" if they are complete, or
        there is no driver."""

    def begin(self, *, late: bool = False) -> bool:
        """Check for devices from now on, and return whether one is in use; it is measured from now on. `late` says
        that the recording began before the program had loaded a library for it: then all figures of the device
        belong to the recording."""
        self._from_start = not late
        is_in_use = self.consider()
        self._from_start = self._from_start and is_in_use
        if not is_in_use:
            self._core.on_device_library(self.consider)
        return is_in_use

    def consider(self) -> bool:
        """Begin to measure if a device is in use; return whether one is."""
        return not is_import_under_way(self._core.DEVICE_LIBRARIES) and self._safely(self._consider)

    def finish(self) -> None:
        """Take the last sample. A device that no check has found, because the program was too short, gets its
        lifetime peak."""
        self._core.on_device_library(None)
        if self._is_running:
            self._stop.release()
        self._safely(self._take_last)
        if self._scope is not None:
            from hiwater.scopes.manager import SCOPE_MANAGER

            SCOPE_MANAGER.exit(self._scope)

    def _safely(self, work: Callable[[], bool]) -> bool:
        """Call `work` inside the program. An error of a library ends the sampling, and nothing else."""
        if self.trouble:
            return True
        try:
            return unrecorded(_call, work, None)
        except Exception as error:  # noqa: BLE001 - libraries may raise anything, and the recording continues without them
            self._give_up(error)
            return True

    def _give_up(self, error: Exception) -> None:
        """Stop sampling: no figure includes what devices do from now on."""
        self.trouble = _error_text(error)
        for sampled in self._devices.values():
            sampled.exact, sampled.note = False, f"not measured to the end: {self.trouble}"
            self._write(sampled, sampled.now, sampled.now, UNKNOWN)

    def _consider(self) -> bool:
        # The program may be inside the manager, where what it changes is half changed.
        manager = sys.modules.get("hiwater.scopes.manager")
        if manager is not None and manager.SCOPE_MANAGER.is_busy_here:
            return False
        from hiwater.meters import device_names

        if self._on_check is not None:
            self._on_check()
        if self._scope is not None:
            return True
        if not device_names():
            return False
        self._open()
        self._stop.acquire()
        self._is_running = True
        # Imported here, because an import in a thread waits for the GIL at each file and may collide with an import of
        # the program. Only the driver's library, which takes long to initialise, is loaded by a thread, in parallel
        # with the samples.
        from hiwater.meters.devices import nvml, reconcile  # noqa: F401 - loaded

        self._driver.acquire()
        _thread.start_new_thread(unrecorded, (_call, self._load_driver, None))
        _thread.start_new_thread(unrecorded, (_call, self._run, None))
        return True

    def _load_driver(self) -> None:
        from hiwater.meters.devices import reconcile

        try:
            self._of_driver(lambda: [reconcile.card_of(device) for device in tuple(self._devices)])
        finally:
            self._driver.release()

    def _knows_driver(self, *, last: bool) -> bool:
        """Whether the driver can be called without a wait. At the end of the recording, wait for it."""
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
        """The name and the peaks in bytes of each device; UNKNOWN if not measured."""
        return [
            {"name": sampled.device.name, "backend": sampled.device.backend, "exact": sampled.exact}
            | {f"peak_{quantity}_bytes": peak for quantity, peak in sampled.peaks.items()}
            for sampled in self._devices.values()
        ]

    def sample(self, *, last: bool = False) -> None:
        """Write a sample of each device, with its peak since the sample before."""
        from hiwater.scopes.manager import SCOPE_MANAGER

        if self._on_check is not None:
            self._on_check()
        # A library may hang in the thread's sample; that must not delay the end of the program.
        if not self._sampling.acquire(timeout=_PATIENCE_SECONDS):
            return
        try:
            if self._scope is None or not self._scope.is_open:
                return
            done, self._scope = self._scope, SCOPE_MANAGER.restart(self._scope)
            for device, levels in _by_device(done).items():
                self._write_sample(self._devices.get(device) or self._note(device, levels), levels, last=last)
        finally:
            self._sampling.release()

    def _open(self) -> None:
        from hiwater.scopes.manager import SCOPE_MANAGER
        from hiwater.scopes.scope import Scope

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
            except Exception as error:  # noqa: BLE001 - a library during shutdown must not print to the program's stderr
                self._give_up(error)
                return

    def _note(self, device: Device, levels: dict[str, MeterFigures]) -> SampledDevice:
        """Create the entry of a device. If the program began to use it during the recording, its earlier peak
        belongs to the recording."""
        backend = _meter_of(levels).backend
        number = self._core.add_device(device.name, device.backend, backend.source, backend.limit_bytes(device))
        sampled = self._devices[device] = SampledDevice(number, backend, device, came_late=not self._from_start)
        now = {quantity: figure.start for quantity, figure in levels.items()}
        before = {} if self._from_start else {quantity: backend.lifetime_peak(device, quantity) for quantity in levels}
        self._write(sampled, now, {quantity: max(now[quantity], before.get(quantity, 0)) for quantity in now}, UNKNOWN)
        return sampled

    def _write_sample(self, sampled: SampledDevice, levels: dict[str, MeterFigures], *, last: bool) -> None:
        sampled.update_accuracy(levels.values())
        knows_driver = self._knows_driver(last=last)
        used = self._of_driver(lambda: self._used(sampled)) if knows_driver else None
        now = {quantity: figure.end for quantity, figure in levels.items()}
        peak = {quantity: figure.peak for quantity, figure in levels.items()}
        self._write(sampled, now, peak, UNKNOWN if used is None else used)
        if knows_driver:
            self._of_driver(lambda: self._write_terms(sampled, max(now.values(), default=0), last=last))

    def _of_driver(self, work: Callable[[], T]) -> T | None:
        """Call the driver, until its first error. The figures of libraries do not depend on it."""
        if self.driver_trouble:
            return None
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - NVML may raise anything
            self.driver_trouble = _error_text(error)
            return None

    def _write(self, sampled: SampledDevice, now: dict[str, int], peak: dict[str, int], used: int) -> None:
        sampled.now = now
        for quantity, value in (*peak.items(), ("used", used)):
            sampled.peaks[quantity] = max(sampled.peaks.get(quantity, UNKNOWN), value)
        if sampled.number >= 0:
            figures = [each.get(quantity, UNKNOWN) for quantity in ("allocated", "reserved") for each in (now, peak)]
            self._core.sample_device(
                sampled.number, *figures, used, sampled.exact, "" if sampled.exact else sampled.note
            )

    def _used(self, sampled: SampledDevice) -> int:
        """Bytes that the driver counts for this process on the device; UNKNOWN if it cannot be called or has no
        figure."""
        from hiwater.meters.devices import reconcile

        found = reconcile.card_of(sampled.device)
        return found[0].process(found[1], has_context=True).bytes if found is not None else UNKNOWN

    def _write_terms(self, sampled: SampledDevice, height: int, *, last: bool) -> None:
        """Write the terms of the device's memory: at each clearly higher peak, and at the end."""
        now = time.monotonic()
        if not last and (now - sampled.terms_at < _TERMS_SECONDS or height <= sampled.terms_height * _TERMS_GROWTH):
            return
        sampled.terms_at, sampled.terms_height = now, max(height, sampled.terms_height)
        from hiwater.meters.devices import reconcile

        found = reconcile.of_device(sampled.backend, sampled.device, context_bytes=sampled.context_bytes)
        if sampled.is_new and found[reconcile.USED] != UNKNOWN:
            sampled.context_bytes = max(0, found[reconcile.UNACCOUNTED])
            found = reconcile.of_device(sampled.backend, sampled.device, context_bytes=sampled.context_bytes)
        sampled.is_new = False
        if sampled.number >= 0:
            self._core.note_device_terms(sampled.number, [(term.name, term.bytes) for term in found.terms])


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _call(work: Callable[[], object], _: None) -> bool:
    return bool(work())


def _by_device(scope: Scope) -> dict[Device, dict[str, MeterFigures]]:
    """The figures of a scope, by device and quantity."""
    from hiwater.meters.devices.device_meter import DeviceMeter

    found: dict[Device, dict[str, MeterFigures]] = {}
    for figure in scope.figures:
        meter = figure.slot.meter
        if isinstance(meter, DeviceMeter):
            found.setdefault(meter.device, {})[meter.quantity] = figure
    return found


def _meter_of(levels: dict[str, MeterFigures]) -> DeviceMeter:
    from hiwater.meters.devices.device_meter import DeviceMeter

    meter = next(iter(levels.values())).slot.meter
    assert isinstance(meter, DeviceMeter)
    return meter
