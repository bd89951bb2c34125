"""The interface of sources of device memory: a backend has a name, lists the devices in use, reads them, and explains
what it cannot do.

A backend uses a library only after the program has loaded it (it is in `sys.modules`) and has begun to use a device
with it. A backend imports nothing, initialises nothing and never creates a context, which would cost hundreds of MiB on
the device.
"""

from __future__ import annotations

from typing import NamedTuple

from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from hiwater.meters.devices.peaks import SharedPeaks

UNKNOWN = -1
"""A figure that the source does not have."""


class Device(NamedTuple):
    """One device of one library. A card that two libraries use is two Devices."""

    backend: str
    name: str
    """The library's name of it, such as `cuda:0`."""
    number: int
    """Its number in the library, which may differ from NVML's."""
    uuid: str = ""
    """The UUID of the card or MIG instance, in the form of identity.canonical(); "" where neither the library nor
    CUDA has it."""
    ordinal: int = UNKNOWN
    """Its CUDA or HIP number in this process; UNKNOWN for devices of other kinds, or where the library does not have
    it."""


class Standing(NamedTuple):
    """One quantity: bytes now, and their peak since the source last reset it; UNKNOWN where the source has no such
    figure."""

    now: int
    peak: int = UNKNOWN


class Status(NamedTuple):
    """Whether a backend can measure now, and the reason as a phrase for reports."""

    works: bool
    reason: str


class Backend:
    """One source. Call `status` at any time, `devices` once the library is in `sys.modules`, and everything else for
    the devices that it lists.

    A recording looks for devices between two instructions of the program, which may have a lock of the library's then.
    So `status` and `devices` wait for no such lock.
    """

    name = ""
    library = ""
    """The module that has to be in `sys.modules`."""
    quantities: tuple[str, ...] = ()
    """The quantities of each device that a scope measures by default, the main one first."""
    source = ""
    """Where the figures come from, as a phrase for reports."""
    whose = "process"
    cost_us = 10.0

    def status(self) -> Status:
        """Whether figures can be read now."""
        raise NotImplementedError

    def devices(self) -> list[Device]:
        """The devices that the program uses through this library, in its order; may be empty. Called at the
        beginning and end of each scope."""
        raise NotImplementedError

    def statistics(self, device: Device) -> dict[str, int]:
        """All integers that the source has for a device, by its names joined with dots."""
        raise NotImplementedError

    def statistics_at_reset(self, device: Device) -> Mapping[str, int]:
        """The statistics at the last reset of the device's peaks, where they are cheaper than another reading."""
        return self.statistics(device)

    def standings(self, device: Device) -> dict[str, Standing]:
        """The known quantities of a device, by hiwater's names: `allocated`, `reserved`, `used` and others."""
        raise NotImplementedError

    def lifetime_peak(self, device: Device, quantity: str) -> int:
        """The peak since the program began or last reset its peaks; UNKNOWN where the source has no peak."""
        found = self.standings(device).get(quantity)
        return found.peak if found is not None else UNKNOWN

    def segments(self, device: Device) -> list[dict[str, Any]] | None:  # noqa: ARG002 - for sources that have segments
        """The segments that the library got from the driver, in the form of torch's snapshots; None where the
        library has none."""
        return None

    def limit_bytes(self, device: Device) -> int:  # noqa: ARG002 - for sources that have a limit
        """The capacity of the device, or the library's share of it; UNKNOWN where the source has no such figure."""
        return UNKNOWN

    def shared_peaks(self, device: Device) -> SharedPeaks | None:  # noqa: ARG002 - the same
        """The object that reads and resets all peaks of the device; None where they cannot be reset."""
        return None

    def release(self, device: Device) -> None:
        """Called after a meter of this device was closed: restore the library to its original state as far as
        possible."""

    def refusal(self, device: Device) -> str:
        """Why a scope's peak is a lower bound unless the source's high-water mark rose; empty where that high-water
        mark can be reset."""
        raise NotImplementedError

    def statistic_of(self, quantity: str) -> str:
        """The source's name for a quantity; any other name is returned unchanged, as a name of the source."""
        return quantity

    def device(self, name: str) -> Device:
        """The device in use of this name. Raises MeterUnavailable, with a list of the devices in use."""
        status = self.status()
        found = self.devices() if status.works else []
        for each in found:
            if each.name == name:
                return each
        there = ", ".join(each.name for each in found) or "none"
        raise MeterUnavailable(
            f"{self.name} has no device {name!r} in use here ({status.reason}; in use: {there})",
            "begin the scope after the program's first use of the device, or see `hiwater doctor`",
        )


def known(figures: Mapping[str, int], names: Mapping[str, tuple[str, str]]) -> dict[str, Standing]:
    """Standings from flat figures, by `names[quantity] = (name of the figure now, name of its peak or "")`.

    Figures that are missing or below zero are unknown.
    """
    found = {}
    for quantity, (now, peak) in names.items():
        value = figures.get(now, UNKNOWN)
        if value >= 0:
            found[quantity] = Standing(value, max(UNKNOWN, figures.get(peak, UNKNOWN)))
    return found
