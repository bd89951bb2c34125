"""What a recording does for accelerators, from the moment that the program has loaded a library that uses one; until then nothing of it
is even loaded."""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater.recording.imports_under_way import is_import_under_way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.recording.device_histories import DeviceHistories
    from hiwater.recording.device_sampler import DeviceSampler

_waiting: list[Accelerators] = []


class Accelerators:
    """The devices of one recording, from `begin()` to `finish()`, and the histories that their libraries keep, until `end()`. `core` is
    the native engine."""

    def __init__(self, core: Any, *, histories: bool) -> None:
        self._core = core
        self._wants_histories = histories
        self._histories: DeviceHistories | None = None
        self._sampler: DeviceSampler | None = None

    def prepare(self) -> None:
        """Before the recording: what the program's libraries take to begin is then not in it."""
        if self._is_library_loaded():
            self._begin_histories()

    def begin(self) -> None:
        """Measure devices in use from now on, and others when they come into use."""
        if self._is_library_loaded():
            self._begin_sampler(late=False)
            return
        _waiting.append(self)
        self._core.on_device_library(self.come)

    def come(self) -> bool:
        """Begin when a library has been loaded since; whether there is no more need to be asked."""
        if self._sampler is not None:
            return True
        is_time = self._is_library_loaded() and not is_import_under_way(self._core.DEVICE_LIBRARIES)
        return is_time and self._begin_late()

    def _begin_late(self) -> bool:
        self._leave_waiting()
        self._begin_histories()
        return self._begin_sampler(late=True)

    def finish(self) -> None:
        """Take the last figures: the recording is about to stop."""
        if self._sampler is None and self._is_library_loaded():
            self._begin_late()
        if self._sampler is not None:
            self._sampler.finish()
        else:
            self._leave_waiting()
            self._core.on_device_library(None)

    def attach(self, path: str) -> None:
        """Put what libraries know of their memory beside the finished capture at `path`. A capture without it is no failure."""
        found = self._histories.collect() if self._histories is not None else {}
        if not found:
            return
        from hiwater.capture import attachments

        try:
            attachments.append(path, found)
        except hiwater.errors.CaptureUnwritable as error:
            import warnings

            warnings.warn(f"hiwater: {error}", RuntimeWarning, stacklevel=4)

    def end(self) -> None:
        """Have libraries stop what was begun here."""
        self._leave_waiting()
        if self._histories is not None:
            self._histories.end()
            self._histories = None

    def summary(self) -> dict[str, Any]:
        """For the recording's summary: the devices with their peaks, and why they are not sampled any more, if so."""
        if self._sampler is None:
            return {"devices": [], "device_trouble": "", "driver_trouble": ""}
        sampler = self._sampler
        return {
            "devices": sampler.summary(),
            "device_trouble": sampler.trouble,
            "driver_trouble": sampler.driver_trouble,
        }

    def _is_library_loaded(self) -> bool:
        return any(name in sys.modules for name in self._core.DEVICE_LIBRARIES)

    def _begin_histories(self) -> None:
        if not self._wants_histories or self._histories is not None:
            return
        from hiwater.recording.device_histories import DeviceHistories

        self._histories = DeviceHistories()
        self._histories.begin()

    def _begin_sampler(self, *, late: bool) -> bool:
        from hiwater.recording.device_sampler import DeviceSampler

        self._sampler = DeviceSampler(self._core, self._histories.look if self._histories is not None else None)
        return self._sampler.begin(late=late)

    def _leave_waiting(self) -> None:
        if self in _waiting:
            _waiting.remove(self)


def notice() -> None:
    """Have the recording of this process, if there is one, see now what libraries are loaded, and not at its next look."""
    for waiting in tuple(_waiting):
        waiting.come()


def _forget_in_child() -> None:
    _waiting.clear()


os.register_at_fork(after_in_child=_forget_in_child)
