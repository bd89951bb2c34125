"""The stacks behind a test that exceeds a limit, and the captures they are read from."""

from __future__ import annotations

import gc
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hiwater._os import native, unrecorded
from hiwater._os.sizes import format_size
from hiwater.contrib.pytest_plugin import stacks
from hiwater.contrib.pytest_plugin.limits import Wanted
from hiwater.errors import HiwaterError
from hiwater.recording.recorder import Recorder
from hiwater.recording.summary import trouble
from hiwater.recording.window import Window

MOST_CAPTURES = 10
"""Of so many failing tests of a process a capture is kept, so that a suite in which all tests fail does not fill the disk."""
_LONGEST_NAME = 120


class Evidence:
    """The recordings of one process: of the whole run with --hiwater, of single tests otherwise."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._worker = worker
        self._run: Recorder | None = None
        self._sample_bytes = 0
        self._test: Recorder | None = None
        self._window: Window | None = None
        self._phase = 0
        self._before: dict[tuple[Any, ...], int] = {}
        self._kept = 0

    # Recordings

    def begin_recording(self, sample_bytes: int) -> None:
        """Record this process until `end_recording()`, and sample blocks below `sample_bytes`. Raises UsageError where that is impossible."""
        self._sample_bytes = sample_bytes
        try:
            self._run = Recorder(self._path("session"), sample=sample_bytes, notify=lambda _: None)
            self._run.start()
        except HiwaterError as error:
            raise pytest.UsageError(f"--hiwater cannot record: {error}") from None

    def end_recording(self) -> None:
        """Close the capture of the run."""
        if self._run is not None:
            self._run.stop()

    def begin_test(self, item: pytest.Item, wanted: Wanted) -> None:
        """Begin what has the stacks of this test: a phase and a window of the run's recording, or a recording for a limit of leaks."""
        if self._run is not None:
            core = native.load()
            self._phase = core.begin_scope(item.nodeid)
            self._window = Window(core, self._path(item.nodeid))
        if wanted.leaks is None:
            return
        # Not after the test: what only the collector could free is leaked memory for pytest-memray, too.
        gc.collect()
        if self._run is not None:
            self._before = unrecorded.do(self._leaks_so_far, item, wanted)
        else:
            self._test = self._record(item)

    def end_test(self) -> None:
        """End it."""
        if self._test is not None:
            self._test.stop()
        if self._phase:
            native.load().end_scope(self._phase)
            self._phase = 0

    def abandon_test(self) -> None:
        """End it for a test that failed by itself."""
        self.end_test()
        self.discard()

    def discard(self) -> None:
        """Forget what belongs to a test that is within its limits."""
        if self._test is not None:
            Path(self._test.path).unlink(missing_ok=True)
        self._test = self._window = None

    def _record(self, item: pytest.Item) -> Recorder:
        recorder = Recorder(self._path(item.nodeid), device_history=False, last_words="", notify=lambda _: None)
        recorder.start()
        return recorder

    def _path(self, name: str) -> str:
        self._folder.mkdir(parents=True, exist_ok=True)
        plain = re.sub(r"[^\w.-]+", "-", name).strip("-")[-_LONGEST_NAME:]
        return str(self._folder / f"{plain}{'-' * bool(self._worker)}{self._worker}.hiw")

    # Leaks

    def leaks(self, item: pytest.Item, wanted: Wanted) -> list[str]:
        """A sentence for the stacks of a test that has ended and that leave more than its limit allocated."""
        least = wanted.leaks or 0
        if self._left_less_than(least):
            return []
        try:
            found = stacks.read(self._finished(), _whose_leaks(wanted), 0 if self._before else least, _place(item))
        except (ValueError, HiwaterError) as error:
            return [f"the leaks of the test cannot be read ({error}), so its limit could not be checked"]
        leaking = []
        for one in found:
            size = one["bytes"] - self._before.get(_key(one), 0)
            stack = stacks.Stack(tuple(stacks.StackFrame(*frame) for frame in one["frames"]), size, one["blocks"])
            if size >= least and (wanted.leaks_filter is None or wanted.leaks_filter(stack)):
                leaking.append(stack)
        self._before = {}
        if not leaking:
            return []
        most = max(stack.bytes for stack in leaking)
        how_many = "1 stack" if len(leaking) == 1 else f"{len(leaking)} stacks"
        return [f"{how_many} of the test left {format_size(least)} or more allocated, the largest {format_size(most)}"]

    def _left_less_than(self, least: int) -> bool:
        """Whether a complete recording of the test alone has less than `least` live at its end. Then each of its stacks has, too, and
        none need be read, which takes half a second."""
        if self._test is None:
            return False
        summary = self._test.summary()
        return summary["live_bytes"] < least and trouble(summary) is None

    def _leaks_so_far(self, item: pytest.Item, wanted: Wanted) -> dict[tuple[Any, ...], int]:
        assert self._run is not None
        path = self._run.snapshot(self._path(f"{item.nodeid}-before"))
        try:
            return {_key(one): one["bytes"] for one in stacks.read(path, _whose_leaks(wanted), 0, _place(item))}
        finally:
            os.unlink(path)

    # Stacks of a failing test

    def of(self, item: pytest.Item, wanted: Wanted, moment: str) -> list[str]:
        """The lines of code that hold most, at most ten, and where they come from."""
        if self._kept >= MOST_CAPTURES:
            self.discard()
            return [f"stacks are shown for the first {MOST_CAPTURES} such tests only; run this test alone to see them"]
        throughout = self._run is not None
        if not throughout and self._test is None and not wanted.rerun:
            return ["for its stacks, run it with --hiwater, or mark it hiwater(rerun=True) if it may run twice"]
        try:
            note = "recorded throughout (--hiwater)" if throughout else "recorded while the test ran for its leaks"
            if not throughout and self._test is None:
                note = self._run_again(item)
            if throughout and self._sample_bytes:
                note += f", estimated from a sample of the blocks below {format_size(self._sample_bytes)} (--hiwater-sample 0: every block)"
            path = self._finished()
            rows = stacks.read(path, moment, 0, _place(item) if throughout else ("", 0))
        except (ValueError, HiwaterError) as error:
            return [f"its stacks cannot be shown: {error}"]
        self._kept += 1
        self._test = self._window = None
        when = "at the end" if moment == "end" else "at the peak"
        return [
            f"allocated {when}, by line of code; stacks were {note}:",
            *map(_row, rows),
            f"capture: {path}; see `hiwater report`",
        ]

    def _run_again(self, item: pytest.Item) -> str:
        self._test = self._record(item)
        note = "recorded in a second run of the test"
        try:
            item.runtest()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            note += f", which ended with {type(error).__name__}"
        finally:
            gc.collect()
            self._test.stop()
        return note

    def _finished(self) -> str:
        if self._test is not None:
            return self._test.path
        assert self._window is not None
        if self._window.is_open:
            self._window.finish()
        return str(self._window.summary()["path"])


def _whose_leaks(wanted: Wanted) -> str:
    return "own leaks" if wanted.leaks_of_this_thread else "leaks"


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(map(tuple, row["frames"]))


def _row(row: dict[str, Any]) -> str:
    library = f" ({row['library']})" if row["library"] else ""
    place = f"{os.path.relpath(row['file'])}:{row['line']} in " if row["line"] else ""
    return f"  {format_size(row['bytes']):>10}  {place}{row['function']}{library}"


def _place(item: pytest.Item) -> tuple[str, int]:
    """The file and the first line of the test's code; ("", 0) if it has none of its own."""
    code = getattr(inspect.unwrap(getattr(item, "obj", None) or _place), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None and hasattr(item, "obj") else ("", 0)
