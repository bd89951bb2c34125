"""Which devices of different libraries, and which cards of the driver, are the same.

Numbers are not enough: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER change CUDA's numbers, but not NVML's. UUIDs identify
a card. For a library without UUIDs, we ask CUDA, if the process has loaded and initialised it; this creates no context.
Without any UUIDs, two libraries use the same card if its CUDA or HIP number is the same, because these numbers are
common to the process. A card of the driver is then identified only if the driver has one card.
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
    """The 32 hexadecimal digits of a UUID, in the form of NVML (`GPU-…`, `MIG-…`) or of torch (no prefix). "" for
    anything else, such as the names of MIG instances in drivers before 470 (`MIG-GPU-…/1/0`), which CUDA does not
    have."""
    found = _UUID.fullmatch(uuid)
    return found[1].replace("-", "").lower() if found else ""


def of_ordinal(ordinal: int) -> str:
    """The canonical UUID of the device (or MIG instance) with CUDA's number `ordinal` in this process; "" where CUDA
    is not in use."""
    if ordinal not in _of_ordinals:
        found = _ask_cuda(ordinal)
        if not found:  # CUDA may be initialised later
            return ""
        _of_ordinals[ordinal] = found
    return _of_ordinals[ordinal]


def is_same(one: Device, other: Device) -> bool:
    """Whether devices of two libraries are known to be the same card."""
    if one.uuid and other.uuid:
        return one.uuid == other.uuid
    return one.ordinal == other.ordinal != UNKNOWN


def card_of(device: Device, cards: Sequence[Device]) -> Device | None:
    """The card (or MIG instance) among all `cards` of the driver that is a library's device; None where that is not
    known."""
    for card in cards:
        if device.uuid and device.uuid == card.uuid:
            return card
    is_only_one = len(cards) == 1 and device.ordinal != UNKNOWN and not (device.uuid and cards[0].uuid)
    return cards[0] if is_only_one else None


def _ask_cuda(ordinal: int) -> str:
    """Ask the driver library that the process has loaded. It returns an error before the first cuInit."""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        # Since CUDA 11.4, the second version distinguishes MIG instances.
        ask = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or ask(uuid, device):
            return ""
    except (OSError, AttributeError):
        return ""
    return bytes(uuid).hex()
