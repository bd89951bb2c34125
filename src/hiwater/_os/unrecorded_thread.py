"""A thread of hiwater's own inside a recorded program."""

from __future__ import annotations

import threading

from hiwater._os import unrecorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class OwnThread(threading.Thread):
    """A daemon thread named "hiwater"; nothing that it does is recorded, its own beginning and end included."""

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        """`work` is called with `arguments` in the thread."""
        super().__init__(target=work, args=arguments, name="hiwater", daemon=True)

    def _bootstrap(self) -> None:  # the first Python function of a thread
        unrecorded.do(OwnThread._run_it, self, None)

    def _run_it(self, _: None) -> None:
        super()._bootstrap()  # type: ignore[misc] # typeshed leaves it out
