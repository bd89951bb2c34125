"""What a capture and its parts say of themselves when they are printed: one short line each, however much they hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capture_builder import Recording
from example_captures import in_memory, small
from hiwater.capture import Capture

LONGEST = 240


def parts(of: object, seen: set[int]) -> Iterator[Any]:
    """All objects of hiwater's that are reached through public attributes, and the elements of tuples among these."""
    if id(of) in seen or (not type(of).__module__.startswith("hiwater.capture") and not isinstance(of, tuple)):
        return
    seen.add(id(of))
    if isinstance(of, tuple):
        for one in of[:3]:
            yield from parts(one, seen)
        return
    yield of
    if type(of).__name__ in {"Tables", "Paths"}:
        return
    fields = {field.name for field in dataclasses.fields(of)} if dataclasses.is_dataclass(of) else set()
    names = fields or {name for name in dir(type(of)) if name != "oom"}
    for name in names:
        value = getattr(of, name)
        if not name.startswith("_") and not callable(value):
            yield from parts(value, seen)


def large() -> Recording:
    recording = Recording()
    recording.fact("argv", '["' + '", "'.join(f"--argument-{n}" for n in range(500)) + '"]')
    for number in range(1000):
        frames = [("<module>", "/app/etl.py", 1), *((f"recur_{'long' * 50}\n", "/app/etl.py", n) for n in range(50))]
        recording.allocate(recording.path(*frames, ("leaf", "/app/etl.py", number)), 1000 + number)
        recording.sample(number << 10)
    recording.end()
    return recording


@pytest.mark.parametrize("recording", [small, large])
def test_each_part_of_a_capture_is_printed_in_one_short_line(recording: Any) -> None:
    capture = in_memory(recording())
    other = in_memory(recording())
    comparison = capture.diff(other)
    found = [
        *parts(capture, set()), *parts(comparison, set()), capture.peak.stacks, capture.peak.stacks[0],
        capture.peak.stacks[:5], capture.peak.holdings(), comparison, comparison.rows, comparison.lines,
    ]  # fmt: skip
    assert {"Capture", "Snapshot", "Process", "Resident", "Totals", "Timeline", "Slice", "Comparison", "Stack"} <= {
        kind.__name__ for one in found for kind in type(one).__mro__
    }
    for one in found:
        assert len(repr(one)) <= LONGEST and "\n" not in repr(one), repr(one)
        assert " object at 0x" not in repr(one) or type(one).__name__ == "Paths", repr(one)


def test_what_they_say(tmp_path: Path) -> None:
    capture: Capture = in_memory(small())
    assert repr(capture) == "<Capture 'memory' of process 4242, exit: peak 5.46 KiB allocated, 64.0 MiB resident>"
    assert repr(capture.peak).startswith("<Snapshot 'peak' at 0.00") and "5.46 KiB in 3 blocks>" in repr(capture.peak)
    assert repr(capture.peak.stacks[0]) == "<Stack of 2 frames: 4.00 KiB in 1 blocks (mapping) at 'parse (etl.py:7)'>"
    resident = replace(
        capture.resident, program_peak_bytes=64 << 20, overhead_bytes=16 << 20, exact=True, error_bytes=786_432
    )
    assert repr(resident) == "<Resident: peak 64.0 MiB (within 768 KiB) and 16.0 MiB overhead of hiwater>"
    assert repr(capture.tables) == "<Tables of 'memory': 7 rows in nodes, 5 in accounts>"
    after = in_memory(Recording())
    assert repr(capture.diff(after)).endswith("with 0 B: -5.46 KiB>")
    assert repr(capture.diff(after).rows[0]) == "<Change -4.00 KiB (gone) at 'parse (etl.py:7)'>"
