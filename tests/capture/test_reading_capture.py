"""Opening captures: what is read is what was recorded, at every instant of the recording."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_builder import COUNTED_KINDS, FAILED, KINDS, LABEL, RECORDING, Recording, assemble
from example_captures import in_memory, open_bytes, small
from hiwater import capture as captures
from hiwater.capture.process import is_alive
from hiwater.capture.reader import read
from hiwater.errors import CorruptCapture, MomentOutOfRange
from recording import rounds


def test_a_capture_says_what_was_recorded(tmp_path: Path) -> None:
    capture = open_bytes(small().to_bytes(shuffle=3), tmp_path)
    capture.check()
    assert (capture.peak.allocated_bytes, capture.peak.allocated_blocks) == (5596, 3)
    assert (capture.end.allocated_bytes, capture.end.allocated_blocks) == (4596, 2)
    assert (capture.peak.kind_bytes()["reserved"], capture.end.kind_bytes()["reserved"]) == (0, 1 << 20)
    first = capture.peak.stacks[0]
    assert (first.bytes, first.kind, first.thread) == (4096, "mapping", "worker")
    assert [str(frame) for frame in first.frames] == ["<module> (/app/etl.py:12)", "parse (/app/etl.py:7)"]
    assert sum(stack.bytes for stack in capture.peak.stacks) == capture.peak.allocated_bytes
    assert capture.process.argv == ("etl.py", "--year", "2024")
    assert (capture.process.ended, capture.process.exit_code, capture.process.mode) == ("exit", 0, "exact")
    assert (capture.totals.allocations, capture.totals.frees, capture.totals.allocated_bytes) == (3, 1, 5596)
    assert capture.timeline.resident_bytes.tolist() == [50 << 20]
    assert capture.timeline.allocated_bytes.tolist() == [4596]


def test_an_empty_capture_opens(tmp_path: Path) -> None:
    capture = open_bytes(assemble({}, {}), tmp_path)
    capture.check()
    assert capture.peak.allocated_bytes == 0 and len(capture.peak.stacks) == 0 and capture.facts == {}


def test_a_file_longer_than_its_records_opens(tmp_path: Path) -> None:
    assert open_bytes(small().to_bytes() + b"\xff" * 500_000, tmp_path).peak.allocated_bytes == 5596


def test_tables_of_many_extents_are_joined_in_order(tmp_path: Path) -> None:
    recording = Recording()
    root = recording.thread()
    for number in range(20_000):
        recording.allocate(recording.node(root, recording.code(f"f{number}", "a.py", 1), 5), number)
    capture = open_bytes(recording.to_bytes(shuffle=9), tmp_path)
    assert [stack.frames[0].function for stack in capture.peak.stacks[:3]] == ["f19999", "f19998", "f19997"]
    assert capture.peak.allocated_bytes == sum(range(20_000))


def test_a_label_is_a_frame_and_a_lonely_thread_is_none(tmp_path: Path) -> None:
    recording = Recording()
    root = recording.thread("pool-1")
    recording.allocate(root, 10)
    recording.allocate(recording.node(root, recording.code("/lib/libc.so", kind=LABEL)), 20, "mapping")
    label, lonely = open_bytes(recording.to_bytes(), tmp_path).peak.stacks
    assert [str(frame) for frame in label.frames] == ["/lib/libc.so"]
    assert (lonely.thread, lonely.frames) == ("pool-1", ())


# How it ended


@pytest.mark.parametrize(
    ("change", "ended"), [({}, "recording"), ({"process_start_ticks": 1}, "killed"), ({"boot_id": b"x"}, "killed")]
)
def test_a_recording_is_alive_only_with_number_start_and_boot(
    tmp_path: Path, change: dict[str, object], ended: str
) -> None:
    recording = small()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode()
    recording.header.update(
        state=RECORDING, ended_ns=0, pid=os.getpid(), process_start_ticks=int(fields[19]), boot_id=boot_id
    )
    recording.header.update(change)
    assert open_bytes(recording.to_bytes(), tmp_path).process.ended == ended


def test_a_process_with_a_hostile_name_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b\n")
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_bytes(b"7 (a) b (c)) R " + b"0 " * 18 + b"55 0 0\n")
    assert is_alive(7, 55, "b", proc=tmp_path)
    assert not is_alive(7, 56, "b", proc=tmp_path)
    (tmp_path / "7/stat").write_bytes(b"7 (a) Z " + b"0 " * 18 + b"55 0 0\n")
    assert not is_alive(7, 55, "b", proc=tmp_path)


def test_a_failed_recording_says_why(tmp_path: Path) -> None:
    recording = small()
    recording.header.update(state=FAILED, stop_reason=recording.string("the disk is full"), lost_events=3)
    capture = open_bytes(recording.to_bytes(), tmp_path)
    assert (capture.process.ended, capture.process.stop_reason, capture.lost_events) == ("exit", "the disk is full", 3)


# Moments in time


def test_any_moment_can_be_asked_for(tmp_path: Path) -> None:
    recording = Recording()
    a, b = recording.path(("a", "a.py", 1)), recording.path(("b", "b.py", 2))
    recording.allocate(a, 100)
    recording.now_ns = 1_000_000_000
    recording.close_slice()
    recording.allocate(b, 900)
    recording.free(a, 100)
    recording.now_ns = 2_000_000_000
    recording.close_slice()
    recording.free(b, 900)
    recording.allocate(a, 30)
    recording.now_ns = 3_000_000_000
    recording.end()
    capture = open_bytes(recording.to_bytes(), tmp_path)
    capture.check()
    assert held(capture.snapshot(0.5).stacks) == {"a": 100}
    assert held(capture.snapshot(1.5).stacks) == {"a": 100, "b": 900}
    assert held(capture.window(0, 3).stacks) == {"a": 100, "b": 900}
    assert held(capture.peak.stacks) == {"a": 100, "b": 900}
    assert held(capture.snapshot(3).stacks) == {"b": 900}  # what the last slice began with is its highest
    assert held(capture.end.stacks) == {"a": 30}
    for wrong in ((-1.0, 2.0), (2.0, 1.0), (3.5, 9.0), (float("nan"), 1.0)):
        with pytest.raises(MomentOutOfRange):
            capture.window(*wrong)


def held(stacks: captures.Stacks) -> dict[str, int]:
    return {stack.frames[-1].function: stack.bytes for stack in stacks}


EVENT = st.tuples(st.integers(0, 4), st.sampled_from(KINDS), st.integers(0, 1000), st.integers(0, 9))


@settings(max_examples=rounds(60))
@given(st.lists(EVENT, max_size=40))
def test_after_every_event_the_peak_is_that_of_a_plain_account(events: list[tuple[int, str, int, int]]) -> None:
    """The lazily saved mark against a naive recorder that copies everything at every new peak."""
    recording = Recording()
    nodes = [recording.path((f"f{number}", "a.py", number + 1)) for number in range(5)]
    live: Counter[tuple[int, str]] = Counter()
    best: dict[tuple[int, str], int] = {}
    for number, kind, size, action in events:
        if action == 0:
            recording.close_slice()
        freed = min(size, live[number, kind]) if action > 5 else 0
        if freed:
            recording.free(nodes[number], freed, kind, blocks=0)  # as realloc to less
        else:
            recording.allocate(nodes[number], size, kind)
        live[number, kind] += -freed if freed else size
        if counted(live) > counted(best):
            best = dict(live)
        capture = in_memory(recording)
        assert capture.problems() == []
        assert capture.peak.allocated_bytes == counted(best) == capture.peak.recorded_bytes
        assert by_name(capture.peak) == {key: value for key, value in best.items() if value and key[1] in COUNTED_KINDS}
        assert by_name(capture.end) == {key: value for key, value in live.items() if value and key[1] in COUNTED_KINDS}


def counted(account: dict[tuple[int, str], int]) -> int:
    return sum(size for (_, kind), size in account.items() if kind in COUNTED_KINDS)


def by_name(snapshot: captures.Snapshot) -> dict[tuple[int, str], int]:
    return {(int(stack.frames[-1].function[1:]), stack.kind): stack.bytes for stack in snapshot.stacks if stack.bytes}


def test_after_every_single_store_a_killed_capture_is_right_within_one_event() -> None:
    """Whatever store the kill comes after, sums are off by no more than the one event that was under way."""
    seen = 0
    largest = 700

    def look() -> None:
        nonlocal seen
        seen += 1
        capture = in_memory(recording)
        assert capture.process.ended == "killed"
        assert capture.problems() == []
        for snapshot in (capture.peak, capture.end):
            assert abs(snapshot.allocated_bytes - snapshot.recorded_bytes) <= largest

    recording = Recording(on_store=look)
    nodes = [recording.path((f"f{number}", "a.py", 1)) for number in range(3)]
    for step, size in enumerate((100, 300, 50, 700, 20, 1)):
        recording.allocate(nodes[step % 3], size, KINDS[step % 2])
    recording.free(nodes[0], 100, "python")
    recording.close_slice()
    recording.allocate(nodes[1], 30)
    recording.free(nodes[1], 30)
    assert seen > 40


# Contradictions are told


def test_a_sum_that_does_not_agree_is_told(tmp_path: Path) -> None:
    recording = small()
    recording.header["live_bytes"] += 8
    with pytest.raises(CorruptCapture, match="at the end"):
        open_bytes(recording.to_bytes(), tmp_path).check()
    recording = small()
    recording.header["slice_peak_bytes"] -= 8
    with pytest.raises(CorruptCapture, match="at the peak"):
        open_bytes(recording.to_bytes(), tmp_path).check()


def test_a_slice_that_does_not_sum_to_its_mark_is_told(tmp_path: Path) -> None:
    recording = small()
    recording.close_slice()
    number, blocks, size = recording.entries[0]
    recording.entries[0] = (number, blocks, size + 1)
    with pytest.raises(CorruptCapture, match="in slice 0"):
        open_bytes(recording.to_bytes(), tmp_path).check()


def test_less_than_nothing_is_told(tmp_path: Path) -> None:
    recording = small()
    next(account for account in recording.accounts.values() if account.live[0]).live[0] = -5
    with pytest.raises(CorruptCapture, match="holds -5 bytes"):
        open_bytes(recording.to_bytes(), tmp_path).check()


def test_a_name_that_is_not_utf8_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    recording = Recording()
    recording.strings[b"caf\xe9"] = len(recording.strings)
    node = recording.node(
        recording.thread(), recording.codes.setdefault((recording.strings[b"caf\xe9"], 0, 0, 0), len(recording.codes))
    )
    recording.allocate(node, 5)
    assert open_bytes(recording.to_bytes(), tmp_path).peak.stacks[0].frames[0].function == "caf\ufffd"


def test_records_cannot_be_changed_by_a_reader(tmp_path: Path) -> None:
    (tmp_path / "run.hiw").write_bytes(small().to_bytes())
    with pytest.raises(ValueError, match="read-only"):
        read(tmp_path / "run.hiw").tables["nodes"]["parent"][0] = np.uint32(1)
