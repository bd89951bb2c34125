"""A recording that begins inside another one of the same process: a window of that one, with a capture of its own."""

from __future__ import annotations

import errno
import os

from hiwater.capture import destination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Window:
    """From its making to `finish()`. The recording around it goes on as it is."""

    def __init__(self, core: Any, path: str) -> None:
        """`core` is the native engine, `path` where the capture of the window is to be."""
        self._core = core
        self._path = path
        self._summary: dict[str, Any] | None = None
        self._start_ns = core.begin_window()

    @property
    def is_open(self) -> bool:
        """Whether it has not been finished."""
        return self._summary is None

    def finish(self) -> str:
        """Write the capture: a copy of the recording around, whose peak is the window's. Return its path. Raises CaptureUnwritable."""
        self._summary = self.summary()
        try:
            try:
                self._core.write_window(self._path, self._start_ns)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                stem, suffix = os.path.splitext(self._path)  # the recording around is being written there
                self._path = f"{stem}.window{suffix}"
                self._core.write_window(self._path, self._start_ns)
        except OSError as error:
            raise destination.explain(self._path, error) from error
        self._summary["path"] = self._path
        return self._path

    def summary(self) -> dict[str, Any]:
        """What the recording around has come to, with the allocated peak of the window."""
        if self._summary is not None:
            return dict(self._summary)
        found: dict[str, Any] = self._core.summary()
        found["path"] = self._path
        found["peak_bytes"], found["peak_blocks"] = self._core.window_peak(self._start_ns)
        return found
