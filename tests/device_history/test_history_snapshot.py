"""Snapshots of torch's allocator against a naive replay, in all the forms that versions give them."""

import copy
import json
import pickle
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hiwater
import schemas
from hiwater.capture.model import Capture
from hiwater.capture.tables import Tables
from hiwater.cli import main
from hiwater.cli.output import BINARY
from hiwater.cli.report import FORMATS
from hiwater.device_history import build, snapshot
from hiwater.errors import BadRequest, MissingCapture
from hiwater.report.request import Report
from page_reader import Page, page_of
from recording import rounds
from snapshot_double import Allocator, Refused, frame

MAIN, STEP, LOSS = frame("main", 10), frame("step", 20), frame("loss", 30)
STACKS = [(MAIN,), (STEP, MAIN), (LOSS, STEP, MAIN), (LOSS, MAIN)]
KIB = 1024

_STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("alloc"), st.sampled_from([1, 500, 512, 3000, 200 * KIB, 2 << 20, 11 << 20]), st.integers(0, 3)
        ),
        st.tuples(st.just("free"), st.integers(0, 100), st.booleans()),
        st.tuples(st.just("synchronise"), st.just(0), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def capture_of(data, **how):
    (history,) = snapshot.histories(data)
    return Capture(Tables(build.contents(Path("s.pickle"), history, 10**18, **how)))


def run(allocator, steps):
    """Do the steps; the truth after each event that changed what is live: (time_us, {names: [bytes, blocks]})."""
    truth = []

    def note():
        held = Counter()
        for size, names in allocator.live.values():
            held[names] += size
        truth.append((allocator.time_us, dict(held)))

    for what, first, second in steps:
        if what == "alloc":
            try:
                allocator.alloc(first, STACKS[second], stream=0)
            except Refused:
                continue
        elif what == "free":
            free = sorted(set(allocator.live) - allocator.waiting)
            if not free:
                continue
            allocator.free(free[first % len(free)], waits=second)
        elif what == "synchronise":
            allocator.synchronise(note)
        else:
            allocator.synchronise(note)
            allocator.empty_cache()
        note()
    return truth


def by_names(moment):
    """Bytes of each stack at a moment, by the names of its functions, innermost first."""
    return {tuple(f.function for f in reversed(stack.frames)): stack.bytes for stack in moment.stacks}


def without_nothing(held):
    return {names: size for names, size in held.items() if size}


@settings(max_examples=rounds(60))
@given(_STEPS)
def test_the_peak_the_end_and_every_window_are_those_of_a_naive_replay(steps):
    allocator = Allocator()
    truth = run(allocator, steps)
    capture = capture_of(allocator.snapshot())
    assert capture.problems() == []
    highest = max((sum(held.values()) for _, held in truth), default=0)
    assert capture.peak.allocated_bytes == highest
    assert not highest or by_names(capture.peak) in [without_nothing(h) for _, h in truth if sum(h.values()) == highest]
    assert by_names(capture.end) == (without_nothing(truth[-1][1]) if truth else {})
    assert capture.live_before_bytes == 0
    assert (capture.allocator.reserved_bytes if capture.allocator else 0) == allocator.reserved
    start_us = allocator.trace[0]["time_us"] if allocator.trace else 0
    for piece in capture.slices[:-1]:
        last_ns = piece.end_ns if piece.end_ns == capture.process.duration_ns else piece.end_ns - 1
        at_start = [sum(held.values()) for at, held in truth if (at - start_us) * 1000 < piece.start_ns][-1:]
        inside = [sum(held.values()) for at, held in truth if piece.start_ns <= (at - start_us) * 1000 <= last_ns]
        assert capture.of_slice(piece).allocated_bytes == piece.peak_bytes == max([0, *at_start, *inside])


@settings(max_examples=rounds(50))
@given(_STEPS, _STEPS, st.integers(1, 40))
def test_what_was_there_before_the_history_is_told_apart(before, steps, entries):
    allocator = Allocator(max_entries=entries, recording=False)
    run(allocator, before)
    allocator.recording = True
    truth = run(allocator, steps)
    data = allocator.snapshot()
    capture = capture_of(data)
    assert capture.problems() == []
    assert capture.end.allocated_bytes == sum(size for size, _ in allocator.live.values())
    shown = [event for event in allocator.trace if event["action"] != "snapshot"]
    if allocator.events_in_all <= entries and shown:  # nothing went out of the ring: the peak since then is known
        held_before = capture.live_before_bytes
        highest = max([held_before, *(sum(held.values()) for _, held in truth)])
        assert capture.peak.allocated_bytes == highest
    # Never below what is known to have been live at the end, never above what was asked for.
    assert capture.peak.allocated_bytes >= capture.end.allocated_bytes


def test_the_identity_of_the_allocator_holds_to_the_byte():
    allocator = Allocator()
    kept = [allocator.alloc(size, STACKS[0]) for size in (100, 5000, 3 << 20, 18 << 20)]
    allocator.free(kept[1])
    allocator.free(kept[2], waits=True)
    allocator.free(kept[3])
    state = capture_of(allocator.snapshot()).allocator
    assert state.reserved_bytes == allocator.reserved == (
        state.requested_bytes + state.rounding_bytes + state.awaiting_free_bytes + state.inactive_split_bytes
        + state.free_segments_bytes
    )  # fmt: skip
    assert (state.requested_bytes, state.rounding_bytes, state.awaiting_free_bytes) == (100, 412, 3 << 20)
    assert state.free_segments_bytes == 18 << 20 and state.inactive_split_bytes == (2 << 20) - 512 + (17 << 20)
    assert state.largest_free_bytes() == 18 << 20


def test_memory_that_is_refused_is_a_moment_of_its_own():
    allocator = Allocator(capacity=30 << 20)
    first = allocator.alloc(9 << 20, STACKS[1])
    with pytest.raises(Refused):
        allocator.alloc(25 << 20, STACKS[2])
    allocator.free(first)
    allocator.alloc(1000, STACKS[0])
    capture = capture_of(allocator.snapshot())
    (mark,) = capture.refusals
    assert (mark.value, mark.frames[-1].function) == (25 << 20, "loss")
    assert capture.oom.allocated_bytes == 9 << 20 and by_names(capture.oom) == {("step", "main"): 9 << 20}
    assert capture.problems() == []


def test_reserved_memory_has_a_curve_of_its_own():
    allocator = Allocator()
    address = allocator.alloc(30 << 20, STACKS[0])
    allocator.free(address)
    allocator.empty_cache()
    allocator.alloc(100, STACKS[0])
    capture = capture_of(allocator.snapshot())
    reserved = capture.timeline.kind_bytes["reserved"]
    assert capture.reserved_peak_bytes == 30 << 20 == int(reserved.max())
    assert int(reserved[-1]) == allocator.reserved == 2 << 20


def test_the_curve_of_reserved_memory_has_its_peak_also_where_less_was_allocated():
    allocator = Allocator()
    allocator.free(allocator.alloc(20 << 20, STACKS[0]))
    allocator.free(allocator.alloc(12 << 20, STACKS[1], stream=5))
    allocator.empty_cache()
    allocator.time_us += 10**9  # so that all of that is in one stretch of time
    allocator.alloc(100, STACKS[0])
    line = capture_of(allocator.snapshot()).timeline
    reserved = line.kind_bytes["reserved"]
    assert (int(line.allocated_bytes.max()), int(reserved.max())) == (20 << 20, 32 << 20)
    assert int(line.allocated_bytes[reserved.argmax()]) in (0, 12 << 20)
    assert line.at_ns.tolist() == sorted(line.at_ns.tolist())


def test_the_page_draws_reserved_memory_beside_what_was_allocated():
    allocator = Allocator()
    kept = [allocator.alloc(9 << 20, STACKS[1]), allocator.alloc(30 << 20, STACKS[0])]
    allocator.free(kept[1])
    allocator.empty_cache()
    capture = capture_of(allocator.snapshot())
    page = Page(page_of([Report(capture, capture.peak)]))  # which keeps to its schema
    timeline = page.unpacked.head["captures"][0]["timeline"]
    curves = {series["group"]: page.unpacked.column(series["bytes"]) for series in timeline["series"]}
    assert sorted(curves) == ["kind", "reserved"]
    assert [int(curve.max()) for curve in curves.values()] == [39 << 20, 50 << 20]
    assert int(curves["reserved"][-1]) == allocator.reserved == 20 << 20
    assert len(curves["reserved"]) == len(curves["kind"]) == len(page.unpacked.column(timeline["at_ns"]))


# Versions


def held():
    allocator = Allocator()
    allocator.alloc(1000, STACKS[1])
    allocator.alloc(700, STACKS[0])
    return allocator.snapshot()


def test_segments_alone_are_what_was_held_at_the_end():
    capture = capture_of(held()["segments"])
    assert by_names(capture.peak) == {("step", "main"): 1000, ("main",): 700}
    assert capture.live_before_bytes == 0 and capture.process.duration_ns > 0


def test_blocks_with_a_history_as_torch_1_13_had_them():
    data = held()
    for segment in data["segments"]:
        for block in segment["blocks"]:
            block.pop("address")
            if block["state"] != "inactive":
                block["history"] = [
                    {"addr": 1, "real_size": block.pop("requested_size"), "frames": block.pop("frames")}
                ]
    data["device_traces"] = []
    assert by_names(capture_of(data).end) == {("step", "main"): 1000, ("main",): 700}


def test_without_stacks_nobody_is_known_to_hold():
    data = held()
    data["device_traces"] = []
    for segment in data["segments"]:
        for block in segment["blocks"]:
            block.pop("frames", None)
    assert by_names(capture_of(data).end) == {("[no stack was recorded]",): 1700}


def test_without_times_events_stand_in_their_order():
    data = held()
    for event in data["device_traces"][0]:
        del event["time_us"]
    capture = capture_of(data)
    assert capture.peak.allocated_bytes == 1700 and "has no times" in capture.facts["notes"]


def test_categories_and_metadata_stand_before_the_stack():
    allocator = Allocator()
    allocator.alloc(100, STACKS[0], category="activation")
    allocator.alloc(200, STACKS[0], user_metadata="layer 3")
    found = [[f.function for f in stack.frames] for stack in capture_of(allocator.snapshot()).peak.stacks]
    assert found == [["[layer 3]", "main"], ["[activation]", "main"]]


def test_native_frames_among_pythons_have_no_file():
    allocator = Allocator()
    native = frame("at::empty(c10::ArrayRef<long>)", 9, "/pytorch/aten/src/ATen/Empty.cpp")
    allocator.alloc(100, (native, frame("c10::alloc", 0, "??"), STEP, MAIN))
    (stack,) = capture_of(allocator.snapshot()).peak.stacks
    assert [f.file for f in stack.frames] == ["/work/train.py", "/work/train.py", "", ""]


def test_a_history_without_completed_frees_ends_blocks_where_they_were_asked_to_be_freed():
    allocator = Allocator()
    allocator.free(allocator.alloc(1000, STACKS[0]))
    allocator.alloc(300, STACKS[0])
    data = allocator.snapshot()
    data["device_traces"][0] = [e for e in data["device_traces"][0] if e["action"] != "free_completed"]
    capture = capture_of(data)
    assert (capture.peak.allocated_bytes, capture.end.allocated_bytes) == (1000, 300)


def test_frees_that_nothing_tells_of_are_counted():
    allocator = Allocator()
    allocator.free(allocator.alloc(1000, STACKS[0]))
    allocator.alloc(300, STACKS[0])
    data = allocator.snapshot()
    data["device_traces"][0] = [e for e in data["device_traces"][0] if not e["action"].startswith("free")]
    capture = capture_of(data)
    assert capture.end.allocated_bytes == 300 and "1 blocks were freed at a time" in capture.facts["notes"]
    assert capture.problems() == []


def test_private_pools_are_named():
    data = held()
    data["segments"][0]["segment_pool_id"] = (0, 3)
    state = capture_of(data).allocator
    assert state.private_pools == {"0.3": 2 << 20} and state.largest_free_bytes() == 0


# Files, and every view


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "snapshot.pickle"
    allocator = Allocator(capacity=200 << 20)
    for number in range(12):
        address = allocator.alloc((number + 1) << 20, STACKS[number % 4])
        if number % 3 == 0:
            allocator.free(address)
    with pytest.raises(Refused):
        allocator.alloc(500 << 20, STACKS[3])
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return path


@pytest.mark.parametrize("form", [name for name in FORMATS if name not in BINARY])
@pytest.mark.parametrize(
    "more", [[], ["--at", "end"], ["--at", "oom", "--kind", "device"], ["--at", "0:0.0001", "--by", "function"]]
)
def test_every_format_shows_it(file, tmp_path, form, more, capsys):
    out = tmp_path / "out"
    assert main(["report", str(file), "--format", form, "-o", str(out), *more]) == 0, capsys.readouterr().err
    text = out.read_text()
    assert text and ("main" in text or form in ("text", "html", "svg", "table", "lines", "markdown", "timeline"))
    if form == "html":  # its scripts know of all captures
        text = text.partition('<main class="summary">')[2].partition("</main>")[0]
    assert text and "resident peak" not in text


def test_json_tells_of_the_device_and_sums_up(file, tmp_path):
    out = tmp_path / "out.json"
    assert main(["report", str(file), "--format", "json", "-o", str(out)]) == 0
    said = json.loads(out.read_text())
    schemas.check(said, "report")
    (device,) = said["devices"]
    (history,) = said["device_histories"]
    assert device["name"] == "cuda:0" and history["refusals"] == 1 and device["peak_reserved_bytes"] <= 200 << 20
    assert (
        sum(stack["bytes"] for stack in said["stacks"])
        == said["peak"]["allocated_bytes"]
        == device["peak_allocated_bytes"]
    )


def test_text_says_what_it_measures(file, capsys):
    assert main(["report", str(file), "--full"]) == 0
    said = capsys.readouterr().out
    for words in ("memory of cuda:0", "reserved", "fragmentation", "Memory was refused", "requested bytes"):
        assert words in said
    assert "resident" not in said


def test_two_snapshots_are_compared_and_merged(file, tmp_path, capsys):
    later = tmp_path / "later.pickle"
    allocator = Allocator()
    allocator.alloc(100 << 20, STACKS[0])
    later.write_bytes(pickle.dumps(allocator.snapshot()))
    assert main(["diff", str(file), str(later)]) == 0
    assert "grew" in capsys.readouterr().out
    merged = tmp_path / "both.hiw"
    assert main(["merge", "-o", str(merged), str(file), str(later), str(file)]) == 0
    peaks = sorted(capture.peak.allocated_bytes for capture in hiwater.open_run(merged).captures)
    assert peaks == sorted([hiwater.open(file).peak.allocated_bytes, 100 << 20])
    told = hiwater.open(file).diff(hiwater.open(later), kind="device")
    assert told.peak.after == 100 << 20


def test_lines_and_plot_take_it_as_any_capture(file, tmp_path, capsys):
    assert main(["report", str(file), "--format", "lines"]) == 0
    assert "/work/train.py" in capsys.readouterr().out
    assert main(["report", str(file), "--format", "timeline"]) == 0


def test_the_simulated_allocator_speaks_the_format_that_torchs_own_tools_read(file):
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz

    data = pickle.loads(file.read_bytes())
    held = hiwater.open(file).end.allocated_bytes
    assert f"total_allocated: {held / (1 << 20):.1f}MiB" in _memory_viz.segsum(data)
    assert f"{len(data['device_traces'][0])} entries" in _memory_viz.trace(data)


def test_of_several_devices_one_is_named(tmp_path):
    data = held()
    other = copy.deepcopy(data)
    for segment in other["segments"]:
        segment["device"] = 2
    data["segments"] += other["segments"]
    data["device_traces"] += [[], other["device_traces"][0][:-1]]
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(BadRequest, match="2 devices"):
        hiwater.open(path)
    assert [capture.device for capture in hiwater.open_run(path).captures] == ["cuda:0", "cuda:2"]
    assert hiwater.open(path / "cuda:2").device == "cuda:2"
    with pytest.raises(MissingCapture, match="cuda:7"):
        hiwater.open(path / "cuda:7")
    assert main(["report", str(path), "-o", str(tmp_path / "x.txt")]) == 0
