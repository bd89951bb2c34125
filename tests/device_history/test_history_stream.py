"""Snapshots taken in event by event are what they are when they are loaded whole, and need far less memory."""

import copy
import io
import pickle
import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiwater.device_history import pickle_machine, plain_pickle, snapshot, snapshot_stream
from hiwater.device_history.pickle_machine import Unusual
from hiwater.device_history.trace import AllocatorTrace
from hiwater.errors import CaptureError
from snapshot_double import Allocator, Refused, frame

MAIN, STEP = frame("main", 10), frame("step", 300)
STACKS = [(), (MAIN,), (STEP, MAIN), (frame("at::empty", 7, "Empty.cpp"), STEP, MAIN)]
PICKLERS = {"C": pickle.dumps, "Python": pickle._dumps}


def fresh(text):
    """The text as an object of its own, as torch makes many."""
    return "".join(list(text))


def snapshot_of(steps, devices, shares_stacks, extra):
    """What allocators of some devices show, with what versions of torch add to events."""
    whole = {"segments": [], "device_traces": [], "allocator_settings": {"expandable_segments": False}}
    for number in devices:
        allocator, known = Allocator(number, capacity=60 << 20), {}
        for size, stack, stream, frees in steps:
            frames = known.setdefault(stack, list(STACKS[stack])) if shares_stacks else list(STACKS[stack])
            try:
                allocator.alloc(size, frames, stream)
            except Refused:
                continue
            free = sorted(set(allocator.live) - allocator.waiting)
            if frees and free:
                allocator.free(free[frees % len(free)], waits=frees == 3)
        if len(steps) % 2:
            allocator.empty_cache()
        shown = allocator.snapshot()
        whole["segments"] += shown["segments"]
        whole["device_traces"] += [[]] * (number - len(whole["device_traces"])) + shown["device_traces"][number:]
    for place, event in enumerate(event for trace in whole["device_traces"] for event in trace):
        if extra > 0:
            event["compile_context"] = fresh("N/A")
            event["pool_id"] = (0, place % 2)
        if extra > 1:
            event["user_metadata"] = fresh(["", "layer 3", "x" * 300][place % 3]) if place % 4 else None
            event["stamp"] = place << 28
        if extra > 2 and place % 5 == 0:
            event.pop("time_us")
    return whole


def told(histories):
    return [
        (one.device, one.stacks.paths, one.events, one.live, one.reserved_bytes, one.has_times, one.notes, one.facts)
        for one in histories
    ]


def whole(content):
    return told(snapshot.histories(plain_pickle.load(content)))


def streamed(content):
    """Without the way out."""
    return told(snapshot.histories(snapshot_stream.read(io.BytesIO(content), len(content))))


def read(content):
    return told(snapshot.read(io.BytesIO(content), len(content)))


_STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 512, 70_000, 2 << 20, 11 << 20]),
        st.integers(0, 3),
        st.sampled_from([0, 0, 5]),
        st.integers(0, 4),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(
    steps=_STEPS,
    devices=st.sampled_from([[0], [0, 1], [1, 3]]),
    shares_stacks=st.booleans(),
    extra=st.integers(0, 3),
    shares_frames=st.booleans(),
    protocol=st.integers(2, 5),
    pickler=st.sampled_from(sorted(PICKLERS)),
    window=st.sampled_from([40, 333, 1 << 20]),
)
def test_what_is_streamed_is_what_the_whole_says(
    steps, devices, shares_stacks, extra, shares_frames, protocol, pickler, window
):
    data = snapshot_of(steps, devices, shares_stacks, extra)
    if not shares_frames:
        data["device_traces"] = [[copy.deepcopy(event) for event in trace] for trace in data["device_traces"]]
    content = PICKLERS[pickler](data, protocol)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle_machine, "_WINDOW_BYTES", window)
        assert streamed(content) == whole(content)


def many(count, **more):
    """A snapshot of so many events, allocated and freed in turn."""
    frames = [frame(f"function_{number}", number) for number in range(400)]
    trace = []
    for number in range(count // 2):
        stack = [frames[(number * place) % 400] for place in range(1, 20)]
        common = {
            "addr": 0x7F00_0000_0000 + number * 512,
            "size": number % 5000,
            "stream": 0,
            "time_us": 10**15 + number,
        }
        trace += [
            {"action": action, **common, "compile_context": fresh("N/A"), "frames": stack, **more}
            for action in ("alloc", "free_completed")
        ]
    return {"segments": [], "device_traces": [trace], "external_annotations": []}


@pytest.mark.parametrize("protocol", [4, 5])
def test_nearly_all_events_are_taken_without_their_dicts(protocol, monkeypatch):
    content, singly, filled = pickle.dumps(many(5000), protocol), [], snapshot_stream.SnapshotMachine.filled

    def counted(machine, target):
        singly.extend([1] if "action" in target else [])
        filled(machine, target)

    monkeypatch.setattr(snapshot_stream.SnapshotMachine, "filled", counted)
    assert streamed(content) == whole(content)
    assert (
        len(singly) < 400
    )  # the first of a place in the program, and those that a frame of the pickle or a window cuts


def test_a_large_snapshot_needs_less_memory_than_its_file(tmp_path):
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps(many(200_000), 4))
    program = (
        "import resource, sys\nfrom hiwater.capture import histories\nfrom hiwater.device_history import build, snapshot\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\ncontents = histories.read_one(sys.argv[1])\n"
        "print(peak() - before, len(contents.tables['timeline']))"
    )
    said = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True).stdout
    grown_kib, points = map(int, said.split())
    assert points > 2000
    assert grown_kib * 1024 < 1.5 * path.stat().st_size


