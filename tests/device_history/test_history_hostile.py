"""Pickles that are cut, damaged or made to do harm: one clear error each, nothing run, no memory taken for what is
not there."""

import gzip
import pickle
import pickletools
import random
import struct

import pytest

import hiwater
from children import run_python
from hiwater.cli import main
from hiwater.device_history import plain_pickle
from hiwater.errors import CaptureError, CorruptCapture, ForeignFile, TruncatedCapture
from snapshot_double import Allocator, frame

PAYLOAD = []


def harm(*what):
    PAYLOAD.append(what)


class Harmful:
    def __reduce__(self):
        return harm, ("done",)


def sound():
    allocator = Allocator(capacity=80 << 20)
    kept = [allocator.alloc(1000 * number, (frame("step", number), frame("main"))) for number in range(1, 9)]
    allocator.free(kept[3])
    return allocator.snapshot()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_as_it_was_in_every_protocol(protocol):
    data = [
        sound(),
        {"many": [None, True, False, -1, 255, 65536, 1 << 40, -(1 << 70), 1.5, "ü" * 300, (1,), (1, 2, 3, 4), ()]},
    ]
    data.append(data[0]["segments"])
    data.append(b"x" * 300 if protocol > 2 else "")  # before, bytes took a call to be made
    assert plain_pickle.load(pickle.dumps(data, protocol)) == data


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "what", [Harmful(), print, {"segments": [Harmful()]}, {1, 2}, bytearray(b"x"), frozenset((1,)), 1j]
)
def test_anything_else_is_refused_and_nothing_is_run(what, protocol):
    with pytest.raises(ForeignFile, match="nothing of it was run"):
        plain_pickle.load(pickle.dumps(what, protocol))
    assert PAYLOAD == []


def test_instructions_that_are_hidden_behind_the_data_are_found():
    with pytest.raises(ForeignFile):
        plain_pickle.load(pickle.dumps({"segments": []}, 4)[:-1] + b"cos\nsystem\n(S'true'\ntR.")
    for instruction in (
        b"cos\nsystem\n.",
        b"ios\nsystem\n.",
        b"\x93.",
        b"\x82\x01.",
        b"Q.",
        b"P1\n.",
        b"R.",
        b"b.",
        b"\x81.",
        b"o.",
    ):
        with pytest.raises(ForeignFile):
            plain_pickle.load(b"\x80\x04" + instruction)


def test_only_known_instructions_of_plain_data_are_let_through():
    """Every instruction that pickletools knows, by itself: those that call or find something are refused by their
    code."""
    plain = {"MARK", "POP", "DUP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "STOP", "PROTO", "FRAME", "MEMOIZE"}
    words = (
        "BININT",
        "LONG1",
        "FLOAT",
        "UNICODE",
        "BYTES",
        "LIST",
        "APPEND",
        "TUPLE",
        "DICT",
        "SETITEM",
        "BINGET",
        "BINPUT",
    )
    for opcode in pickletools.opcodes:
        name, code = opcode.name, opcode.code.encode("latin-1")
        lets_through = name in plain or (any(word in name for word in words) and name not in ("UNICODE", "FLOAT"))
        # BYTEARRAY8, INST, OBJ … and the text instructions of the oldest protocol are none of these.
        lets_through &= name not in ("BYTEARRAY8", "BINSTRING")
        try:
            plain_pickle._check_instructions(b"\x80\x04" + code + bytes(16) + b".")
            is_refused = False
        except ForeignFile:
            is_refused = True
        except CaptureError:
            is_refused = False
        if not lets_through:
            assert is_refused, name


def test_a_pickle_cannot_ask_for_memory_it_has_not(tmp_path):
    for content in (
        b"\x80\x02Nr\xff\xff\xff\x7f.", b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", b"\x80\x04X\xff\xff\xff\xff.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b"x.", b"\x80\x02\x8b\xff\xff\xff\x7f.",
    ):  # fmt: skip
        path = tmp_path / "s.pickle"
        path.write_bytes(content)
        with pytest.raises(CaptureError):
            hiwater.open(path)


def test_wherever_it_is_cut_the_error_says_so():
    content = pickle.dumps(sound())
    for end in [*range(2, 60), *range(60, len(content), 97)]:
        with pytest.raises((TruncatedCapture, CorruptCapture)):
            plain_pickle.load(content[:end])


def test_flipped_bytes_give_a_capture_or_one_clear_error(tmp_path, capfd):
    draw, content, refused = random.Random(6), pickle.dumps(sound()), 0
    path = tmp_path / "s.pickle"
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(draw.choice((1, 1, 3, 20))):
            damaged[draw.randrange(2, len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            capture = hiwater.open_run(path).captures[0]
            (
                capture.peak.allocated_bytes,
                capture.timeline,
                capture.allocator,
                list(capture.peak.stacks),
                capture.problems(),
            )
        except CaptureError:
            refused += 1
    assert refused > 100
    path.write_bytes(content[:-40])
    assert main(["report", str(path)]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "truncated" in said


WRONG = [
    {}, {"segments": 3}, {"other": []}, [1, 2], "text", 7, None, {"segments": [{}]}, {"segments": [None]},
    {"segments": [{"address": 1, "total_size": 10, "blocks": [{"size": -5, "state": "active_allocated"}]}]},
    {"segments": [{"address": "x", "total_size": 10, "blocks": [{"size": 5, "state": "active_allocated"}]}]},
    {"segments": [{"address": 1 << 80, "total_size": 10, "blocks": [{"size": 5, "state": "active_allocated"}]}]},
    {"segments": [], "device_traces": [[{"action": "alloc"}]]}, {"segments": [], "device_traces": [[3]]},
    {"segments": [], "device_traces": [[{"action": [], "addr": 1, "size": 1}]]},
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 70}]]},
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1.5}]]},
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "time_us": "now"}]]},
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": [{"name": "f"}]}]]},
    {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1, "frames": 5}]]},
    {"segments": [], "device_traces": 5},
]  # fmt: skip


