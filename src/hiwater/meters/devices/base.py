"""What every source of device memory has: a backend names itself, lists the devices in use, reads them, and says what it cannot do.

A backend looks at a library only when the program has loaded it already (it is in `sys.modules`) and has begun to use a device with it: looking
imports nothing, initialises nothing and never makes a context, which would cost hundreds of MiB on the device.
"""

from __future__ import annotations

from typing import NamedTuple

from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from hiwater.meters.devices.peaks import SharedPeaks

UNKNOWN = -1
"""A figure that the source does not have."""


class Device(NamedTuple):
    """One device as one library counts it: two libraries that use the same card are two of these."""

    backend: str
    name: str
    """As the library names it: `cuda:0`."""
    number: int
    """Its number in the library, which need not be NVML's."""
    uuid: str = ""
    """What tells cards and MIG instances apart, in identity.canonical()'s form; "" where neither the library nor CUDA says it."""
    ordinal: int = UNKNOWN
    """CUDA's or HIP's number of it in this process; UNKNOWN for devices of other kinds, or where the library does not say it."""


class Standing(NamedTuple):
    """One quantity: bytes now, and the most since the source's mark began; UNKNOWN where the source does not tell."""

    now: int
    peak: int = UNKNOWN


class Status(NamedTuple):
    """Whether a backend can measure here and now, and the reason in words."""

    works: bool
    reason: str


class Backend:
    """One source. `status` may be asked always, `devices` once the library is in `sys.modules`, everything else of the devices it names."""

    name = ""
    library = ""
    """The module whose presence in `sys.modules` comes before everything."""
    quantities: tuple[str, ...] = ()
    """What a scope measures of each device unless told otherwise, the chief one first."""
    source = ""
    """Where the figures come from, in words."""
    whose = "process"
    cost_us = 10.0

    def status(self) -> Status:
        """Whether figures can be read now."""
        raise NotImplementedError

    def devices(self) -> list[Device]:
        """The devices that the program uses through this library, in its order; none is no error. Asked at each end of each scope."""
        raise NotImplementedError

    def statistics(self, device: Device) -> dict[str, int]:
        """All whole numbers the source has of a device, by its own names joined with dots."""
        raise NotImplementedError

    def statistics_at_reset(self, device: Device) -> Mapping[str, int]:
        """The statistics as of the last reset of the device's peaks, where that comes cheaper than reading them once more."""
        return self.statistics(device)

    def standings(self, device: Device) -> dict[str, Standing]:
        """The quantities of a device, by hiwater's names: `allocated`, `reserved`, `used` …; those not known are left out."""
        raise NotImplementedError

    def lifetime_peak(self, device: Device, quantity: str) -> int:
        """The most since the program began, or last started its peaks anew; UNKNOWN where the source keeps no mark."""
        found = self.standings(device).get(quantity)
        return found.peak if found is not None else UNKNOWN

    def segments(self, device: Device) -> list[dict[str, Any]] | None:  # noqa: ARG002 - a source without them has nothing to look at
        """What the library took from the driver, piece by piece, as torch's snapshots have it; None where there is no such thing."""
        return None

    def limit_bytes(self, device: Device) -> int:  # noqa: ARG002 - a source without one has nothing to look at
        """The most the device, or the library's share of it, can hold; UNKNOWN where the source does not tell."""
        return UNKNOWN

    def shared_peaks(self, device: Device) -> SharedPeaks | None:  # noqa: ARG002 - the same
        """What reads and resets the device's peaks, all at once; None where they cannot be reset."""
        return None

    def let_go(self, device: Device) -> None:
        """A meter of this device was closed: leave the library as it was found, as far as that is possible."""

    def refusal(self, device: Device) -> str:
        """Why a scope's peak is a lower bound unless the source's own mark rose; empty where that mark can be started anew."""
        raise NotImplementedError

    def statistic_of(self, quantity: str) -> str:
        """The source's own name for a quantity; any other name is taken as the source's."""
        return quantity

    def device(self, name: str) -> Device:
        """The device in use of this name. Raises MeterUnavailable, with what there is."""
        status = self.status()
        found = self.devices() if status.works else []
        for each in found:
            if each.name == name:
                return each
        there = ", ".join(each.name for each in found) or "none"
        raise MeterUnavailable(
            f"{self.name} has no device {name!r} in use here ({status.reason}; in use: {there})",
            "begin the scope after the program has used the device, or see `hiwater doctor`",
        )


def flat_name(key: object) -> str:
    """A key of nested statistics in a flat name, as `torch.cuda.memory_stats()` writes it: a private pool's `(0, 1)` as `0_1`."""
    return "_".join(map(str, key)) if isinstance(key, tuple) else str(key)


def leaves(nested: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, int]]:
    """The whole numbers in nested mappings, by their keys joined with dots, however deep; whatever else is there is left out.

    torch's statistics have one to four parts, and versions add and drop some.
    """
    for key, value in nested.items():
        path = f"{before}.{flat_name(key)}" if before else flat_name(key)
        if isinstance(value, dict):
            yield from leaves(value, path)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield path, value


def marks(nested: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """(now, peak) of the statistics in nested mappings that have both, by the keys above them joined with dots.

    Runs twice for each scope: torch's two levels are gone through here, whatever is deeper by itself.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, pools in nested.items():
        if pools.__class__ is not dict:
            continue
        if "peak" in pools:
            found[name] = pools["current"], pools["peak"]
            continue
        for pool, figures in pools.items():
            if figures.__class__ is not dict:
                continue
            if "peak" in figures:
                found[f"{name}.{pool}"] = figures["current"], figures["peak"]
            else:
                found |= {f"{name}.{flat_name(pool)}.{deeper}": both for deeper, both in marks(figures).items()}
    return found


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
