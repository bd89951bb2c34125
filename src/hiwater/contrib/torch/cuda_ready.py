"""Inside the recorded process: whether torch has initialised CUDA, and calls that are made when it does.

This code runs between any two instructions of the program's main thread, also during torch's initialisation.
`torch.cuda._lazy_init` holds a plain lock while it initialises CUDA and runs its queue of calls, and
`torch.cuda._lazy_call` takes the same lock: a call of it from there would deadlock. So this code takes no lock of
torch. It appends a call to the queue and then checks again whether CUDA is ready. If CUDA was not ready after the
append, torch had not yet processed the queue, and will make the call.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_calls: list[Callable[[], object]] = []


def is_ready(torch: Any) -> bool:
    """Whether CUDA is initialised in this process, also while torch still runs its queue of calls.

    `_cuda_init` (`THCPModule_initExtension`) sets `default_generators` once the allocators exist. `is_initialized()` is
    true only after the queue, when the program may already have allocated. A child that was forked after the
    initialisation cannot use CUDA.
    """
    cuda = torch.cuda
    if cuda.is_initialized():
        return True
    return bool(cuda.default_generators) and not cuda._is_in_bad_fork()


def call_when_ready(torch: Any, call: Callable[[], object]) -> None:
    """Make `call` during torch's initialisation, before the program can allocate, unless CUDA is ready now. It must
    not raise."""
    if not (torch.version.cuda or torch.version.hip):
        return
    if call not in _calls:
        _calls.append(call)
    queue = torch.cuda._queued_calls
    if not any(queued is _run_calls for queued, _ in queue):
        queue.append((_run_calls, []))


def forget(call: Callable[[], object]) -> None:
    """Do not make this call. The entry in torch's queue stays, because another thread may be reading the queue."""
    if call in _calls:
        _calls.remove(call)


def _run_calls() -> None:
    for call in tuple(_calls):
        call()