@pytest.mark.parametrize("data", WRONG, ids=repr)
def test_plain_data_that_is_no_snapshot_is_one_clear_error(data, tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(data))
    with pytest.raises(CaptureError):
        hiwater.open_run(path).captures[0].check()


def test_sums_beyond_any_memory_contradict_themselves_and_do_not_wrap(tmp_path):
    path = tmp_path / "s.pickle"
    events = [
        {"action": "alloc", "addr": number, "size": (1 << 62) + 5, "frames": [], "time_us": 1} for number in range(4)
    ]
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    with pytest.raises(CaptureError):
        hiwater.open(path).check()


def test_deep_nests_are_no_snapshot(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    with pytest.raises(CaptureError):
        hiwater.open(path)


def test_a_gzip_file_that_is_no_profile_is_refused(tmp_path):
    path = tmp_path / "s.pb.gz"
    for content in (gzip.compress(b"hello"), gzip.compress(b"x" * 5000)[:-20], b"\x1f\x8b" + b"0" * 40):
        path.write_bytes(content)
        with pytest.raises(CaptureError):
            hiwater.open(path)


def test_a_large_snapshot_needs_eight_times_its_file_at_most(tmp_path):
    frames, events = [frame(f"function_{number}", number) for number in range(400)], []
    for number in range(100_000):
        common = {
            "addr": 0x7F00_0000_0000 + number * 512,
            "size": number % 5000,
            "stream": 0,
            "time_us": 10**15 + number,
        }
        stack = [frames[(number * place) % 400] for place in range(1, 20)]
        events += [{"action": action, **common, "frames": stack} for action in ("alloc", "free_completed")]
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}, 4))
    program = (
        "import re, sys\nfrom hiwater.capture import histories\n"
        "from hiwater.device_history import build, snapshot\n"
        "peak = lambda: int(re.search('VmHWM:(.*)kB', open('/proc/self/status').read())[1])\n"
        "before = peak()\ncontents = histories.read_one(sys.argv[1])\n"
        "print(peak() - before, len(contents.tables['timeline']))"
    )
    said = run_python("-c", program, path, check=True).stdout
    grown_kib, points = map(int, said.split())
    assert points > 2000
    assert grown_kib * 1024 < 8 * path.stat().st_size


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_a_pickle_has_twice_means_the_same(protocol, tmp_path):
    stack = [frame("step", 3), frame("main", 1)]
    allocated = {"action": "alloc", "addr": 512, "size": 100, "stream": 0, "time_us": 7, "frames": stack}
    freed = {**allocated, "action": "free_completed"}
    shared = {"segments": [], "device_traces": [[allocated, freed, allocated, freed]], "first": allocated}
    shared["itself"] = shared
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(shared, protocol))
    capture = hiwater.open(path)
    assert (capture.peak.allocated_bytes, capture.totals.allocations, capture.totals.frees) == (100, 2, 2)
