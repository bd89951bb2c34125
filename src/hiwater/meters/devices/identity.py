"""Which devices of different libraries, and which of the driver's, are the same card.

Numbers do not tell: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER change CUDA's, and not NVML's. UUIDs do. A library that does not tell its
devices' is helped by CUDA's own, where the process has loaded and begun it: asking that makes no context. Without UUIDs, two libraries
mean the same card by the same number of CUDA's or HIP's, which all of a process share, and the driver has to know one card only.
"""

from __future__ import annotations

import os
import re

from hiwater.meters.devices.base import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.meters.devices.base import Device

_UUID = re.compile(r"(?:GPU-|MIG-)?([0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})", re.IGNORECASE)
_of_ordinals: dict[int, str] = {}


def canonical(uuid: str) -> str:
    """The 32 hexadecimal digits of a UUID, however it is written: by NVML (`GPU-…`, `MIG-…`) or by torch (neither). "" for anything else,
    as the names that drivers before 470 gave MIG instances (`MIG-GPU-…/1/0`): CUDA does not tell those."""
    found = _UUID.fullmatch(uuid)
    return found[1].replace("-", "").lower() if found else ""


def of_ordinal(ordinal: int) -> str:
    """The canonical UUID of the device (or MIG instance) that is CUDA's `ordinal` in this process; "" where CUDA is not in use here."""
    if ordinal not in _of_ordinals:
        found = _ask_cuda(ordinal)
        if not found:  # CUDA may begin later
            return ""
        _of_ordinals[ordinal] = found
    return _of_ordinals[ordinal]


def is_same(one: Device, other: Device) -> bool:
    """Whether devices of two libraries are one card, as far as they can tell."""
    if one.uuid and other.uuid:
        return one.uuid == other.uuid
    return one.ordinal == other.ordinal != UNKNOWN


def card_of(device: Device, cards: Sequence[Device]) -> Device | None:
    """Which of all the `cards` (and MIG instances) that the driver knows a library's device is; None where that is not known."""
    for card in cards:
        if device.uuid and device.uuid == card.uuid:
            return card
    is_only_one = len(cards) == 1 and device.ordinal != UNKNOWN and not (device.uuid and cards[0].uuid)
    return cards[0] if is_only_one else None


def _ask_cuda(ordinal: int) -> str:
    """Ask the driver's library that the process has loaded; it refuses where nobody has called its cuInit."""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        # The second version tells MIG instances apart, from CUDA 11.4 on.
        ask = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or ask(uuid, device):
            return ""
    except (OSError, AttributeError):
        return ""
    return bytes(uuid).hex()
