"""NVML, the library behind nvidia-smi: what the driver says of each card, of everybody on it, and of this process (extra `gpu`).

It needs no context on a card. All its calls take the driver's one lock, and the list of processes takes milliseconds under it, so that list is
read at most once a second, and memory figures at most 20 times. The driver knows nothing of PID namespaces: in a container it tells the host's
process numbers, among which we do not find ourselves. Not seen on a real GPU.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIST_SECONDS = 1.0
MEMORY_SECONDS = 0.05
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in Linux' include/linux/proc_ns.h


@dataclass(frozen=True, slots=True)
class CardMemory:
    """A card, or a MIG instance of one, in bytes; UNKNOWN where the driver does not tell. `reserved_bytes` is the driver's own share."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What the driver says this process has on a card; UNKNOWN with the `reason`. `others_bytes` is the sum of the other processes it names."""

    bytes: int
    reason: str
    others_bytes: int


class Nvml(Backend):
    """Bytes that the driver counts for this process on each card (`used`), and for everybody (`device_used`)."""

    name = "nvml"
    library = "pynvml"
    quantities = ("used", "device_used")
    source = "NVML"
    whose = "process, by the driver's count"
    cost_us = 4500

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._nvml: Any = None
        self._refused = ""
        self._handles: dict[str, Any] = {}
        self._cards: dict[str, tuple[float, CardMemory]] = {}
        self._lists: dict[str, tuple[float, dict[int, int]]] = {}

    def status(self) -> Status:
        """Works where nvidia-ml-py is installed and there is a driver. Loads both at the first call."""
        if self._nvml is None and not self._refused:
            self._refused = self._begin()
        if self._refused:
            return Status(False, self._refused)
        if not self._handles:
            return Status(False, "the NVIDIA driver is there, and knows no card that this process may see")
        return Status(True, f"NVML, driver {_text(self._nvml.nvmlSystemGetDriverVersion())}")

    def devices(self) -> list[Device]:
        """All cards this process may see, in PCI order, which need not be CUDA's; instances in place of a card that MIG divides."""
        return [
            Device(self.name, name, index, self._uuid(handle))
            for index, (name, handle) in enumerate(self._handles.items())
        ]

    def statistics(self, device: Device) -> dict[str, int]:
        """The card's memory and ours of it, flat."""
        card, mine = self.card(device), self.process(device)
        return {
            "total_bytes": card.total_bytes,
            "used_bytes": card.used_bytes,
            "reserved_bytes": card.reserved_bytes,
            "process_bytes": mine.bytes,
        }

    def standings(self, device: Device) -> dict[str, Standing]:
        """`used`, left out where the driver does not tell which of its processes we are, and `device_used`."""
        mine = self.process(device).bytes
        found = {"used": Standing(mine)} if mine != UNKNOWN else {}
        return found | {"device_used": Standing(self.card(device).used_bytes)}

    def limit_bytes(self, device: Device) -> int:
        """The card's memory, or the instance's."""
        return self.card(device).total_bytes

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """NVML keeps no peak."""
        return "NVML keeps no peak, and its list of processes is read at most once a second: figures are that old"

    def card(self, device: Device) -> CardMemory:
        """Everybody's memory on a card."""
        at, known = self._cards.get(device.name, (0.0, None))
        now = self._clock()
        if known is None or now - at >= MEMORY_SECONDS:
            known = self._read_card(self._handles[device.name])
            self._cards[device.name] = now, known
        return known

    def process(self, device: Device, *, has_context: bool = False) -> ProcessMemory:
        """This process's memory on a card. `has_context` says that it is known to use it: then the only process there is taken for us."""
        at, running = self._lists.get(device.name, (0.0, None))
        now = self._clock()
        if running is None or now - at >= LIST_SECONDS:
            running = self._read_processes(self._handles[device.name])
            self._lists[device.name] = now, running
        return _ours(running, has_context=has_context)

    def _begin(self) -> str:
        """Load the library and find the cards; return why that does not work, or ""."""
        try:
            import pynvml
        except ImportError:
            return "nvidia-ml-py is not installed: pip install 'hiwater[gpu]'"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if type(error).__name__ == "NVMLError_LibraryNotFound":
                return "no NVIDIA driver is here (libnvidia-ml.so.1 is not found)"
            return f"the NVIDIA driver does not answer: {error}"
        self._nvml = pynvml
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                self._handles |= self._parts(str(index), pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            return f"the NVIDIA driver does not tell its cards: {error}"
        return ""

    def _parts(self, name: str, handle: Any) -> dict[str, Any]:
        """A card, or its MIG instances: with MIG on, the card's own handle tells nothing of processes."""
        nvml = self._nvml
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(handle)
            if current != nvml.NVML_DEVICE_MIG_ENABLE:
                return {name: handle}
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:  # a card without MIG
            return {name: handle}
        found = {}
        for index in range(most):
            try:
                found[f"{name}:mig:{index}"] = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            except nvml.NVMLError:  # the numbers of instances have gaps
                continue
        return found

    def _uuid(self, handle: Any) -> str:
        try:
            return _text(self._nvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-")
        except self._nvml.NVMLError:
            return ""

    def _read_card(self, handle: Any) -> CardMemory:
        nvml = self._nvml
        try:
            found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            return CardMemory(int(found.total), int(found.used), int(found.reserved))
        except (nvml.NVMLError, AttributeError):  # a driver before 510, or a library that does not know it
            found = nvml.nvmlDeviceGetMemoryInfo(handle)
            return CardMemory(int(found.total), int(found.used), UNKNOWN)

    def _read_processes(self, handle: Any) -> dict[int, int]:
        """Bytes by process number. A process that computes and draws is in both lists with the same figure."""
        found: dict[int, int] = {}
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            try:
                listed = getattr(self._nvml, name)(handle)
            except self._nvml.NVMLError:  # not for this kind of card, or not for us
                continue
            for each in listed:
                used = UNKNOWN if each.usedGpuMemory is None else int(each.usedGpuMemory)
                found[int(each.pid)] = max(used, found.get(int(each.pid), UNKNOWN))
        return found


def _ours(running: dict[int, int], *, has_context: bool) -> ProcessMemory:
    me = os.getpid()
    others = sum(max(0, used) for pid, used in running.items() if pid != me)
    if me in running:
        used = running[me]
        withheld = "the driver does not tell how much a process uses here (Windows' WDDM, or withheld)"
        return ProcessMemory(used, withheld if used == UNKNOWN else "", others)
    if not has_context and (not running or _in_first_namespace()):
        return ProcessMemory(0, "", others)
    if not has_context:
        return ProcessMemory(
            UNKNOWN, "the driver lists other processes; in a container, one of them may be this one", others
        )
    if len(running) == 1:
        (used,) = running.values()
        return ProcessMemory(used, "taken for this process: it is the only one on the card, under another number", 0)
    count = f"{len(running)} processes, none with" if running else "no process with"
    return ProcessMemory(
        UNKNOWN, f"the driver lists {count} this one's number: in a container it tells the host's numbers", others
    )


def _in_first_namespace() -> bool:
    """Whether our process numbers are the driver's: the kernel gives the machine's own PID namespace a number that never changes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
