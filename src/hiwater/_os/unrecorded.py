"""Work of hiwater's own inside a recorded program: nothing of it is recorded, whoever wrote what it calls."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Subject = TypeVar("Subject")
    Argument = TypeVar("Argument")
    Result = TypeVar("Result")


# The engine knows this function by its name. The arguments are two, as a tuple of any number would be allocated before the first line.
def _hiwater_own_(work: Callable[[Subject, Argument], Result], subject: Subject, argument: Argument) -> Result:
    core = sys.modules.get("hiwater._core")
    if core is None:
        return work(subject, argument)
    core.enter_own_work()
    try:
        return work(subject, argument)
    finally:
        core.leave_own_work()


do = _hiwater_own_
"""Return `work(subject, argument)`. The recording in progress, if any, leaves out what it allocates."""
