"""Slices of time: moments that are nearly as high as the peak are told apart, however close to each other they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import hiwater
from hiwater.capture import Capture
from recording import needs_engine, record

pytestmark = needs_engine

HILLS = """\
import threading

def work():
    first = bytearray(10_000_000)  # first
    del first
    second = bytearray(9_990_000)  # second
    del second
    low = bytearray(1_000_000)

def main():
    kept = bytearray(20_000_000)
    {run}
"""
LOOP = """\
def main():
    kept = bytearray(20_000_000)
    for _ in range(5000):
        block = bytearray(10_000_000)
        del block
"""


def large_lines(capture: Capture) -> list[tuple[int, set[int]]]:
    """For each slice, its peak, and the lines of the program that hold large blocks then."""
    return [
        (
            piece.peak_bytes,
            {stack.frames[-1].line for stack in capture.of_slice(piece).stacks if stack.bytes >= 900_000},
        )
        for piece in capture.slices
    ]


@pytest.mark.parametrize("sample_bytes", [0, 64 << 10])
@pytest.mark.parametrize("run", ["work()", "thread = threading.Thread(target=work); thread.start(); thread.join()"])
def test_two_heights_within_a_millisecond_are_two_slices(run: str, sample_bytes: int, tmp_path: Path) -> None:
    text = HILLS.format(run=run)
    capture = hiwater.open(record(tmp_path, text, sample_bytes=sample_bytes).path)
    assert capture.problems() == []
    first, second = (
        next(number for number, words in enumerate(text.splitlines(), 1) if f"# {name}" in words)
        for name in ("first", "second")
    )
    high = [lines for peak, lines in large_lines(capture) if peak > 29_000_000]
    assert any(first in lines and second not in lines for lines in high)
    assert any(second in lines and first not in lines for lines in high)
    for piece in capture.slices:
        assert piece.start_ns <= piece.peak_ns <= piece.end_ns


def test_falls_add_a_bounded_number_of_slices(tmp_path: Path) -> None:
    capture = hiwater.open(record(tmp_path, LOOP).path)
    regular = capture.process.duration_ns // 25_000_000 + 1
    assert 64 <= len(capture.slices) <= 64 + 3 * regular + 1
