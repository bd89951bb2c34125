"""The recording of measured tests, and the stacks behind those that exceed a limit."""

from __future__ import annotations

import gc
import inspect
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hiwater._os import native
from hiwater._os.sizes import format_size
from hiwater.contrib.pytest_plugin import stacks
from hiwater.contrib.pytest_plugin.limits import Wanted, shown
from hiwater.errors import HiwaterError, MeterUnavailable
from hiwater.meters.heap import COUNTING
from hiwater.recording.recorder import Recorder, trouble
from hiwater.recording.window import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CAPTURES = 10
"""Of so many failing tests of a process a capture is kept, so that a suite in which all tests fail does not fill the
disk."""
_LONGEST_NAME = 120
_SUMS = {"allocated", "blocks"}
"""The limits of sums. Their stacks are those of a recording that began with the test."""
_TITLES = {
    "peak": "allocated since the start, at the peak", "end": "allocated since the start, at the end",
    "allocated": "allocated in all", "blocks": "number of allocations",
}  # fmt: skip


class Evidence:
    """The recording of one process. It begins at the first measured test, goes on to the next, and ends before a
    test that is not measured. With --hiwater, it is of the whole run, and its capture is kept."""

    def __init__(self, folder: Path, worker: str, *, keeps: bool) -> None:
        self._folder = folder
        self._worker = worker
        self._keeps = keeps
        self._counts_in = 0
        """The process in which it is on; a forked child is another."""
        self._recorder: Recorder | None = None
        self._trouble = ""
        """Why there are no stacks."""
        self._window: Window | None = None
        self._phase = 0
        self._is_of_test_alone = False
        self._kept = 0

    # The recording

    def begin(self) -> None:
        """Begin to count and to record, unless it is on. Raises MeterUnavailable if the memory of tests cannot be
        measured here."""
        if self._counts_in == os.getpid():
            return
        self._trouble = self._record()
        COUNTING.open()
        self._counts_in = os.getpid()
        if native.load().heap_is_sampled():
            self.end()
            raise MeterUnavailable(
                "this process is recorded with a sample of its blocks, but the limits of tests need every block",
                "record it without --sample, or run pytest with -p no:hiwater",
            )

    def begin_run(self) -> None:
        """Begin for the whole run. Raises UsageError where that is impossible."""
        try:
            self.begin()
        except HiwaterError as error:
            raise pytest.UsageError(f"--hiwater cannot record: {error}") from None
        if self._trouble:
            self.end()
            raise pytest.UsageError(f"--hiwater cannot record: {self._trouble}")

    def begin_for_test(self) -> None:
        """Begin before a test, and fail it if its memory cannot be measured: a limit that nothing checks must not
        pass."""
        try:
            self.begin()
        except HiwaterError as error:
            pytest.fail(f"the memory of this test cannot be measured: {error}", pytrace=False)

    def end_after_test(self) -> None:
        """End before a test that is not measured."""
        if not self._keeps:
            self.end()

    def end(self) -> None:
        """Do nothing if it is off."""
        if self._counts_in != os.getpid():
            return
        self._counts_in = 0
        COUNTING.close(lingers=False)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()
            if not self._keeps:
                Path(recorder.path).unlink(missing_ok=True)

    def _record(self) -> str:
        """Begin to record, unless a recording around pytest is there. Return why that is impossible, or ""."""
        self._recorder = None
        try:
            if not self._keeps and native.load().is_recording():
                return ""
            path = f"{tempfile.gettempdir()}/hiwater-pytest-{os.getpid()}-{os.urandom(8).hex()}.hiw"
            if self._keeps:
                self._folder.mkdir(parents=True, exist_ok=True)
                path = self._path("session")
            recorder = Recorder(
                path, device_history=False, last_words="", residency_snapshots=self._keeps, notify=lambda _: None
            )
            recorder.start()
        except HiwaterError as error:
            return str(error)
        self._recorder = recorder
        return ""

    @staticmethod
    def totals() -> tuple[int, int]:
        """Bytes allocated so far, and live bytes: of use as differences."""
        return COUNTING.totals()[0], COUNTING.now()[0]

    # A test

    def begin_test(self, item: pytest.Item, wanted: Wanted) -> None:
        """Begin what has the stacks of this test. For limits that need a recording of the test alone, begin a new
        one, unless the run's is kept."""
        if wanted.leaks is not None:
            # Not after the test: what only the collector could free is leaked memory for pytest-memray, too.
            gc.collect()
        self._is_of_test_alone = False
        if (wanted.leaks is not None or _SUMS & set(wanted.limits)) and self._recorder is not None and not self._keeps:
            self.end()
            self.begin()
            self._is_of_test_alone = not self._trouble
        if self._keeps:
            self._phase = native.load().begin_scope(item.nodeid)
        self._window = self.begin_block(item)

    def begin_block(self, item: pytest.Item) -> Window | None:
        """Begin what has the stacks of this test, or of a block of it, from now on."""
        return Window(native.load(), self._path(item.nodeid)) if not self._trouble else None

    def end_test(self) -> None:
        """End the test's phase."""
        if self._phase:
            native.load().end_scope(self._phase)
            self._phase = 0

    def check(self) -> None:
        """Fail the test that ended if its recording is not complete, because its figures are not either."""
        core = native.load()
        if not core.is_complete():
            found = core.summary()
            reason = found["stop_reason"] or f"{found['lost_events']:,} events were lost"
            self.end_after_test()
            pytest.fail(f"the memory of this test could not be measured to its end: {reason}", pytrace=False)

    # Leaks

    def leaks(self, item: pytest.Item, wanted: Wanted) -> str:
        """A sentence for the stacks of a test that has ended, if there are any that leave more than its limit
        allocated."""
        least = wanted.leaks or 0
        if self._left_less_than(least):
            return ""
        whose = "own leaks" if wanted.leaks_of_this_thread else "leaks"
        try:
            found = stacks.read(self._finished(self._window), whose, least, _place(item))
        except (ValueError, HiwaterError) as error:
            return f"the leaks of the test cannot be read ({error}), so its limit could not be checked"
        leaking = []
        for one in found:
            stack = stacks.Stack(
                tuple(stacks.StackFrame(*frame) for frame in one["frames"]), one["bytes"], one["blocks"]
            )
            if wanted.leaks_filter is None or wanted.leaks_filter(stack):
                leaking.append(stack)
        if not leaking:
            return ""
        most = max(stack.bytes for stack in leaking)
        how_many = "1 stack" if len(leaking) == 1 else f"{len(leaking)} stacks"
        return f"{how_many} of the test left {format_size(least)} or more allocated, the largest {format_size(most)}"

    def _left_less_than(self, least: int) -> bool:
        """Whether a complete recording of the test alone has less than `least` live at its end. Then each of its
        stacks has, too, and none need be read, which takes half a second."""
        if not self._is_of_test_alone or self._recorder is None:
            return False
        summary = self._recorder.summary()
        return summary["live_bytes"] < least and trouble(summary) is None

    # Stacks of what exceeds a limit

    def of_test(self, exceeded: Sequence[str]) -> list[str]:
        """The lines of code behind the figures of the test that were exceeded, by the names of `limits.FIGURES`, or
        "leaks"."""
        if self._is_of_test_alone and set(exceeded) <= _SUMS:
            return self.of_window(self._window, exceeded[0])
        return self.of_window(self._window, "end" if {"kept", "leaks"} & set(exceeded) else "peak")

    def of_window(self, window: Window | None, what: str) -> list[str]:
        """The lines of code that allocated most in a window, at most ten. `what` is as in `stacks`."""
        if self._kept >= MOST_CAPTURES:
            return [f"stacks are shown for the first {MOST_CAPTURES} such tests only; run this test alone to see them"]
        try:
            path = self._finished(window)
            rows = stacks.read(path, what)
        except (ValueError, HiwaterError) as error:
            return [f"its stacks cannot be shown: {error}"]
        self._kept += 1
        lines = [_row(row, "blocks" if what == "blocks" else "peak") for row in rows]
        return [f"{_TITLES[what]}, by line of code:", *lines, f"capture: {path}; see `hiwater report`"]

    def _finished(self, window: Window | None) -> str:
        """The capture of a window. Raises ValueError if there is none."""
        if window is None:
            raise ValueError(self._trouble)
        if window.is_open:
            self._folder.mkdir(parents=True, exist_ok=True)
            window.finish()
        return str(window.summary()["path"])

    def forget_test(self) -> None:
        """A test is within its limits: delete what was written to find that out."""
        window, self._window = self._window, None
        if window is not None and not window.is_open:
            Path(window.summary()["path"]).unlink(missing_ok=True)

    def _path(self, name: str) -> str:
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-")[-_LONGEST_NAME:]
        return str(self._folder / f"{plain}{'-' * bool(self._worker)}{self._worker}.hiw")


def _row(row: dict[str, Any], figure: str) -> str:
    library = f" ({row['library']})" if row["library"] else ""
    place = f"{os.path.relpath(row['file'])}:{row['line']} in " if row["line"] else ""
    return f"  {shown(figure, row['amount']):>10}  {place}{row['function']}{library}"


def _place(item: pytest.Item) -> tuple[str, int]:
    """The file and the first line of the test's code; ("", 0) if it has none of its own."""
    code = getattr(inspect.unwrap(getattr(item, "obj", None) or _place), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None and hasattr(item, "obj") else ("", 0)
