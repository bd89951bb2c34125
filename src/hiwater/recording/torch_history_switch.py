"""Whether the program has used torch's switch of the history since we switched it on: what it began is not ours to end.

torch tells that a history is kept, and not for whom. All of its Python functions come through two of `torch._C`, looked up at each call;
while a history of ours is kept, ours stand in those and call theirs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NAMES = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class HistorySwitch:
    """Watches the switch from now on until `leave()`. `module` is `torch._C`."""

    def __init__(self, module: Any) -> None:
        self.was_used = False
        """Whether the program has switched the history on or off."""
        self.was_ended = False
        """Whether it has switched it off, which forgets all events up to then."""
        self._module = module
        self._theirs = {name: getattr(module, name) for name in _NAMES if hasattr(module, name)}
        self._ours = {name: self._standing_in(theirs) for name, theirs in self._theirs.items()}
        for name, ours in self._ours.items():
            setattr(module, name, ours)

    def leave(self) -> None:
        """Give torch its functions back. Where somebody has put theirs over ours, ours stay below and only call on."""
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
