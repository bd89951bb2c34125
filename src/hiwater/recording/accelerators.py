"""A recording's work for accelerators. It begins when the program has loaded a library that uses one; until then,
none of it is loaded."""

from __future__ import annotations

import _thread
import os
import sys

from hiwater._os import code_overhead
from hiwater.recording.imports_under_way import is_import_under_way, is_loop_under_way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from hiwater.recording.device_histories import DeviceHistories
    from hiwater.recording.device_sampler import DeviceSampler

    Result = TypeVar("Result")

_PATIENCE_SECONDS = 2.0
_MOST_POSTPONED = 10
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # the second is WSL's
_waiting: list[Accelerators] = []
_is_loaded = False


class Accelerators:
    """The devices of one recording, from `begin()` to `finish()`, and the histories of their libraries, until
    `end()`. `core` is the native engine. With `counts_code`, what this loads is counted as hiwater's overhead."""

    def __init__(self, core: Any, *, histories: bool, counts_code: bool) -> None:
        self._core = core
        self._counts_code = counts_code
        self.process = os.getpid()
        self._wants_histories = histories
        self._histories: DeviceHistories | None = None
        self._sampler: DeviceSampler | None = None
        self._postponed = 0
        # Locked by the call that starts the sampler, and for ever once the recording ends. The engine's check may come
        # in the middle of another start, and threads may start at the same time.
        self._start = _thread.allocate_lock()

    def prepare(self) -> None:
        """Begin histories before the recording, so that it does not include what the libraries allocate for them."""
        if self._is_library_loaded():
            self._begin_histories()

    def begin(self) -> None:
        """Measure devices in use from now on, and others once the program begins to use them."""
        if self._is_library_loaded():
            self._begin_sampler(late=False)
            return
        _waiting.append(self)
        self._core.on_device_library(self.start_if_loaded)

    def start_if_loaded(self) -> bool | None:
        """Begin if a library has been loaded since; return True if no further call is needed, and None if one is
        needed soon, because the program is importing the library."""
        if not self._start.acquire(blocking=False):
            return False
        try:
            return self._start_if_ready()
        finally:
            self._start.release()

    def _start_if_ready(self) -> bool | None:
        if self._sampler is not None:
            return True
        if not self._is_library_loaded():
            return False
        if not is_import_under_way(self._core.DEVICE_LIBRARIES):
            return False if self._is_to_wait_for_a_loop() else self._begin_late()
        # The program is importing a library. It may allocate right after that, before a next check. Histories need
        # nothing of a library that is not complete, and wait for CUDA in torch's own queue.
        if not is_import_under_way(()):
            if not _is_loaded:  # this comes every 20 ms, and what is loaded is measured
                self._loading(_load)
            self._begin_histories()
        return None

    def _is_to_wait_for_a_loop(self) -> bool:
        """Whether a loop over `sys.modules` is under way, which imports would break. A generator that is never ended
        must not hold us up for ever."""
        self._postponed += 1
        return not _is_loaded and self._postponed <= _MOST_POSTPONED and is_loop_under_way()

    def _begin_late(self) -> bool:
        self._leave_waiting()
        return self._loading(self._begin_both)

    def _begin_both(self) -> bool:
        self._begin_histories()
        return self._begin_sampler(late=True)

    def _loading(self, work: Callable[[], Result]) -> Result:
        """Return `work()`, which may load modules of hiwater: what becomes resident by it is none of the program's."""
        if not self._counts_code:
            return work()
        before = code_overhead.anonymous_bytes()
        result = work()
        self._core.note_loaded_code(max(0, code_overhead.anonymous_bytes() - before))
        return result

    def finish(self) -> None:
        """Take the last figures, before the recording stops."""
        self._core.on_device_library(None)
        has_start = self._start.acquire(timeout=_PATIENCE_SECONDS)
        if has_start and self._sampler is None and self._is_library_loaded():
            self._begin_late()
        if self._sampler is not None:
            self._sampler.finish()
        self._leave_waiting()

    def histories(self) -> dict[str, bytes]:
        """The histories of libraries, to be attached to the finished capture."""
        return self._histories.collect() if self._histories is not None else {}

    def end(self) -> None:
        """Stop the histories that were begun here."""
        self._leave_waiting()
        if self._histories is not None:
            self._histories.end()
            self._histories = None

    def summary(self) -> dict[str, Any]:
        """For the recording's summary: the devices with their peaks, and why sampling stopped, if it did."""
        sampler = self._sampler
        if sampler is None:
            return {"devices": [], "device_trouble": "", "driver_trouble": ""}
        troubles = {"device_trouble": sampler.trouble, "driver_trouble": sampler.driver_trouble}
        return {"devices": sampler.summary(), **troubles}

    def _is_library_loaded(self) -> bool:
        return any(name in sys.modules for name in self._core.DEVICE_LIBRARIES)

    def _begin_histories(self) -> None:
        if not self._wants_histories:
            return
        if self._histories is not None:
            self._histories.check()
            return
        from hiwater.recording.device_histories import DeviceHistories

        self._histories = DeviceHistories()
        self._histories.begin()

    def _begin_sampler(self, *, late: bool) -> bool:
        from hiwater.recording.device_sampler import DeviceSampler

        self._sampler = DeviceSampler(self._core, self._histories.check if self._histories is not None else None)
        return self._sampler.begin(late=late)

    def _leave_waiting(self) -> None:
        if self in _waiting:
            _waiting.remove(self)


def _load() -> None:
    """Import all that devices need, while the program imports modules anyway. Later it may be in a loop over
    `sys.modules`."""
    global _is_loaded  # noqa: PLW0603 - a module is imported once
    _is_loaded = True
    from hiwater import _registry
    from hiwater.meters.devices import device_meter, nvml, reconcile  # noqa: F401 - loaded
    from hiwater.recording import device_histories, device_sampler  # noqa: F401 - loaded
    from hiwater.scopes import manager  # noqa: F401 - loaded

    entries = [home for name, home in _registry.DEVICE_LIBRARIES.items() if name in sys.modules]
    if "torch" in sys.modules:
        entries += [_registry.TORCH_HISTORY, _registry.DEVICE_REFUSALS]
    for entry in entries:
        _registry.load(entry)
    if not any(map(os.path.exists, _DRIVERS)):
        return
    try:  # noqa: SIM105 - contextlib would be loaded in every recorded program
        import pynvml  # noqa: F401 - loaded; the extra `gpu`
    except ImportError:
        pass


def check_now() -> None:
    """Have the recording of this process, if any, check now which libraries are loaded, instead of at its next
    check."""
    for waiting in tuple(_waiting):
        if waiting.process == os.getpid():  # none of a forked child's
            waiting.start_if_loaded()
