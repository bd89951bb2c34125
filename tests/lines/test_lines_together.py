"""Lines beside recordings, forks, threads that come and go, and against a model of what they should say."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import hiwater
from hiwater.analysis.lines import annotate
from hiwater.lines import LineProfiler
from recording import child_environment, needs_engine, rounds

pytestmark = needs_engine


def program(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, *words, "program.py"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300, env=child_environment(),
    )  # fmt: skip


MARKED = """
    import hiwater
    @hiwater.profile
    def f(n):
        kept = bytearray(n)
        return kept
    held = f(3 << 20)
    """


def test_marked_functions_in_a_recorded_program(tmp_path: Path) -> None:
    done = program(tmp_path, MARKED, "-m", "hiwater", "run", "-o", "run.hiw")
    assert done.returncode == 0
    assert "3.0 MiB" in done.stderr and "capture run.hiw" in done.stderr
    alone = program(tmp_path, MARKED.replace("@hiwater.profile", ""), "-m", "hiwater", "run", "-o", "plain.hiw")
    assert alone.returncode == 0
    for name in ("run.hiw", "plain.hiw"):
        read = hiwater.open(tmp_path / name)
        lines = {line.line: line for line in annotate(read.peak, read.end)[0].lines}
        assert lines[5].bytes == pytest.approx(3 << 20, abs=1000)


def test_a_recording_that_begins_and_ends_while_lines_are_measured(tmp_path: Path) -> None:
    done = program(
        tmp_path,
        """
        import hiwater
        from hiwater.lines import LineProfiler
        def f():
            block = bytearray(1 << 20)
            return block
        with LineProfiler([f]) as profiler:
            before = f()
            with hiwater.record("run.hiw"):
                during = f()
            after = f()
        first, last = profiler.results()[0].lines
        assert first.calls == 3 and abs(first.kept_bytes - (3 << 20)) < 2000, first
        assert abs(first.peak_bytes - (1 << 20)) < 1000
        from hiwater import _core
        _core.lines_self_check()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_inside_a_measured_function(tmp_path: Path) -> None:
    done = program(
        tmp_path,
        """
        import os
        from hiwater.lines import LineProfiler
        def f():
            if os.fork() == 0:
                block = bytearray(1 << 20)
                total = len(block)
                os._exit(0 if total else 1)
            _, status = os.wait()
            block = bytearray(2 << 20)
            return status, len(block)
        with LineProfiler([f]) as profiler:
            assert f() == (0, 2 << 20)
        lines = {line.line: line for line in profiler.results()[0].lines}
        assert 6 not in lines and abs(lines[10].kept_bytes - (2 << 20)) < 1000
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_and_profilers_that_come_and_go() -> None:
    def work(depth: int) -> int:
        blocks = [bytearray(10_000) for _ in range(5)]
        return len(blocks) + (work(depth - 1) if depth else 0)

    stop = threading.Event()

    def keep_working() -> None:
        while not stop.is_set():
            work(5)

    threads = [threading.Thread(target=keep_working) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(rounds(60)):
            profiler = LineProfiler([work], resident=bool(number % 2))
            with profiler:
                work(3)
                short = threading.Thread(target=work, args=(2,))
                short.start()
                short.join()
            first = profiler.results()[0].lines[0]
            assert first.calls >= 4 + 3
            assert first.peak_bytes < 100_000, "another thread's memory, or another call's"
            if number % 3 == 0:
                del profiler
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Model:
    """What lines should say of random code: a tree of calls, each line of which allocates, frees, calls or raises."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.held: list[Any] = []
        self.live = self.asked = 0
        self.expected: dict[str, list[int]] = {}  # line: calls, kept, asked, peak above its start
        self.marks: list[int] = []

    def take(self, size: int) -> None:
        self.held.append(bytearray(size))
        self.live += size
        self.asked += size
        self.marks = [max(mark, self.live) for mark in self.marks]

    def free(self) -> None:
        if self.held:
            self.live -= len(self.held.pop(self.random.randrange(len(self.held))))

    def begin(self) -> tuple[int, int]:
        self.marks.append(self.live)
        return self.live, self.asked

    def end(self, line: str, start: tuple[int, int]) -> None:
        figures = self.expected.setdefault(line, [0, 0, 0, 0])
        figures[0] += 1
        figures[1] += self.live - start[0]
        figures[2] += self.asked - start[1]
        figures[3] = max(figures[3], self.marks.pop() - start[0])


MODEL_CODE = """
def step(model, depth):
    start = model.begin(); act(model, depth); model.end("act", start)
def act(model, depth):
    for _ in range(model.random.randrange(6)):
        choice = model.random.random()
        if choice < 0.5:
            model.take(model.random.choice([100_000, 1_000_000, 5_000_000]))
        elif choice < 0.8:
            model.free()
        elif choice < 0.9:
            other = generate(model)
            next(other)
            model.take(300_000)
            next(other, None)
        else:
            try:
                fail(model)
            except KeyError:
                pass
def generate(model):
    start = model.begin(); model.take(2_000_000); model.free(); model.end("generate", start); yield
    start = model.begin(); model.take(200_000); model.end("resumed", start)
def fail(model):
    start = model.begin(); model.take(400_000); model.end("fail", start); raise KeyError
"""


NAMES = ("act", "generate", "resumed", "fail")


@pytest.mark.parametrize("resident", [True, False])
def test_random_code_against_a_model(resident: bool) -> None:
    names: dict[str, Any] = {}
    exec(compile(MODEL_CODE, "<model>", "exec"), names)
    source = MODEL_CODE.splitlines()
    line_of = {name: next(i for i, line in enumerate(source, 1) if f'end("{name}"' in line) for name in NAMES}
    for seed in range(rounds(120)):
        model = Model(seed)
        profiler = LineProfiler([names["step"], names["generate"], names["fail"]], resident=resident)
        with profiler:
            for _ in range(model.random.randrange(1, 8)):
                names["step"](model, 0)
        got = {line.line: line for function in profiler.results() for line in function.lines}
        for name, (calls, kept, asked, peak) in model.expected.items():
            line = got[line_of[name]]
            slack = 3_000 * (calls + 5)  # frames, the model's own lists, ints
            assert line.calls == calls, (seed, name)
            assert abs(line.kept_bytes - kept) < slack, (seed, name, line, kept)
            assert 0 <= line.allocated_bytes - asked < 4 * slack, (seed, name, line, asked)
            assert abs(line.peak_bytes - peak) < slack, (seed, name, line, peak)
