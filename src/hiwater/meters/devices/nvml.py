"""NVML, the library behind nvidia-smi: the driver's figures for each card, for all processes on it, and for this
process (extra `gpu`).

It needs no context on a card. All its calls take one lock in the driver, and the list of processes takes milliseconds
under it. So that list is read at most once a second, and memory figures at most 20 times a second. The driver ignores
PID namespaces: in a container it lists the host's process numbers, so this process cannot find its own.
docs/gpu.md says what was seen on a real GPU.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import dataclass
from typing import NamedTuple

from hiwater._os import portable
from hiwater.meters.devices import identity
from hiwater.meters.devices.base import UNKNOWN, Backend, Device, Standing, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIST_SECONDS = 1.0
MEMORY_SECONDS = 0.05
_PATIENCE_SECONDS = 0.2
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in Linux' include/linux/proc_ns.h


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a card or MIG instance, in bytes; UNKNOWN where the driver has no figure. `reason` explains why it
    has none at all. `reserved_bytes` is what the driver reserves for itself."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProcessOnCard:
    """This process's bytes on a card by the driver's count; UNKNOWN with the `reason`. `others_bytes` is the sum of
    the other processes; UNKNOWN where the driver does not show the figure of each."""

    bytes: int
    reason: str
    others_bytes: int


_made: weakref.WeakSet[Nvml] = weakref.WeakSet()


class Running(NamedTuple):
    """The processes on a card by the driver's list: bytes by process number, UNKNOWN where they are hidden.
    `refusal` says why there is no list."""

    used: dict[int, int]
    refusal: str = ""


class Nvml(Backend):
    """Bytes that the driver counts on each card for this process (`used`) and for all processes (`device_used`).

    A reading never raises NVML's errors, because a driver may refuse single figures of single cards while all others
    are valid.
    """

    name = "nvml"
    library = "pynvml"
    quantities = ("used", "device_used")
    source = "NVML"
    whose = "process, by the driver's count"
    cost_us = 4500

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fork = threading.local()
        self._forget()
        _made.add(self)

    def _forget(self) -> None:
        self._asking = threading.RLock()  # around all calls, which the driver serialises in any case
        self._nvml: Any = None
        self._status: Status | None = None
        self._devices: list[Device] = []
        self._handles: dict[str, Any] = {}
        self._refused: dict[str, str] = {}  # cards without a handle, and why
        self._cards: dict[str, tuple[float, CardMemory]] = {}
        self._lists: dict[str, tuple[float, Running]] = {}

    def status(self) -> Status:
        """Works where nvidia-ml-py and a driver are installed. The first call in this process loads both."""
        if self._status is None:
            with self._asking:
                self._status = self._begin()
        return self._status

    def devices(self) -> list[Device]:
        """All cards that this process may see, in PCI order, which may differ from CUDA's order; for a card divided
        by MIG, its instances."""
        return list(self._devices) if self.status().works else []

    def statistics(self, device: Device) -> dict[str, int]:
        """The memory of the card and of this process on it."""
        card, mine = self.card(device), self.process(device)
        return {
            "total_bytes": card.total_bytes,
            "used_bytes": card.used_bytes,
            "reserved_bytes": card.reserved_bytes,
            "process_bytes": mine.bytes,
        }

    def standings(self, device: Device) -> dict[str, Standing]:
        """`used` and `device_used`, where the driver has them."""
        found = {"used": self.process(device).bytes, "device_used": self.card(device).used_bytes}
        return {quantity: Standing(count) for quantity, count in found.items() if count != UNKNOWN}

    def unknown(self, device: Device) -> dict[str, str]:
        """The quantities of a card for which the driver has no figure, with the reasons."""
        mine, card = self.process(device), self.card(device)
        found = {"used": (mine.bytes, mine.reason), "device_used": (card.used_bytes, card.reason)}
        return {quantity: reason for quantity, (count, reason) in found.items() if count == UNKNOWN}

    def limit_bytes(self, device: Device) -> int:
        """The total memory of the card or instance."""
        return self.card(device).total_bytes

    def refusal(self, device: Device) -> str:  # noqa: ARG002 - the same for all
        """NVML has no peak."""
        return (
            "NVML has no peak, and hiwater reads its list of processes at most once a second: figures may be that old"
        )

    def card(self, device: Device) -> CardMemory:
        """The memory of all processes on a card."""
        refusal = self._refusal_of(device)
        if refusal:
            return CardMemory(UNKNOWN, UNKNOWN, UNKNOWN, refusal)
        at, known = self._cards.get(device.name, (0.0, None))
        now = self._clock()
        if known is None or now - at >= MEMORY_SECONDS:
            with self._asking:
                known = self._read_card(self._handles[device.name])
            self._cards[device.name] = now, known
        return known

    def process(self, device: Device, *, has_context: bool = False) -> ProcessOnCard:
        """This process's memory on a card. With `has_context`, this process is known to use the card, so a single
        process in the list must be it."""
        refusal = self._refusal_of(device)
        if refusal:
            return ProcessOnCard(UNKNOWN, refusal, UNKNOWN)
        at, running = self._lists.get(device.name, (0.0, None))
        now = self._clock()
        if running is None or now - at >= LIST_SECONDS:
            with self._asking:
                running = self._read_processes(self._handles[device.name])
            self._lists[device.name] = now, running
        return _ours(running, has_context=has_context)

    def before_fork(self) -> None:
        """Wait for calls in other threads, but not for long. The child inherits the state of the driver's lock: if
        it were locked, every call in the child, also by the program, would block forever."""
        self._fork.is_quiet = self._asking.acquire(timeout=_PATIENCE_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        if self._fork.is_quiet:
            self._asking.release()

    def after_fork_in_child(self) -> None:
        """Forget all handles, which belong to the parent. Use NVML no more if its lock may be locked forever."""
        self._forget()
        if not self._fork.is_quiet:
            self._status = Status(
                False, "this process was forked while another thread called NVML, whose lock may be locked since then: "
                "start a new process to use NVML"
            )  # fmt: skip

    def _refusal_of(self, device: Device) -> str:
        """Why a card cannot be read at all; "" where it can."""
        status = self.status()
        if not status.works:
            return status.reason
        if device.name in self._handles:
            return ""
        return self._refused.get(device.name, "the driver no longer lists this card")

    def _begin(self) -> Status:
        """Load the library and find the cards."""
        try:
            import pynvml
        except ImportError:
            return Status(False, "nvidia-ml-py is not installed: pip install 'hiwater[gpu]'")
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            version = _text(pynvml.nvmlSystemGetDriverVersion())
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            if type(error).__name__ == "NVMLError_LibraryNotFound":
                return Status(False, "no NVIDIA driver is installed (libnvidia-ml.so.1 is not found)")
            return Status(False, f"the NVIDIA driver does not answer: {error}")
        found = [part for index in range(count) for part in self._parts_at(index)]
        if not found:
            return Status(False, "the NVIDIA driver lists no card that this process may see")
        self._devices = [Device(self.name, name, number, uuid) for number, (name, uuid, _) in enumerate(found)]
        self._handles = {name: handle for name, _, handle in found if handle is not None}
        return Status(True, f"NVML, driver {version}")

    def _parts_at(self, index: int) -> list[tuple[str, str, Any]]:
        """Name, UUID and handle of a card, or of its MIG instances. A card that the driver refuses to show is in the
        list without a handle, so that no other card is mistaken for it."""
        name = str(index)
        try:
            parts = self._parts(name, self._nvml.nvmlDeviceGetHandleByIndex(index))
        except self._nvml.NVMLError as error:
            self._refused[name] = f"the driver does not show this card: {error}"
            return [(name, "", None)]
        return [(part, self._uuid(handle), handle) for part, handle in parts.items()]

    def _parts(self, name: str, handle: Any) -> dict[str, Any]:
        """A card, or its MIG instances: each instance has its own list of processes and its own memory."""
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
            return identity.canonical(_text(self._nvml.nvmlDeviceGetUUID(handle)))
        except self._nvml.NVMLError:
            return ""

    def _read_card(self, handle: Any) -> CardMemory:
        nvml = self._nvml
        try:
            found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            return CardMemory(int(found.total), int(found.used), int(found.reserved))
        except (nvml.NVMLError, AttributeError):  # a driver before 510, or a library that does not know it
            pass
        try:
            found = nvml.nvmlDeviceGetMemoryInfo(handle)
            return CardMemory(int(found.total), int(found.used), UNKNOWN)
        except nvml.NVMLError as error:
            # For example on chips whose GPU shares the host's memory (GB10, Jetson).
            return CardMemory(UNKNOWN, UNKNOWN, UNKNOWN, f"the driver has no figure of this card's memory: {error}")

    def _read_processes(self, handle: Any) -> Running:
        """A process with compute and graphics work is in both lists with the same figure. Drivers refuse the
        graphics list more often, and it matters less."""
        found: dict[int, int] = {}
        refusal = ""
        for name in ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetComputeRunningProcesses"):
            refusal = ""
            try:
                listed = getattr(self._nvml, name)(handle)
            except self._nvml.NVMLError as error:  # not for this kind of card, or not for this user
                refusal = f"the driver does not list the processes on this card: {error}"
                continue
            for each in listed:
                used = UNKNOWN if each.usedGpuMemory is None else int(each.usedGpuMemory)
                found[int(each.pid)] = max(used, found.get(int(each.pid), UNKNOWN))
        return Running(found, refusal)


def _ours(running: Running, *, has_context: bool) -> ProcessOnCard:
    me, used = os.getpid(), running.used
    if running.refusal:
        return ProcessOnCard(UNKNOWN, running.refusal, UNKNOWN)
    of_others = [count for pid, count in used.items() if pid != me]
    others = UNKNOWN if UNKNOWN in of_others else sum(of_others)
    if me in used:
        hidden = "the driver hides how much a process uses here (as Windows' WDDM does)"
        return ProcessOnCard(used[me], hidden if used[me] == UNKNOWN else "", others)
    if not has_context and (not used or _in_first_namespace()):
        return ProcessOnCard(0, "", others)
    if not has_context:
        return ProcessOnCard(
            UNKNOWN, "the driver lists other processes; in a container, one of them may be this one", others
        )
    if len(used) == 1:
        (mine,) = used.values()
        return ProcessOnCard(
            mine, "assumed to be this process: it is the only one on the card, under another number", 0
        )
    count = f"{len(used)} processes, none with" if used else "no process with"
    return ProcessOnCard(
        UNKNOWN, f"the driver lists {count} the number of this one: in a container it lists the host's numbers", others
    )


def _in_first_namespace() -> bool:
    """Whether our process numbers are the driver's: the kernel gives the initial PID namespace a constant number."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _call_all(method: Callable[[Nvml], None]) -> None:
    for each in _made:
        method(each)


portable.at_fork(
    before=lambda: _call_all(Nvml.before_fork),
    after_in_parent=lambda: _call_all(Nvml.after_fork_in_parent),
    after_in_child=lambda: _call_all(Nvml.after_fork_in_child),
)
