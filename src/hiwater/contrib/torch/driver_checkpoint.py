"""The NVIDIA driver's checkpoint of a process: all its memory on the card, with the context, is moved to RAM.

The process checkpoints itself, which the driver API allows (CUDA 12.8, driver 570 and later). Tested only with doubles of the API, not
yet on a real card. Between `take()` and `restore()` every call of CUDA blocks, also the destructor of a tensor.
"""

from __future__ import annotations

import importlib
import os
import sys

from hiwater.errors import CourtesyFailed, CourtesyUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, Self

_NEEDED_DRIVER = 12080
_LOCK_TIMEOUT_MS = 10_000
_REMEDY = "use Courtesy() without driver=True, which moves tensors and leaves the context"


class DriverCheckpoint:
    """The four calls in their order: lock and checkpoint, later restore and unlock."""

    def __init__(self, driver: Any, pid: int) -> None:
        """`driver` is the module cuda.bindings.driver, or a double of it."""
        self._driver = driver
        self._pid = pid
        self._is_taken = False

    @classmethod
    def of_this_process(cls) -> Self:
        """Raises CourtesyUnavailable, with the reason, if this cannot work."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            _refuse("this process has no CUDA context, so the driver has nothing to give back")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            _refuse("this process is one of a group (torch.distributed): checkpoints of such hang or fail")
        try:
            driver = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            _refuse(f"cuda-bindings, which speaks to the driver, cannot be used ({error})")
        if not hasattr(driver, "cuCheckpointProcessLock"):
            _refuse("this cuda-bindings is older than 12.8 and knows no checkpoint")
        try:
            error_code, version = driver.cuDriverGetVersion()
        except RuntimeError as error:
            _refuse(f"the driver cannot be asked ({str(error).partition(chr(10))[0]})")
        if int(error_code) != 0 or int(version) < _NEEDED_DRIVER:
            _refuse("the NVIDIA driver is older than 570 (CUDA 12.8) and has no checkpoint")
        return cls(driver, os.getpid())

    def take(self) -> None:
        """Lock and checkpoint. Raises CourtesyUnavailable; then the process continues as before."""
        arguments = self._driver.CUcheckpointLockArgs()
        arguments.timeoutMs = _LOCK_TIMEOUT_MS
        self._call("Lock", arguments, CourtesyUnavailable, _REMEDY)
        try:
            self._call("Checkpoint", None, CourtesyUnavailable, _REMEDY)
        except CourtesyUnavailable:
            self._call("Unlock", None, CourtesyFailed, "end the process: its CUDA calls block")
            raise
        self._is_taken = True

    def restore(self) -> None:
        """Restore and unlock. Raises CourtesyFailed if the driver cannot; then it may be called again."""
        if not self._is_taken:
            return
        again = "free memory on the card and call restore() again"
        self._call("Restore", None, CourtesyFailed, again)
        self._is_taken = False
        self._call("Unlock", None, CourtesyFailed, "end the process: its CUDA calls block")

    def _call(self, verb: str, arguments: Any, failure: type[Exception], remedy: str) -> None:
        try:
            (code,) = getattr(self._driver, f"cuCheckpointProcess{verb}")(self._pid, arguments)
        except RuntimeError as error:
            raise failure(f"the driver has no {verb.lower()} for checkpoints ({error})", remedy) from error
        if int(code) != 0:
            raise failure(f"the driver answered {getattr(code, 'name', code)} to {verb.lower()}", remedy)


def _refuse(problem: str) -> NoReturn:
    raise CourtesyUnavailable(problem, _REMEDY)