# What only the whole file can tell


def event(action="alloc", address=512, **more):
    return {"action": action, "addr": address, "size": 100, "stream": 0, "time_us": 7, **more}


def tied(change):
    """A sound snapshot with something in it that is also somewhere else."""
    frames = [MAIN, STEP]
    events = [event(frames=frames), event("free_completed", frames=frames)]
    data = {"segments": [], "device_traces": [events]}
    change(data, events, frames)
    return data


def at_the_end(data, events, frames):
    data["first"] = events[0]


def twice(data, events, frames):
    data["device_traces"].append(events)


def an_event_again(data, events, frames):
    events.append(events[0])


def the_whole_again(data, events, frames):
    data["itself"] = data


def a_list_in_itself(data, events, frames):
    frames.append({"name": "f", "filename": "f.py", "line": 1, "within": frames})


def an_event_from_before(data, events, frames):
    data["device_traces"] = [[event("free_completed"), *events]]
    data["segments"] = [
        {"address": 0, "total_size": 512, "blocks": [], "kept": data["device_traces"][0][1], "stream": 0}
    ]


@pytest.mark.parametrize(
    "change", [at_the_end, twice, an_event_again, the_whole_again, a_list_in_itself, an_event_from_before]
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_is_fetched_again_has_the_whole_file_loaded(change, protocol):
    content = pickle.dumps(tied(change), protocol)
    with pytest.raises(Unusual):
        streamed(content)
    assert read(content) == whole(content)


def test_a_list_that_grows_after_it_was_used_has_the_whole_file_loaded():
    """No pickler writes that: the frames of the first event get one more when the second is made."""
    data = {"segments": [], "device_traces": [[event(frames=[MAIN]), event(address=1024, frames=[MAIN, STEP])]]}
    content = pickle.dumps(data, 2)
    frames = [number for number in range(len(content) - 3) if content[number : number + 2] == b"]q"]
    first, second = (content[place + 2] for place in frames[-2:])  # their numbers in the memo
    begin = content.rindex(b"]q" + bytes([second]))
    changed = content[:begin] + b"h" + bytes([first]) + b"r" + second.to_bytes(4, "little") + content[begin + 3 :]
    assert plain_pickle.load(changed)["device_traces"][0][0]["frames"] == [MAIN, MAIN, STEP]
    with pytest.raises(Unusual):
        streamed(changed)
    assert read(changed) == whole(changed)


@pytest.mark.parametrize("rest", [{"other": 1 << 90}, {"bytes": b"x" * 9}, {"wide": "x" * 3_000_000}, {"real": 1.5}])
def test_other_data_beside_it_does_not_matter(rest):
    data = {**snapshot_of([(512, 1, 0, 0)] * 9, [0], True, 1), **rest}
    assert read(pickle.dumps(data, 4)) == whole(pickle.dumps(data, 4))


def outcome(how, content):
    try:
        return how(content)
    except CaptureError as error:
        return type(error), str(error)


@pytest.mark.parametrize("protocol", [2, 4])
def test_damage_has_the_same_result_as_in_the_whole_file(protocol):
    content = pickle.dumps(
        snapshot_of([(5000, 2, 0, 2), (512, 1, 5, 0), (11 << 20, 3, 0, 1)] * 4, [0, 1], True, 2), protocol
    )
    draw, refused = random.Random(4), 0
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 1, 2, 10))):
            damaged[draw.randrange(2, len(damaged))] = draw.choice((draw.randrange(256), *b"(]}euhq\x94.0Na"))
        if draw.random() < 0.2:
            del damaged[draw.randrange(2, len(damaged)) :]
        found = outcome(read, bytes(damaged))
        assert found == outcome(whole, bytes(damaged))
        refused += isinstance(found, tuple)
    assert refused > 300


def test_events_are_not_kept():
    content = pickle.dumps(many(2000), 4)
    machine = snapshot_stream.SnapshotMachine(io.BytesIO(content), len(content))
    data = machine.run()
    (trace,) = data["device_traces"]
    assert type(trace) is AllocatorTrace and len(trace) == 2000
    kept = [value for value in machine.memo if type(value) in (dict, list)]
    assert len({id(value) for value in kept}) <= 402  # frames, and two lists


FRAMES = [MAIN, STEP]


@pytest.mark.parametrize(
    "wrong",
    [{"action": FRAMES}, {"user_metadata": FRAMES}, {"category": [], "user_metadata": (0, 3)}, {"stream": FRAMES}, {"addr": None},
     {FRAMES[0]["name"]: {}}, {"frames": [3]}, {"frames": [[]]}, {"time_us": -5}, {"size": True}],
    ids=repr,
)  # fmt: skip
def test_values_of_other_kinds_mean_what_they_do_in_the_whole_file(wrong):
    events = [event(frames=FRAMES), event(frames=FRAMES), {**event(address=1024, frames=FRAMES), **wrong}]
    content = pickle.dumps({"segments": [], "device_traces": [events]}, 4)
    assert outcome(read, content) == outcome(whole, content)


@pytest.mark.parametrize("more", [-9, -3, -2, -1, 1, 2])
def test_a_frame_that_ends_within_an_instruction_is_damage(more):
    content = pickle.dumps(many(100), 4)
    (length,) = struct.unpack_from("<Q", content, 3)
    damaged = content[:3] + struct.pack("<Q", length + more) + content[11:]
    assert outcome(read, damaged) == outcome(whole, damaged)
