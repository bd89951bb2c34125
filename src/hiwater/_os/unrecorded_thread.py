"""A thread of hiwater inside a recorded program."""

from __future__ import annotations

import threading

from hiwater._os.native import unrecorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class UnrecordedThread(threading.Thread):
    """A daemon thread named "hiwater". Nothing that it does is recorded, from its start to its end."""

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        """The thread calls `work` with `arguments`."""
        super().__init__(target=work, args=arguments, name="hiwater", daemon=True)

    def _bootstrap(self) -> None:  # the first Python function of a thread
        unrecorded(UnrecordedThread._run_it, self, None)

    def _run_it(self, _: None) -> None:
        super()._bootstrap()  # type: ignore[misc] # typeshed leaves it out
