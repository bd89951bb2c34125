"""Calls work of hiwater inside a recorded program, so that the recording leaves out everything that the work and its
callees allocate."""

from __future__ import annotations

from hiwater._os import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Subject = TypeVar("Subject")
    Argument = TypeVar("Argument")
    Result = TypeVar("Result")


# The engine recognises this function by its name. It takes two arguments, because a tuple of them would be allocated
# before the first line.
def _hiwater_own_(work: Callable[[Subject, Argument], Result], subject: Subject, argument: Argument) -> Result:
    core = native.loaded()
    if core is None:
        return work(subject, argument)
    core.enter_own_work()
    try:
        return work(subject, argument)
    finally:
        core.leave_own_work()


do = _hiwater_own_
"""Return `work(subject, argument)`. A recording in progress leaves out what it allocates."""
