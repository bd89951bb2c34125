"""The device that lines are measured on: named once, looked for at every event until the program uses it, then read through its backend."""

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

    Tell = Callable[[Any, Mapping[str, int], bool], None]


class DeviceSource:
    """Statistics of one device, from the moment on that the program uses it: before, there are none, and looking would create a context."""

    def __init__(self, backend: Backend, index: int | None, kind: str, tell: Tell) -> None:
        """`kind` ("cuda"; empty: any) and `index` (None: the first of its kind) say which device of the backend's it is."""
        self._backend = backend
        self._index = index
        self._kind = kind
        self._tell = tell
        self._device: Device | None = None
        self._peaks: SharedPeaks | None = None
        self._last: dict[str, Standing] = {}
        self._why = self._refusal = self._name = ""
        self._failed = ""  # what the library said when it could not be read; it is not asked again
        self._told_last: Mapping[str, tuple[int, int]] = {}
        self._highest: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The device's, as its library calls it; before it is in use what it was asked for by."""
        return self._name or f"{self._kind or 'device'}:{self._index or 0}"

    @property
    def why_not(self) -> str:
        """Why nothing could be read; empty once something was."""
        if self._failed:
            return self._failed
        if self._device is not None or self._find() is not None:
            return ""
        return self._why

    @property
    def refusal(self) -> str:
        """Why peaks are lower bounds here; empty where they are exact."""
        return self._refusal

    @property
    def source(self) -> str:
        """Where the figures come from, in words."""
        return self._backend.source

    def read(self) -> Mapping[str, int]:
        """The statistics now; tells the peaks since the last reading first. Empty before the device is in use."""
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
        """Let go of the device's marks: the program's own peaks stay true."""
        device, self._device = self._device, None
        self._last = {}
        if self._peaks is not None and device is not None:
            self._peaks.unwatch(self._told)
            self._peaks = None
            self._backend.release(device)

    def _find(self) -> Device | None:
        if self._kind == "cpu":
            self._why = (
                "torch keeps no counters of CPU memory; a profiler with ram=True has columns of it, such as ram.kept"
            )
            return None
        status = self._backend.status()
        self._why = status.reason
        if not status.works:
            return None
        there = self._backend.devices()
        for device in there:
            if self._kind in ("", device.name.partition(":")[0]) and (
                self._index is None or self._index == device.number
            ):
                return device
        self._why = (
            f"{self.name} was not used ({status.reason}; in use: {', '.join(each.name for each in there) or 'none'})"
        )
        return None

    def _open(self, device: Device) -> None:
        self._name, self._refusal = device.name, self._backend.refusal(device)
        self._peaks = self._backend.shared_peaks(device)
        if self._peaks is not None:
            self._peaks.watch(self._told)
        self._device = device

    def _told(self, standings: Mapping[str, tuple[int, int]], disturbed: bool) -> None:
        if standings != self._told_last or disturbed:
            self._told_last = standings
            self._highest = {name: peak for name, (_, peak) in standings.items()}
        self._tell(self, self._highest, not disturbed)

    def _read_standings(self, device: Device) -> Mapping[str, int]:
        """A source whose marks cannot be started anew: a mark that rose is exact, otherwise what was seen at both ends is a lower bound."""
        found = {self._backend.statistic_of(name): each for name, each in self._backend.standings(device).items()}
        if self._last:
            peaks, intact = {}, True
            for name, standing in found.items():
                before = self._last.get(name, standing)
                rose = 0 <= before.peak < standing.peak
                intact &= rose
                peaks[name] = standing.peak if rose else max(before.now, standing.now)
            self._tell(self, peaks, intact)
        self._last = found
        now = {name: value for name, value in self._backend.statistics(device).items() if not name.endswith(".peak")}
        return now | {f"{name}.current": standing.now for name, standing in found.items()}


class DeviceTarget:
    """Which device the lines that begin now are measured on; may be changed at any time. Keeps a source for each that was chosen."""

    def __init__(self, device: Any) -> None:
        self._tell: Tell | None = None
        self._sources: dict[tuple[str, str, int | None], DeviceSource] = {}
        self._chosen = _parsed(device)
        self.device = device

    def tell(self, tell: Tell) -> None:
        """Whom the sources tell their peaks; before the first choice."""
        self._tell = tell

    def set(self, device: Any) -> None:
        """Choose another device. Raises BadRequest for what names none."""
        self._chosen = _parsed(device)
        self.device = device

    def choose(self) -> DeviceSource:
        """The source of the device that is chosen now."""
        found = self._sources.get(self._chosen)
        if found is None:
            backend, kind, index = self._chosen
            assert self._tell is not None
            found = self._sources[self._chosen] = DeviceSource(devices.backend(backend), index, kind, self._tell)
        return found

    @property
    def sources(self) -> list[DeviceSource]:
        """All that were ever chosen."""
        return list(self._sources.values())

    def close(self) -> None:
        """Let go of all devices; the next reading finds them again."""
        for source in self.sources:
            source.close()


def _parsed(device: Any) -> tuple[str, str, int | None]:
    """Backend, kind and number of a device: of 1, "cuda:1", "jax:cuda:0", a `torch.device`, a `hiwater.meters.devices.Device`."""
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
