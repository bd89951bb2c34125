"""`hiwater doctor` says what works, and one line for each thing that does not."""

from __future__ import annotations

import importlib.util
import subprocess

import pytest

from children import run_hiwater

HAS_ENGINE = importlib.util.find_spec("hiwater._core") is not None


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return run_hiwater("doctor", *words)


def test_each_finding_is_a_line_with_its_mark() -> None:
    done = doctor()
    assert done.stderr == ""
    assert all(line[:3] in {"ok ", "no ", "   "} for line in done.stdout.splitlines())
    for name in ("engine", "resident peak", "cgroup", "interpreter", "object allocator"):
        assert any(line[3:].startswith(name) for line in done.stdout.splitlines()), name


def test_quiet_shows_only_what_does_not_work() -> None:
    assert all(line.startswith("no ") for line in doctor("-q").stdout.splitlines())


@pytest.mark.skipif(HAS_ENGINE, reason="the engine is there")
def test_without_the_engine_one_line_says_so() -> None:
    done = doctor()
    assert done.returncode == 1
    assert done.stdout.startswith("no engine")
    run = run_hiwater("run", "-c", "print(1)")
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (125, "", 1)


@pytest.mark.skipif(not HAS_ENGINE, reason="built without the engine")
def test_with_the_engine_it_records_to_prove_it() -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout
    assert "ok recording" in done.stdout
