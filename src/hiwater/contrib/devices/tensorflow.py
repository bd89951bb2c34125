"""TensorFlow: bytes and their peak for each GPU. A reset of the peak affects all its readers. Not yet tested, on a GPU or elsewhere."""

from __future__ import annotations

import sys

from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status
from hiwater.meters.devices.peaks import SharedPeaks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Tensorflow(Backend):
    """Memory of TensorFlow's allocator. By default, TensorFlow reserves the whole device at its start; it has no figure of that."""

    name = "tensorflow"
    library = "tensorflow"
    quantities = ("allocated",)
    source = "tf.config.experimental.get_memory_info()"

    def __init__(self) -> None:
        self._peaks: dict[str, SharedPeaks] = {}

    def status(self) -> Status:
        """Works once TensorFlow has initialised a GPU."""
        tensorflow = sys.modules.get("tensorflow")
        if tensorflow is None:
            return Status(False, "TensorFlow is not loaded")
        if not _is_initialised():
            return Status(False, "TensorFlow has not initialised a device in this process")
        if not self.devices():
            return Status(False, "TensorFlow has no GPU in this process")
        return Status(True, f"TensorFlow {tensorflow.__version__}")

    def devices(self) -> list[Device]:
        """Its logical GPUs."""
        if not _is_initialised():
            return []
        config = sys.modules["tensorflow"].config
        names = [
            ":".join(device.name.split(":")[-2:]) for device in config.list_logical_devices("GPU")
        ]  # /device:GPU:0
        ordinals = _ordinals(config, len(names))
        return [
            Device(self.name, name, index, identity.of_ordinal(ordinal) if ordinal != UNKNOWN else "", ordinal)
            for index, (name, ordinal) in enumerate(zip(names, ordinals, strict=True))
        ]

    def statistics(self, device: Device) -> dict[str, int]:
        """`get_memory_info()`, as allocated.current and allocated.peak."""
        info = _experimental().get_memory_info(device.name)
        return {f"allocated.{name}": int(value) for name, value in info.items()}

    def standings(self, device: Device) -> dict[str, Standing]:
        """Allocated bytes."""
        return {name: Standing(*both) for name, both in self._read_peaks(device).items()}

    def shared_peaks(self, device: Device) -> SharedPeaks:
        """The device's peak. If the program reads it, it sees a reset at each beginning and end of a scope."""
        found = self._peaks.get(device.name)
        if found is None:
            found = SharedPeaks(
                lambda: self._read_peaks(device), lambda: _experimental().reset_memory_stats(device.name)
            )
            self._peaks[device.name] = found
        return found

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """Empty: the peak can be reset."""
        return ""

    def _read_peaks(self, device: Device) -> dict[str, tuple[int, int]]:
        figures = self.statistics(device)
        return {"allocated": (figures["allocated.current"], figures["allocated.peak"])}


def _ordinals(config: Any, count: int) -> list[int]:
    """CUDA's numbers of the logical GPUs, which TensorFlow creates in the order of the visible physical GPUs, by default one for each.
    UNKNOWN where this does not result in `count` numbers."""
    found: list[int] = []
    try:
        for physical in config.get_visible_devices("GPU"):
            parts = config.get_logical_device_configuration(physical) or [None]
            found += [int(physical.name.rpartition(":")[2])] * len(parts)
    except (AttributeError, ValueError, RuntimeError):  # a TensorFlow that names them otherwise
        found = []
    return found if len(found) == count else [UNKNOWN] * count


def _experimental() -> Any:
    return sys.modules["tensorflow"].config.experimental


def _is_initialised() -> bool:
    """Whether TensorFlow has initialised its devices. A list of devices would initialise them, so this reads the eager context."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return bool(getattr(context, "_initialized", False))
