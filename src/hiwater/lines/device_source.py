"""The device on which lines are measured. It is searched at every event until the program uses it, then read through
its backend."""

from __future__ import annotations

import sys

from hiwater.errors import BadRequest, MeterUnavailable
from hiwater.meters import devices
from hiwater.meters.devices import Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from hiwater.meters.devices import Backend, Standing
    from hiwater.meters.devices.peaks import SharedPeaks

    PeakReport = Callable[[Any, Mapping[str, int], bool], None]


class DeviceSource:
    """Statistics of one device from the time when the program uses it. Before that there are none, and reading would
    create a context."""

    def __init__(self, backend: Backend, index: int | None, kind: str, report: PeakReport) -> None:
        """`kind` ("cuda"; empty: any) and `index` (None: the first of its kind) choose the device of the backend.
        `report` gets its peaks."""
        self._backend = backend
        self._index = index
        self._kind = kind
        self._report = report
        self._device: Device | None = None
        self._peaks: SharedPeaks | None = None
        self._last: dict[str, Standing] = {}
        self.source = backend.source
        """Where the figures come from, in words."""
        self.refusal = ""
        """Why peaks are lower bounds; empty if they are exact."""
        self._why = self._name = ""
        self._failed = ""  # the library's error; after one, nothing is read
        self._last_standings: Mapping[str, tuple[int, int]] = {}
        self._highest: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The library's name of the device; before the device is in use, the kind and number that were requested."""
        return self._name or f"{self._kind or 'device'}:{self._index or 0}"

    @property
    def why_not(self) -> str:
        """Why nothing could be read; empty if something was."""
        if self._failed:
            return self._failed
        if self._device is not None or self._find() is not None:
            return ""
        return self._why

    def read(self) -> Mapping[str, int]:
        """The statistics now. Before it returns, it reports the peaks since the last reading. Empty before the
        device is in use."""
        device = None if self._failed else self._device or self._find()
        if device is None:
            return {}
        try:
            if self._peaks is None and not self._last:
                self._open(device)
            if self._peaks is None:
                return self._read_standings(device)
            self._peaks.collect()
            return self._backend.statistics_at_reset(device)
        except Exception as error:  # noqa: BLE001 - a library has errors of its own, and this runs between the program's lines
            self._failed = f"{self.name} cannot be read: {type(error).__name__}: {error}"
            self.close()
            return {}

    def close(self) -> None:
        """Stop resetting the device's peaks: those that the program reads stay true."""
        device, self._device = self._device, None
        self._last = {}
        if self._peaks is not None and device is not None:
            self._peaks.unwatch(self._take_standings)
            self._peaks = None
            self._backend.release(device)

    def _find(self) -> Device | None:
        if self._kind == "cpu":
            remedy = "a profiler with ram=True has columns of it, such as ram.kept"
            self._why = f"torch keeps no counters of CPU memory; {remedy}"
            return None
        status = self._backend.status()
        self._why = status.reason
        if not status.works:
            return None
        there = self._backend.devices()
        for device in there:
            is_of_kind = self._kind in ("", device.name.partition(":")[0])
            if is_of_kind and self._index in (None, device.number):
                return device
        names = ", ".join(each.name for each in there) or "none"
        self._why = f"{self.name} was not used ({status.reason}; in use: {names})"
        return None

    def _open(self, device: Device) -> None:
        self._name, self.refusal = device.name, self._backend.refusal(device)
        self._peaks = self._backend.shared_peaks(device)
        if self._peaks is not None:
            self._peaks.watch(self._take_standings)
        self._device = device

    def _take_standings(self, standings: Mapping[str, tuple[int, int]], disturbed: bool) -> None:
        if standings != self._last_standings or disturbed:
            self._last_standings = standings
            self._highest = {name: peak for name, (_, peak) in standings.items()}
        self._report(self, self._highest, not disturbed)

    def _read_standings(self, device: Device) -> Mapping[str, int]:
        """A source whose peaks cannot be reset: a peak that rose is exact, otherwise the higher value of both ends
        is a lower bound."""
        found = {self._backend.statistic_of(name): each for name, each in self._backend.standings(device).items()}
        if self._last:
            peaks, intact = {}, True
            for name, standing in found.items():
                before = self._last.get(name, standing)
                rose = 0 <= before.peak < standing.peak
                intact &= rose
                peaks[name] = standing.peak if rose else max(before.now, standing.now)
            self._report(self, peaks, intact)
        self._last = found
        now = {name: value for name, value in self._backend.statistics(device).items() if not name.endswith(".peak")}
        return now | {f"{name}.current": standing.now for name, standing in found.items()}


class DeviceTarget:
    """The device on which lines that begin now are measured. It may change at any time. Each chosen device keeps its
    source."""

    def __init__(self, device: Any) -> None:
        self._report: PeakReport | None = None
        self._sources: dict[tuple[str, str, int | None], DeviceSource] = {}
        self._chosen = _parsed(device)
        self.device = device

    def report_to(self, report: PeakReport) -> None:
        """Set the function that gets the peaks of the sources. To be called before the first `choose()`."""
        self._report = report

    def set(self, device: Any) -> None:
        """Choose another device. Raises BadRequest if `device` names none."""
        self._chosen = _parsed(device)
        self.device = device

    def choose(self) -> DeviceSource:
        """The source of the device that is chosen now."""
        found = self._sources.get(self._chosen)
        if found is None:
            backend, kind, index = self._chosen
            assert self._report is not None
            found = self._sources[self._chosen] = DeviceSource(devices.backend(backend), index, kind, self._report)
        return found

    @property
    def sources(self) -> list[DeviceSource]:
        """The sources of all devices that were chosen so far."""
        return list(self._sources.values())

    def close(self) -> None:
        """Release all devices. The next reading finds them again."""
        for source in self.sources:
            source.close()


def _parsed(device: Any) -> tuple[str, str, int | None]:
    """Backend, kind and number of a device: of 1, "cuda:1", "jax:cuda:0", a `torch.device`, a
    `hiwater.meters.devices.Device`."""
    if isinstance(device, Device):
        return device.backend, device.name.partition(":")[0], device.number
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return "torch", "", device
    torch = sys.modules.get("torch")
    if isinstance(device, str) or (torch is not None and isinstance(device, torch.device)):
        backend, kind, number = _split(str(device))
        if kind.isidentifier() and (not number or number.isdecimal()):
            return backend, kind, int(number) if number else None
    raise BadRequest(f"{device!r} names no device", 'write it as 0, "cuda:0" or torch.device("cuda", 0)')


def _split(text: str) -> tuple[str, str, str]:
    head, _, rest = text.partition(":")
    try:
        devices.backend(head)
    except MeterUnavailable:
        return "torch", head, rest
    kind, _, number = rest.partition(":")
    return head, kind, number
