"""Inside the watched process: have GPU libraries keep their histories while a recording runs, and hand them over when it is done.

Nothing is loaded or initialised by looking. torch's allocator is asked to keep a bounded history with Python stacks from the moment the
program has initialised CUDA; where the program has one kept already, that one is used and left on. JAX is asked at the end for what it
always knows. What comes is attached to the capture as it is, and read afterwards, by another process if need be. Not seen on a real GPU.
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
"""Events that torch's ring holds for each device; older ones give way. torch's manual speaks of several KB each, with C++ frames; handing
100,000 over takes it about a second (pytorch #172672: 0.7 s)."""
_PROTOCOL = 4

_active: list[DeviceHistories] = []


class DeviceHistories:
    """What is kept for one recording, from `begin()` to `end()`; `collect()` may be called at any time between."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        self._torch = TorchHistory(most_events)
        self._given: dict[str, bytes] = {}
        self._owner = 0
        self._refusals: Any = None
        """The observer of refusals, while it listens for this recording."""

    def begin(self) -> None:
        """Begin to look. Does nothing to programs that use no GPU."""
        self._owner = os.getpid()
        _active.append(self)
        self.look()

    def look(self) -> bool:
        """See whether a device has come into use since; whether there is nothing more to wait for. Never raises."""
        if self._owner != os.getpid():
            return True
        try:
            self._torch.wait_for_cuda(self.look)
            if not self._torch.is_ready():
                return False
            self._listen()
            self._torch.begin()
        except Exception as error:  # noqa: BLE001 - the program must not suffer from a history that cannot be had
            _complain("torch's allocator keeps no history", error)
        return True

    def _listen(self) -> None:
        if self._refusals is None:
            refusals = _registry.load(_registry.DEVICE_REFUSALS)
            self._refusals = refusals
            refusals.listen()

    def collect(self) -> dict[str, bytes]:
        """What there is now, by the names under which it is attached to a capture. Never raises."""
        found = dict(self._given)
        for name, taken in (("torch.pickle", self._torch.taken), ("jax.pb.gz", jax_profile)):
            try:
                content = taken()
            except Exception as error:  # noqa: BLE001 - as above
                _complain(f"no history of device memory could be had for {name}", error)
                continue
            if content is not None:
                found[name] = content
        return found

    def give(self, name: str, content: bytes) -> None:
        """Have something more attached, or the same anew."""
        self._given[name] = content

    def end(self) -> None:
        """Have torch stop, if it was begun here. Never raises."""
        if self in _active:
            _active.remove(self)
        if self._owner != os.getpid():
            return
        self._owner = 0
        cuda_ready.forget(self.look)
        if self._refusals is not None:
            self._refusals.leave()
            self._refusals = None
        try:
            self._torch.end()
        except Exception as error:  # noqa: BLE001 - as above
            _complain("torch's history could not be switched off", error)


def active() -> DeviceHistories | None:
    """The histories of the recording that runs, if one does."""
    accelerators = sys.modules.get("hiwater.recording.accelerators")
    if accelerators is not None:
        accelerators.notice()  # a library may have been loaded since the recording last looked
    return _active[-1] if _active else None


class TorchHistory:
    """The history of torch's CUDA allocator (and ROCm's, which has its names), all devices together."""

    def __init__(self, most_events: int) -> None:
        self._most_events = most_events
        self._was_tried = False
        self._is_on = False
        self._switch: HistorySwitch | None = None
        """Where the history was begun here."""

    def wait_for_cuda(self, look: Callable[[], object]) -> None:
        """Where torch is loaded for CUDA and has not initialised it, have it call `look` when it does."""
        torch = _torch()
        if torch is not None and not self._was_tried and not torch.cuda.is_initialized():
            cuda_ready.call_when_ready(torch, look)

    def is_ready(self) -> bool:
        """Whether CUDA is initialised, so that a history can be begun."""
        torch = _torch()
        return torch is not None and cuda_ready.is_ready(torch)

    def begin(self) -> None:
        """Switch the history on, unless it is on. Tries once; raises RuntimeError where this allocator keeps none."""
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
        """The snapshot, pickled; None where there is none."""
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
        """Leave torch as it was found: a history that the program has begun meanwhile goes on."""
        switch, self._switch = self._switch, None
        self._is_on = self._was_tried = False
        if switch is not None:
            switch.leave()
            if not switch.was_used:
                _torch().cuda.memory._record_memory_history(None)


def _torch() -> Any:
    """torch, where the program has loaded it and its CUDA part; else None."""
    torch = sys.modules.get("torch")
    if torch is None or "torch.cuda.memory" not in sys.modules:
        return None
    is_being_imported = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_being_imported else torch


def is_enabled(torch: Any) -> bool:
    """Whether a history is kept. Not by a torch that cannot tell, nor by the driver's or the program's own allocator, where asking raises."""
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    try:
        return bool(asked()) if asked is not None else False
    except RuntimeError:
        return False


def jax_profile() -> bytes | None:
    """JAX's profile of device memory, where the program has used a device of JAX's that is not the CPU."""
    bridge, jax = sys.modules.get("jax._src.xla_bridge"), sys.modules.get("jax")
    asked = getattr(bridge, "backends_are_initialized", None)
    if jax is None or asked is None or not asked():
        return None
    if all(device.platform == "cpu" for device in jax.local_devices()):
        return None  # its buffers are in the figures of RAM
    profile: bytes = jax.profiler.device_memory_profile()
    return profile


def _complain(what: str, error: Exception) -> None:
    import warnings  # none that a plain program would find loaded

    text = f"hiwater: {what} ({type(error).__name__}: {error})"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except (
        RuntimeWarning
    ):  # where the program makes errors of warnings; within torch's queue one would fail its use of CUDA
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
