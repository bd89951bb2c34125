"""Inside the watched process: whether torch has initialised CUDA, and calls for the moment when it does.

This runs at any instruction of the program's main thread, in the middle of torch's own initialisation, too. `torch.cuda._lazy_init` holds a
plain lock while CUDA is initialised and while its queue of calls runs, and `torch.cuda._lazy_call` takes the same lock: whoever calls that from
there waits for himself for ever. So no lock of torch's is taken here. A call is appended to the queue, and then whether CUDA is ready is
asked once more: if it was not ready after the append, the queue had not been gone through, and the call will be made.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_calls: list[Callable[[], object]] = []


def is_ready(torch: Any) -> bool:
    """Whether CUDA is initialised in this process, seen from Python or only below it, as within torch's queue of calls.

    `_cuda_init` (`THCPModule_initExtension`) sets `default_generators` once the allocators exist; `is_initialized()` is true only after the
    queue, when the program may have allocated. In a child that was forked after the initialisation CUDA cannot be used.
    """
    cuda = torch.cuda
    if cuda.is_initialized():
        return True
    return bool(cuda.default_generators) and not cuda._is_in_bad_fork()


def call_when_ready(torch: Any, call: Callable[[], object]) -> None:
    """Have `call` made within torch's initialisation, before the program can allocate, unless CUDA is ready now. It must not raise."""
    if not (torch.version.cuda or torch.version.hip):
        return
    if call not in _calls:
        _calls.append(call)
    queue = torch.cuda._queued_calls
    if not any(queued is _tell for queued, _ in queue):
        queue.append((_tell, []))


def forget(call: Callable[[], object]) -> None:
    """Do not make this call any more. The entry in torch's queue stays, as another thread may be going through it."""
    if call in _calls:
        _calls.remove(call)


def _tell() -> None:
    for call in tuple(_calls):
        call()
