"""A recording that begins inside another one of the same process: a window of the outer one, with a separate
capture."""

from __future__ import annotations

import errno
import os

from hiwater._os import destination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Window:
    """A window from its creation to `finish()`. The outer recording continues unchanged."""

    def __init__(self, core: Any, path: str) -> None:
        """`core` is the native engine, `path` the path for the capture of the window."""
        self._core = core
        self._path = path
        self._summary: dict[str, Any] | None = None
        self._start_ns = core.begin_window()

    @property
    def is_open(self) -> bool:
        """Whether it has not yet been finished."""
        return self._summary is None

    def finish(self) -> str:
        """Write the capture: a copy of the outer recording with the peak of the window. Return its path. Raises
        CaptureUnwritable."""
        self._summary = self.summary()
        try:
            try:
                self._core.write_window(self._path, self._start_ns)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                stem, suffix = os.path.splitext(self._path)  # the outer recording is being written there
                self._path = f"{stem}.window{suffix}"
                self._core.write_window(self._path, self._start_ns)
        except OSError as error:
            raise destination.explain(self._path, error) from error
        self._summary["path"] = self._path
        return self._path

    def summary(self) -> dict[str, Any]:
        """The figures of the outer recording, with the allocated peak of the window."""
        if self._summary is not None:
            return dict(self._summary)
        found: dict[str, Any] = self._core.summary()
        found["path"] = self._path
        found["peak_bytes"], found["peak_blocks"] = self._core.window_peak(self._start_ns)
        return found
