"""TensorFlow: bytes now and their peak for each GPU; the peak can be started anew, for everybody. Not seen on a real GPU, nor run at all."""

from __future__ import annotations

import sys

from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status
from hiwater.meters.devices.peaks import SharedPeaks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Tensorflow(Backend):
    """Memory that TensorFlow's allocator handed out. Unless told otherwise it takes the whole device at once, and does not say how much."""

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
        return {name: Standing(*both) for name, both in self._marks(device).items()}

    def shared_peaks(self, device: Device) -> SharedPeaks:
        """The device's mark. A program that reads it itself sees it begin anew at each scope."""
        found = self._peaks.get(device.name)
        if found is None:
            found = SharedPeaks(lambda: self._marks(device), lambda: _experimental().reset_memory_stats(device.name))
            self._peaks[device.name] = found
        return found

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """None: the mark can be started anew."""
        return ""

    def _marks(self, device: Device) -> dict[str, tuple[int, int]]:
        figures = self.statistics(device)
        return {"allocated": (figures["allocated.current"], figures["allocated.peak"])}


def _ordinals(config: Any, count: int) -> list[int]:
    """CUDA's numbers of the logical GPUs, which TensorFlow makes in the order of the visible physical ones, one of each unless told
    otherwise. UNKNOWN where that does not come to `count`."""
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
    """Listing devices would initialise them, so this looks at the eager context, which exists after its module was loaded."""
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    return bool(getattr(context, "_initialized", False))
