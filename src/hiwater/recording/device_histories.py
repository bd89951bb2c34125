"""Inside the recorded process: the histories of GPU libraries during a recording.

This loads and initialises nothing. When the program has initialised CUDA, torch's allocator records a bounded history with Python stacks;
if the program has switched that history on already, it is used and stays on. JAX always has its profile, which is read at the end. The
histories are attached to the capture unchanged and parsed later, possibly by another process. docs/gpu-history.md says what was tested
on a GPU.
"""

from __future__ import annotations

import os
import sys

from hiwater import _registry
from hiwater.recording import cuda_ready
from hiwater.recording.torch_history_switch import HistorySwitch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_EVENTS = 100_000
"""The number of events in torch's ring buffer for each device; newer ones replace older ones. According to torch's manual, an event with C++
frames takes several KB. A snapshot of 100,000 events takes about a second (pytorch #172672: 0.7 s)."""
_PROTOCOL = 4

_active: list[DeviceHistories] = []


class DeviceHistories:
    """The histories of one recording, from `begin()` to `end()`; `collect()` may be called at any time in between."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        self._torch = TorchHistory(most_events)
        self._given: dict[str, bytes] = {}
        self._owner = 0
        self._refusals: Any = None
        """The module that notes refused allocations, while it works for this recording."""

    def begin(self) -> None:
        """Begin to check for devices. Has no effect on programs that use no GPU."""
        self._owner = os.getpid()
        _active.append(self)
        self.check()

    def check(self) -> bool:
        """Begin the history if the program has begun to use a device; return True if no further check is needed. Never raises."""
        if self._owner != os.getpid():
            return True
        try:
            self._torch.wait_for_cuda(self.check)
            if not self._torch.is_ready():
                return False
            self._listen()
            self._torch.begin()
        except Exception as error:  # noqa: BLE001 - a failure of the history must not break the program
            _complain("torch's allocator records no history", error)
        return True

    def _listen(self) -> None:
        if self._refusals is None:
            refusals = _registry.load(_registry.DEVICE_REFUSALS)
            self._refusals = refusals
            refusals.listen()

    def collect(self) -> dict[str, bytes]:
        """The histories so far, by their names in a capture. Never raises."""
        found = dict(self._given)
        for name, taken in (("torch.pickle", self._torch.taken), ("jax.pb.gz", jax_profile)):
            try:
                content = taken()
            except Exception as error:  # noqa: BLE001 - as above
                _complain(f"the history of device memory for {name} could not be read", error)
                continue
            if content is not None:
                found[name] = content
        return found

    def give(self, name: str, content: bytes) -> None:
        """Attach another history, or replace the one of this name."""
        self._given[name] = content

    def end(self) -> None:
        """Stop torch's history if it was begun here. Never raises."""
        if self in _active:
            _active.remove(self)
        if self._owner != os.getpid():
            return
        self._owner = 0
        cuda_ready.forget(self.check)
        if self._refusals is not None:
            self._refusals.leave()
            self._refusals = None
        try:
            self._torch.end()
        except Exception as error:  # noqa: BLE001 - as above
            _complain("torch's history could not be switched off", error)


def active() -> DeviceHistories | None:
    """The histories of the recording in progress, if any."""
    accelerators = sys.modules.get("hiwater.recording.accelerators")
    if accelerators is not None:
        accelerators.check_now()  # a library may have been loaded since the last check
    return _active[-1] if _active else None


class TorchHistory:
    """The history of torch's CUDA allocator (and of ROCm's, which uses the same names), for all devices."""

    def __init__(self, most_events: int) -> None:
        self._most_events = most_events
        self._was_tried = False
        self._is_on = False
        self._switch: HistorySwitch | None = None
        """Set if the history was begun here."""

    def wait_for_cuda(self, check: Callable[[], object]) -> None:
        """If torch is loaded with CUDA and has not initialised it, have torch call `check` when it does."""
        torch = _torch()
        if torch is not None and not self._was_tried and not torch.cuda.is_initialized():
            cuda_ready.call_when_ready(torch, check)

    def is_ready(self) -> bool:
        """Whether CUDA is initialised, so that a history can begin."""
        torch = _torch()
        return torch is not None and cuda_ready.is_ready(torch)

    def begin(self) -> None:
        """Switch the history on, unless it is on. Tries once; raises RuntimeError if this allocator has no history."""
        if self._was_tried:
            return
        self._was_tried = True
        torch = _torch()
        if not is_enabled(torch):
            torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=self._most_events
            )
            self._switch = HistorySwitch(torch._C)
        self._is_on = True

    def taken(self) -> bytes | None:
        """The snapshot, pickled; None if there is no history."""
        if self.is_ready():
            self.begin()
        if not self._is_on:
            return None
        import pickle

        snapshot = _torch().cuda.memory._snapshot()
        is_ours = self._switch is not None and not self._switch.was_used
        snapshot["hiwater"] = {
            "most_events": self._most_events if is_ours else None,
            "ended_by_program": self._switch is not None and self._switch.was_ended,
        }
        return pickle.dumps(snapshot, _PROTOCOL)

    def end(self) -> None:
        """Restore torch's original state; a history that the program has begun meanwhile continues."""
        switch, self._switch = self._switch, None
        self._is_on = self._was_tried = False
        if switch is not None:
            switch.leave()
            if not switch.was_used:
                _torch().cuda.memory._record_memory_history(None)


def _torch() -> Any:
    """The module torch, if the program has loaded it with its CUDA part; else None."""
    torch = sys.modules.get("torch")
    if torch is None or "torch.cuda.memory" not in sys.modules:
        return None
    is_being_imported = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_being_imported else torch


def is_enabled(torch: Any) -> bool:
    """Whether torch records a history. False for a torch without this function, and for the driver's or a pluggable allocator, which raise."""
    is_history_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    try:
        return bool(is_history_enabled()) if is_history_enabled is not None else False
    except RuntimeError:
        return False


def jax_profile() -> bytes | None:
    """JAX's profile of device memory, if the program has used a JAX device other than the CPU."""
    bridge, jax = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("jax")
    are_initialised = getattr(bridge, "backends_are_initialized", None)
    if jax is None or are_initialised is None or not are_initialised():
        return None
    if all(device.platform == "cpu" for device in jax.local_devices()):
        return None  # the figures of host memory include its buffers
    profile: bytes = jax.profiler.device_memory_profile()
    return profile


def _complain(what: str, error: Exception) -> None:
    import warnings  # here, because a program without hiwater would not have it loaded

    text = f"hiwater: {what} ({type(error).__name__}: {error})"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except (
        RuntimeWarning
    ):  # the program turns warnings into errors; an error inside torch's queue would break its use of CUDA
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
