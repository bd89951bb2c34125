"""Jobs of many processes: a report needs memory for the captures that it looks at, not for all of them, and says the
same as with all in memory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

import hiwater
from hiwater.analysis import whole_run
from hiwater.capture import at_once, run
from hiwater.capture.in_memory import MOST_BYTES, TablesInMemory
from hiwater.cli import main
from hiwater.errors import CorruptCapture
from large_captures import of_worker
from peak_memory import peak_of_command

STACKS = 40_000
FORMATS = ("text", "json", "html", "markdown", "csv", "speedscope", "collapsed", "table")
MOST_FOR_ONE_MORE = 4_000_000  # bytes; the tables of one take 8.4 MB, and what is computed from them twice as much
MINUTES = 5 * 60


def job(folder: Path, workers: int, stacks: int) -> Path:
    """The folder of a job with so many captures."""
    folder.mkdir()
    for number in range(workers):
        (folder / f"{number:04}.hiw").write_bytes(of_worker(number, stacks))
    return folder


def bounded(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    monkeypatch.setattr(run, "TablesInMemory", partial(TablesInMemory, most_bytes))


@pytest.mark.grid
@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_a_report_says_the_same_when_it_reads_tables_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, is_merged: bool
) -> None:
    place = job(tmp_path / "job", 12, 30)
    if is_merged:
        assert main(["merge", "-o", str(tmp_path / "job.hiw"), str(place)]) == 0
        place = tmp_path / "job.hiw"
    said = []
    for most in (MOST_BYTES, 1):
        bounded(monkeypatch, most)
        output = tmp_path / f"{most}.out"
        assert main(["report", str(place), "--format", name, "-o", str(output)]) == 0
        said.append(output.read_bytes())
    assert said[0] == said[1] and said[0]


def test_only_the_captures_that_were_read_last_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = job(tmp_path / "job", 6, 30)
    bounded(monkeypatch, 1)
    captures = hiwater.open_run(place).captures
    assert [one._tables is not None for one in captures] == [False] * 5 + [True]
    peaks = [one.peak_bytes for one in captures]
    assert [one._tables is not None for one in captures] == [False] * 5 + [True]  # figures are kept
    assert [one.peak.allocated_bytes for one in captures] == peaks
    # Each was read, and let go for the next.
    assert [one._tables is not None for one in captures] == [False] * 5 + [True]


def test_a_capture_that_was_replaced_is_not_taken_for_the_one_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = job(tmp_path / "job", 2, 30)
    bounded(monkeypatch, 1)
    first, _ = hiwater.open_run(place).captures
    first.path.write_bytes(of_worker(7, 31))
    with pytest.raises(CorruptCapture, match="was replaced while it was being read"):
        _ = first.peak


@pytest.mark.grid
@pytest.mark.parametrize("words", [("--no-pager",), ("--html", "-o", os.devnull)])
def test_one_capture_more_takes_little_memory(tmp_path: Path, words: tuple[str, ...]) -> None:
    few, many = 24, 48  # the tables of 15 have room
    place = job(tmp_path / "job", many, STACKS)
    with_all = peak_of_command("report", str(place), *words)
    for number in range(few, many):
        (place / f"{number:04}.hiw").unlink()
    assert with_all - peak_of_command("report", str(place), *words) < (many - few) * MOST_FOR_ONE_MORE


def test_of_too_many_call_paths_those_that_hold_least_are_counted_at_their_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = hiwater.open_run(job(tmp_path / "job", 8, 400)).captures
    (machine,) = at_once.machines(captures)
    at = captures[0].process.started_unix_ns + 10**9
    whole = whole_run.at_instant(machine, at)
    monkeypatch.setattr(whole_run, "MOST_NODES", 500)
    bounded_whole = whole_run.at_instant(machine, at)
    assert whole is not None and bounded_whole is not None
    assert len(whole.tables["nodes"]) > 3000 and len(bounded_whole.tables["nodes"]) == 500
    assert bounded_whole.peak.allocated_bytes == whole.peak.allocated_bytes == sum(one.peak_bytes for one in captures)
    assert bounded_whole.peak.allocated_blocks == whole.peak.allocated_blocks
    held = [
        sorted((stack.thread, stack.bytes) for stack in one.peak.stacks if len(stack.frames) == 1)
        for one in (whole, bounded_whole)
    ]
    assert {name for name, _ in held[1]} == {name for name, _ in held[0]}  # each process is there
