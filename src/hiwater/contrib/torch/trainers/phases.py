"""The phases of a training as scopes, and the numbers that are logged for each.

`NAME_mib` are MiB (2^20 bytes):

- ram_peak_mib: the peak of the process's resident memory
- ram_kept_mib: resident memory at the end of the phase minus that at its start
- DEVICE_peak_mib: the peak of tensors on a device (`cuda_0`), rounded as by the allocator
- DEVICE_kept_mib: the memory of tensors at the end minus that at the start
- DEVICE_margin_mib: the device's memory minus the peak that the library reserved; contexts and other processes are not
  subtracted
- DEVICE_alloc_retries: how often the allocator emptied its cache and tried again
"""

from __future__ import annotations

import hiwater
from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.errors import MeterUnavailable
from hiwater.meters import devices
from hiwater.meters.devices import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.scopes.device_usage import DeviceUsage
    from hiwater.scopes.tracker import TrackedRun, Tracker
    from hiwater.scopes.usage import Usage

_METERS = (("resident", "gpu"), ("gpu",))  # the second if resident memory cannot be read
_RETRIES = "num_alloc_retries"


class Phases:
    """The open phases, and the usages of those that have ended. Phases may be nested: each has its own exact peak."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, Usage]] = []
        """Name and usage of every phase, in the order of their ends."""
        self._open: dict[str, tuple[Tracker, TrackedRun, dict[str, int]]] = {}

    def begin(self, name: str) -> None:
        """Begin a phase. An open one of the same name, which an exception left open, is dropped."""
        self.drop(name)
        tracker = hiwater.track(name, meters=_METERS[0])
        try:
            run = tracker.start()
        except MeterUnavailable:
            tracker = hiwater.track(name, meters=_METERS[1])
            run = tracker.start()
        self._open[name] = tracker, run, _retries()

    def is_open(self, name: str) -> bool:
        """Whether a phase of this name has begun and not ended."""
        return name in self._open

    def end(self, name: str, called: str = "") -> dict[str, float]:
        """End a phase and return the numbers that could be measured; none for a phase that did not begin. `called`
        is another name for it."""
        found = self._open.pop(name, None)
        if found is None:
            return {}
        tracker, run, retries = found
        tracker.stop()
        self.ended.append((called or name, run.usage))
        return numbers(run.usage, retries)

    def drop(self, name: str) -> None:
        """End a phase without numbers."""
        found = self._open.pop(name, None)
        if found is not None:
            found[0].stop()

    def drop_all(self) -> None:
        """End all open phases, after an exception."""
        for name in list(self._open):
            self.drop(name)


def numbers(usage: Usage, retries_before: dict[str, int]) -> dict[str, float]:
    """The numbers of a phase by name, as listed above."""
    found: dict[str, float] = {}
    if "resident" in usage.levels:
        found["ram_peak_mib"] = _mib(usage.resident.peak_bytes)
        found["ram_kept_mib"] = _mib(usage.resident.kept_bytes)
    retries = _retries()
    for device in usage.gpu:
        name = device.name.replace(":", "_")
        found[f"{name}_peak_mib"] = _mib(device.peak_bytes)
        found[f"{name}_kept_mib"] = _mib(device.kept_bytes)
        margin = _margin(device)
        if margin is not None:
            found[f"{name}_margin_mib"] = _mib(margin)
        if device.name in retries:
            now, before = retries[device.name], retries_before.get(device.name, 0)
            found[f"{name}_alloc_retries"] = now - before if now >= before else now  # the program reset torch's totals
    return found


def _mib(count: int) -> float:
    return round(count / BYTES_PER_MIB, 3)


def _margin(usage: DeviceUsage) -> int | None:
    if "reserved" not in usage.levels:
        return None
    source = devices.backend(usage.backend)
    try:
        limit = source.limit_bytes(source.device(usage.name))
    except Exception:  # noqa: BLE001 - an error of a library must not end the training
        return None
    return limit - usage.reserved.peak_bytes if limit != UNKNOWN else None


def _retries() -> dict[str, int]:
    """The retries by device, for libraries that count them."""
    found = {}
    for source, device in devices.in_use():
        try:
            statistics = source.statistics(device)
        except Exception:  # noqa: BLE001, S112 - as above
            continue
        if _RETRIES in statistics:
            found[device.name] = statistics[_RETRIES]
    return found
