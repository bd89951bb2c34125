"""Inside the recorded process: the histories of GPU libraries during a recording.

This loads and initialises nothing. When the program has initialised CUDA, torch's allocator records a bounded history
with Python stacks; if the program has switched that history on already, it is used and stays on. JAX always has its
profile, which is read at the end. The histories are attached to the capture unchanged and parsed later, possibly by
another process. docs/gpu-history.md says what was tested on a GPU.
"""

from __future__ import annotations

import os
import sys

from hiwater import _registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_EVENTS = 100_000
"""The number of events in torch's ring buffer for each device; newer ones replace older ones. According to torch's
manual, an event with C++ frames takes several KB. A snapshot of 100,000 events takes about a second (pytorch
#172672: 0.7 s)."""

_active: list[DeviceHistories] = []


class DeviceHistories:
    """The histories of one recording, from `begin()` to `end()`; `collect()` may be called at any time in between."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        self._most_events = most_events
        self._torch: Any = None
        """The history of torch's allocator, once the program has loaded torch."""
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
        """Begin the history if the program has begun to use a device; return True if no further check is needed.
        Never raises."""
        if self._owner != os.getpid():
            return True
        if self._torch is None and "torch" not in sys.modules:
            return False
        try:
            if self._torch is None:
                self._torch = _registry.load(_registry.TORCH_HISTORY)(self._most_events)
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
        sources: dict[str, Callable[[], bytes | None]] = {}
        if self._torch is not None:
            sources["torch.pickle"] = self._torch.taken
        if "jax" in sys.modules:
            sources["jax.pb.gz"] = _registry.load(_registry.JAX_PROFILE)
        for name, taken in sources.items():
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
        if self._torch is None:
            return
        self._torch.forget(self.check)
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


def _complain(what: str, error: Exception) -> None:
    import warnings  # here, because a program without hiwater would not have it loaded

    text = f"hiwater: {what} ({type(error).__name__}: {error})"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        # The program turns warnings into errors; an error inside torch's queue would break its use of CUDA.
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
