"""The result of a scope on one device: the figures of `usage.gpu`."""

from __future__ import annotations

from hiwater.errors import MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hiwater.meters.devices.base import Device
    from hiwater.scopes.usage import Level

_CHIEF = ("allocated", "used", "device_used", "reserved")


def _of_chief(name: str, words: str) -> Any:
    """A property that is the attribute `name` of `DeviceUsage.chief`."""
    return property(lambda usage: getattr(usage.chief, name), doc=words)


class DeviceUsage:
    """One device during a scope. `.allocated` (bytes of tensors), `.reserved` (bytes that the library has from the
    driver) and `.used` (bytes that the driver counts for this process, with the context) are Levels; a quantity that
    was not measured raises MeterUnavailable. The short names, such as `.peak_bytes`, refer to `.allocated`, or to the
    first quantity that was measured.
    """

    def __init__(self, name: str, backend: str, levels: Mapping[str, Level]) -> None:
        self.name = name
        """The library's name of it, such as "cuda:0"."""
        self.backend = backend
        """The library, such as "torch"."""
        self.levels = dict(levels)
        """The Levels by quantity."""

    @property
    def chief(self) -> Level:
        """The quantity that the short names refer to."""
        return next(
            (self.levels[quantity] for quantity in _CHIEF if quantity in self.levels), next(iter(self.levels.values()))
        )

    @property
    def allocated(self) -> Level:
        """Bytes that the library allocated to tensors and arrays, rounding included."""
        return self._level("allocated")

    @property
    def reserved(self) -> Level:
        """Bytes that the library has from the driver, in use or not."""
        return self._level("reserved")

    @property
    def used(self) -> Level:
        """Bytes that the driver counts for this process; measured with `meters=("gpu", "nvml")`."""
        return self._level("used")

    start_bytes: int = _of_chief("start_bytes", "Bytes at the beginning of the scope.")
    end_bytes: int = _of_chief("end_bytes", "Bytes at its end.")
    peak_bytes: int = _of_chief("peak_bytes", "Peak during the scope.")
    peak_above_start_bytes: int = _of_chief(
        "peak_above_start_bytes", "Peak − start: what the scope needed in addition."
    )
    kept_bytes: int = _of_chief("kept_bytes", "End − start.")
    transient_bytes: int = _of_chief("transient_bytes", "Peak − the higher of start and end.")
    exact: bool = _of_chief("exact", "Whether the peak is exact; otherwise it is a lower bound, and `reason` says why.")
    error_bytes: int = _of_chief("error_bytes", "The largest error of an exact peak.")
    source: str = _of_chief("source", "Where the figures come from.")
    reason: str = _of_chief("reason", "Why a peak is not exact, or what a reader must know.")

    def to_dict(self) -> dict[str, object]:
        """Return plain values: the short names, and all Levels below `quantities`."""
        found: dict[str, object] = {"name": self.name, "backend": self.backend, **self.chief.to_dict()}
        return found | {"quantities": {quantity: level.to_dict() for quantity, level in self.levels.items()}}

    def __repr__(self) -> str:
        from hiwater._os.sizes import format_size

        shown = ", ".join(f"{quantity} peak {format_size(level.peak_bytes)}" for quantity, level in self.levels.items())
        return f"<hiwater.DeviceUsage {self.name!r} ({self.backend}): {shown}>"

    def _level(self, quantity: str) -> Level:
        found = self.levels.get(quantity)
        if found is None:
            raise MeterUnavailable(
                f"{self.name} has no {quantity!r} figure in this scope", f"it has {', '.join(self.levels)}"
            )
        return found


def of_devices(measured: Iterable[tuple[Device, str, Level]]) -> list[DeviceUsage]:
    """Group the (device, quantity, level) of a scope by device, in the order of measurement.

    A card with figures of the driver and a library's device are joined if they have the same UUID, or if there is only
    one card.
    """
    found: dict[Device, dict[str, Level]] = {}
    for device, quantity, level in measured:
        found.setdefault(device, {})[quantity] = level
    cards = {device: levels for device, levels in found.items() if device.backend == "nvml"}
    if cards:
        from hiwater.meters.devices import backend, identity

        known = backend("nvml").devices()
        joined: set[Device] = set()
        for user in found.keys() - cards.keys():
            card = identity.card_of(user, known)
            if card in cards:
                found[user] |= cards[card]
                joined.add(card)
        found = {device: levels for device, levels in found.items() if device not in joined}
    return [DeviceUsage(device.name, device.backend, levels) for device, levels in found.items()]
