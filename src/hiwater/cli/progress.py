"""A line on the terminal while work takes longer than a second, removed when it is done."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

_PATIENCE_SECONDS = 1.0


@contextmanager
def shown(work: str) -> Iterator[None]:
    """Show `work` on stderr while the block runs."""
    line = _Line(work)
    try:
        yield
    finally:
        line.end()


@contextmanager
def shown_until_output(work: str, output: TextIO) -> Iterator[TextIO]:
    """The same, and yield the stream to write `output` to: if that is a terminal, too, the line is removed before
    the first character appears."""
    line = _Line(work)
    try:
        yield cast("TextIO", _Output(output, line)) if output.isatty() else output
    finally:
        line.end()


def is_shown() -> bool:
    """Whether progress is shown: stderr is a terminal that can remove a line, and this is no CI job."""
    stream = sys.stderr
    return stream is not None and stream.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


class _Line:
    """The line. It appears a second after it is made."""

    def __init__(self, work: str) -> None:
        self._work = work
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._has_ended = False
        self._progress: Progress | None = None
        self._timer = threading.Timer(_PATIENCE_SECONDS, self._begin)
        if is_shown():
            # An interpreter that is ending, as after `hiwater run --format`, starts no thread.
            with suppress(RuntimeError):
                self._timer.start()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._has_ended:
                return
            self._progress = Progress(
                SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn(),
                console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
                get_time=time.monotonic,
            )  # fmt: skip
            self._progress.add_task(self._work, total=None)
            self._progress.tasks[0].start_time = self._began
            with suppress(RuntimeError):  # the same: it has a thread of its own
                self._progress.start()

    def end(self) -> None:
        """Remove the line, and show none from now on."""
        self._timer.cancel()
        with self._lock:
            self._has_ended = True
            if self._progress is not None:
                self._progress.stop()
                self._progress = None


class _Output:
    """A terminal whose first output removes the line."""

    def __init__(self, stream: TextIO, line: _Line) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        self._line.end()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
