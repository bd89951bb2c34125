"""Inside the watched process: have GPU libraries keep their histories while a recording runs, and hand them over when it is done.

Nothing is loaded or initialised by looking. torch's allocator is asked to keep a bounded history with Python stacks from the moment the
program has initialised CUDA; where the program has one kept already, that one is used and left on. JAX is asked at the end for what it
always knows. What comes is attached to the capture as it is, and read afterwards, by another process if need be. Not seen on a real GPU.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
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
        self._watches = False

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
            return self._begin_torch()
        except Exception as error:  # noqa: BLE001 - the program must not suffer from a history that cannot be had
            _complain("torch's allocator keeps no history", error)
            return True

    def _begin_torch(self) -> bool:
        is_on = self._torch.begin()
        if is_on and not self._watches:
            from hiwater.torch.oom_guard import WATCH

            self._watches = True
            WATCH.listen()
        return is_on

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
        if self._watches:
            self._watches = False
            sys.modules["hiwater.torch.oom_guard"].WATCH.leave()
        try:
            self._torch.end()
        except Exception as error:  # noqa: BLE001 - as above
            _complain("torch's history could not be switched off", error)


def active() -> DeviceHistories | None:
    """The histories of the recording that runs, if one does."""
    accelerators = sys.modules.get("hiwater.engine.accelerators")
    if accelerators is not None:
        accelerators.notice()  # a library may have been loaded since the recording last looked
    return _active[-1] if _active else None


class TorchHistory:
    """The history of torch's CUDA allocator (and ROCm's, which has its names), all devices together."""

    def __init__(self, most_events: int) -> None:
        self._most_events = most_events
        self._is_ours = False
        self._is_seen = False
        self._waits = False

    def wait_for_cuda(self, look: Any) -> None:
        """Where torch is loaded for CUDA and has not initialised it, have it call `look` when it does: its own queue is for that."""
        torch = _torch()
        if torch is None or self._waits or not (torch.version.cuda or torch.version.hip) or torch.cuda.is_initialized():
            return
        self._waits = True
        torch.cuda._lazy_call(lambda: look() and None)

    def begin(self) -> bool:
        """Switch the history on once CUDA is initialised, unless it is on; whether it is on now."""
        torch = _torch()
        if self._is_seen or torch is None or not torch.cuda.is_initialized():
            return self._is_seen
        self._is_seen = True
        if not _is_enabled(torch):
            torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=self._most_events
            )
            self._is_ours = True
        return True

    def taken(self) -> bytes | None:
        """The snapshot, pickled; None where there is none."""
        self.begin()
        if not self._is_seen:
            return None
        import pickle

        snapshot = _torch().cuda.memory._snapshot()
        snapshot["hiwater"] = {"most_events": self._most_events if self._is_ours else None}
        return pickle.dumps(snapshot, _PROTOCOL)

    def end(self) -> None:
        """Leave torch as it was found."""
        if self._is_ours:
            self._is_ours = False
            _torch().cuda.memory._record_memory_history(None)
        self._is_seen = False


def _torch() -> Any:
    """torch, where the program has loaded it and its CUDA part; else None."""
    torch = sys.modules.get("torch")
    if torch is None or "torch.cuda.memory" not in sys.modules:
        return None
    is_being_imported = getattr(getattr(torch, "__spec__", None), "_initializing", False)
    return None if is_being_imported else torch


def _is_enabled(torch: Any) -> bool:
    """Whether the program has a history kept. A torch that cannot tell is taken not to."""
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(asked()) if asked is not None else False


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

    warnings.warn(f"hiwater: {what} ({type(error).__name__}: {error})", RuntimeWarning, stacklevel=3)
