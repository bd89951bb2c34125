"""Whether the program has switched torch's history on or off since we switched it on: a history of the program must not
end with ours.

torch says whether it records a history, but not who began it. All of its Python functions look up two functions of
`torch._C` at each call. While our history is on, our wrappers replace these two.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NAMES = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class HistorySwitch:
    """Notes uses of the switch from now on until `leave()`. `module` is `torch._C`."""

    def __init__(self, module: Any) -> None:
        self.was_used = False
        """Whether the program has switched the history on or off."""
        self.was_ended = False
        """Whether it has switched the history off, which drops all events up to then."""
        self._module = module
        self._theirs = {name: getattr(module, name) for name in _NAMES if hasattr(module, name)}
        self._ours = {name: self._standing_in(theirs) for name, theirs in self._theirs.items()}
        for name, ours in self._ours.items():
            setattr(module, name, ours)

    def leave(self) -> None:
        """Restore torch's functions. If other wrappers were put around ours, ours stay and only call the originals."""
        for name, ours in self._ours.items():
            if getattr(self._module, name, None) is ours:
                setattr(self._module, name, self._theirs[name])

    def _standing_in(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        def record_memory_history(enabled: Any, *rest: Any, **named: Any) -> Any:
            result = theirs(enabled, *rest, **named)
            self.was_used = True
            self.was_ended = self.was_ended or not enabled
            return result

        return record_memory_history
