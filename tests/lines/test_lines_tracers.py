"""Other tools that watch lines stay as they were, and go on working, while ours are measured."""

from __future__ import annotations

import bdb
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hiwater.errors import EngineFailed
from hiwater.lines import LineProfiler
from line_recorders import RECORDERS, use_recorder
from recording import child_environment

BEFORE_312 = sys.version_info < (3, 12)


@pytest.fixture(params=RECORDERS, autouse=True)
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from use_recorder(request.param, monkeypatch)


def work(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


def calls(profiler: LineProfiler) -> list[int]:
    return [line.calls for line in profiler.results()[0].lines]


def test_a_tracer_found_there_goes_on_and_comes_back(recorder: str) -> None:
    seen: list[str] = []

    def tracer(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code is work.__code__:
            seen.append(event)
        return tracer

    found = sys.gettrace()
    profiler = LineProfiler([work])
    sys.settrace(tracer)
    try:
        with profiler:
            if recorder == "engine" or not BEFORE_312:  # in Python our own cannot stand there unseen
                assert sys.gettrace() is tracer
            work(3)
        assert sys.gettrace() is tracer
        work(1)
    finally:
        sys.settrace(found)
    assert calls(profiler) == [1, 4, 3, 1]
    assert seen.count("call") == seen.count("return") == 2
    assert seen.count("line") == 9 + 5


def test_a_tracer_of_new_threads_goes_on_and_comes_back() -> None:
    seen: list[str] = []

    def tracer(frame: FrameType, event: str, _argument: Any) -> Any:
        if frame.f_code is work.__code__:
            seen.append(event)
        return tracer

    threading.settrace(tracer)
    try:
        profiler = LineProfiler([work])
        with profiler:
            thread = threading.Thread(target=work, args=(3,))
            thread.start()
            thread.join()
        assert threading.gettrace() is tracer
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    assert calls(profiler) == [1, 4, 3, 1]
    assert seen.count("line") == 9


def test_a_debugger_stops_inside_a_measured_function() -> None:
    stops: list[int] = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            if frame.f_code is work.__code__:
                stops.append(frame.f_lineno - work.__code__.co_firstlineno)
            self.set_step()

    found = sys.gettrace()
    profiler = LineProfiler([work])
    debugger = Debugger()
    with profiler:
        debugger.runcall(work, 2)
        work(2)
    if sys.gettrace() is not found:
        sys.settrace(found)
    assert stops == [1, 2, 3, 2, 3, 2, 4]
    # On 3.11 a thread has one trace function: the debugger's took the place of ours, and its going took it out.
    assert calls(profiler) == ([] if BEFORE_312 else [2, 6, 4, 2])
    assert profiler.displaced >= 1 if BEFORE_312 else profiler.displaced == 0


@pytest.mark.skipif(BEFORE_312, reason="sys.monitoring came with 3.12")
def test_another_monitoring_tool_keeps_its_place_and_its_events() -> None:
    monitoring = sys.monitoring
    seen: list[int] = []
    free = next(number for number in (4, 3) if monitoring.get_tool(number) is None)
    monitoring.use_tool_id(free, "other")
    try:
        monitoring.register_callback(free, monitoring.events.LINE, lambda _code, line: seen.append(line))
        monitoring.set_local_events(free, work.__code__, monitoring.events.LINE)
        profiler = LineProfiler([work])
        with profiler:
            work(3)
        work(1)
        assert monitoring.get_local_events(free, work.__code__) == monitoring.events.LINE
    finally:
        monitoring.set_local_events(free, work.__code__, 0)
        monitoring.register_callback(free, monitoring.events.LINE, None)
        monitoring.free_tool_id(free)
    assert calls(profiler) == [1, 4, 3, 1]
    assert len(seen) == 9 + 5


@pytest.mark.skipif(BEFORE_312, reason="sys.monitoring came with 3.12")
def test_with_every_place_taken_there_is_one_clear_line() -> None:
    monitoring = sys.monitoring
    taken = [number for number in range(6) if monitoring.get_tool(number) is None]
    for number in taken:
        monitoring.use_tool_id(number, f"tool {number}")
    try:
        with pytest.raises(EngineFailed, match="every place for a tool"):
            LineProfiler([work]).enable()
    finally:
        for number in taken:
            monitoring.free_tool_id(number)
    profiler = LineProfiler([work])
    with profiler:
        work(1)
    assert calls(profiler) == [1, 2, 1, 1]


def test_coverage_and_ours_together(tmp_path: Path, recorder: str) -> None:
    pytest.importorskip("coverage")
    script = tmp_path / "script.py"
    no_engine = "import sys\nsys.modules['hiwater._core'] = None\n" if recorder == "python" else ""
    script.write_text(
        no_engine + "import hiwater\n@hiwater.profile\ndef f(n):\n    if n:\n        x = 1\n    else:\n        x = 2\n"
        "    return x\nf(1)\n"
    )
    run = [sys.executable, "-m", "coverage"]
    for words in (["run", "--data-file=data", "script.py"], ["report", "--data-file=data", "-m", "script.py"]):
        done = subprocess.run(
            [*run, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env=child_environment(),
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        if words[0] == "run":
            # Coverage's tracer takes the thread as soon as it is called from Python.
            if recorder == "python" and BEFORE_312:
                assert "another tracer took over" in done.stderr
            else:
                assert "x = 1" in done.stderr
    assert done.stdout.splitlines()[2].split()[-1] == ("7" if recorder == "engine" else "9"), (
        "the one line that did not run"
    )
