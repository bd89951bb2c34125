"""Memory of accelerators: which libraries use a device in this process, and a meter for each quantity of it.

A device's meter is called `BACKEND:DEVICE:QUANTITY`, for instance `torch:cuda:0:allocated`; `gpu` means all meters of
devices in use.
"""

from __future__ import annotations

import sys

from hiwater import _registry
from hiwater.errors import MeterUnavailable
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.devices.device_meter import DeviceMeter

__all__ = [
    "UNKNOWN", "Backend", "Device", "Standing", "Status", "allocators", "backend", "in_use", "meter", "names",
    "refusals", "statuses",
]  # fmt: skip

_HOMES = {**_registry.DEVICE_LIBRARIES, "nvml": "hiwater.meters.devices.nvml:Nvml"}
_made: dict[str, Backend] = {}
_names: dict[tuple[str, str], list[str]] = {}  # the quantities of a device do not change
_refusals: dict[str, str] = {}  # a library without figures never gets them


def backend(name: str) -> Backend:
    """The backend of this name, created at its first use. Raises MeterUnavailable for an unknown one."""
    found = _made.get(name)
    if found is None:
        home = _HOMES.get(name)
        if home is None:
            raise MeterUnavailable(f"{name!r} is not a source of device memory", f"choose from {', '.join(_HOMES)}")
        found = _made[name] = _registry.load(home)()
    return found


def allocators() -> list[Backend]:
    """The backends whose library the program has loaded. Without one, this costs only a search in `sys.modules`."""
    return [backend(name) for name in _registry.DEVICE_LIBRARIES if name in sys.modules]


def in_use() -> list[tuple[Backend, Device]]:
    """The devices that the program uses now, ordered by library and by its order of devices. A library that fails
    has none."""
    found = []
    for each in allocators():
        try:
            found += [(each, device) for device in each.devices()]
        except Exception:  # noqa: BLE001, S112 - a library during its import or shutdown must not break the program
            continue
    return found


def names() -> list[str]:
    """The meters of all devices in use: the group `gpu`."""
    found = []
    for each, device in in_use():
        key = (each.name, device.name)
        if key not in _names:
            _names[key] = _names_or_refusal(each, device)
        found += _names[key]
    return found


def refusals() -> dict[str, str]:
    """Devices in use that cannot be measured, by `BACKEND:DEVICE`, with the library's error. For example, torch has
    no statistics of a pluggable allocator."""
    return dict(_refusals)


def nvml_names() -> list[str]:
    """The meters of all cards that the driver shows. Raises MeterUnavailable where NVML does not work."""
    nvml = backend("nvml")
    status = nvml.status()
    if not status.works:
        raise MeterUnavailable(f"NVML cannot be used: {status.reason}", "remove nvml from the meters")
    return [name for device in nvml.devices() for name in _names_of(nvml, device)]


def nvml_unknown() -> dict[str, str]:
    """The meters for which the driver has no figure, with the reasons."""
    from hiwater.meters.devices.nvml import Nvml

    nvml = backend("nvml")
    assert isinstance(nvml, Nvml)
    return {
        f"nvml:{device.name}:{quantity}": reason
        for device in nvml.devices()
        for quantity, reason in nvml.unknown(device).items()
    }


def why_none() -> str:
    """Why no device is in use, as a phrase for reports."""
    if _refusals:
        return "; ".join(f"{name}: {reason}" for name, reason in _refusals.items())
    loaded = [each.status().reason for each in allocators()]
    return "no device is in use: " + ("; ".join(loaded) or f"none of {', '.join(_registry.DEVICE_LIBRARIES)} is loaded")


def _names_or_refusal(source: Backend, device: Device) -> list[str]:
    try:
        return _names_of(source, device)
    except Exception as error:  # noqa: BLE001 - a library may raise anything, and the program did not ask for these figures
        _refusals[f"{source.name}:{device.name}"] = f"{type(error).__name__}: {error}"
        return []


def _names_of(source: Backend, device: Device) -> list[str]:
    there = source.standings(device)
    return [f"{source.name}:{device.name}:{quantity}" for quantity in source.quantities if quantity in there]


def meter(name: str) -> DeviceMeter:
    """The meter called `BACKEND:DEVICE:QUANTITY`. Raises MeterUnavailable, with the reason, for a device that is not
    in use here."""
    from hiwater.meters.devices.device_meter import DeviceMeter

    head, _, rest = name.partition(":")
    place, _, quantity = rest.rpartition(":")
    source = backend(head)
    if not place or not quantity:
        raise MeterUnavailable(
            f"{name!r} is not the meter of a device",
            f"write it as {head}:DEVICE:QUANTITY, as in torch:cuda:0:allocated",
        )
    return DeviceMeter(source, source.device(place), quantity)


def statuses() -> dict[str, Status]:
    """The status of each backend, by name."""
    return {name: backend(name).status() for name in _HOMES}
