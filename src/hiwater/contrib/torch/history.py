"""Inside the recorded process: the history of torch's CUDA allocator during a recording.
`recording.device_histories` uses it."""

from __future__ import annotations

import sys

from hiwater.contrib.torch import cuda_ready
from hiwater.contrib.torch.history_switch import HistorySwitch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PROTOCOL = 4


class TorchHistory:
    """The history of torch's CUDA allocator (and of ROCm's, which uses the same names), for all devices."""

    def __init__(self, most_events: int) -> None:
        self._most_events = most_events
        self._was_tried = False
        self._is_on = False
        self._switch: HistorySwitch | None = None
        """Set if the history was begun here."""

    def wait_for_cuda(self, check: Callable[[], object]) -> None:
        """If torch is loaded with CUDA and has not initialised it, register `check` as a call for that time."""
        torch = _torch()
        if torch is not None and not self._was_tried and not torch.cuda.is_initialized():
            cuda_ready.call_when_ready(torch, check)

    def forget(self, check: Callable[[], object]) -> None:
        """Remove the registered call."""
        cuda_ready.forget(check)

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
    """The module torch, if its CUDA part is complete, which may be before torch is; else None."""
    torch, cuda = sys.modules.get("torch"), sys.modules.get("torch.cuda")
    if torch is None or cuda is None or "torch.cuda.memory" not in sys.modules:
        return None
    is_being_imported = getattr(getattr(cuda, "__spec__", None), "_initializing", False)
    # An import puts the module into its package at its very end.
    return torch if not is_being_imported and torch.__dict__.get("cuda") is cuda else None


def is_enabled(torch: Any) -> bool:
    """Whether torch records a history. False for a torch without this function, and for the driver's or a pluggable
    allocator, which raise."""
    is_history_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    try:
        return bool(is_history_enabled()) if is_history_enabled is not None else False
    except RuntimeError:
        return False
