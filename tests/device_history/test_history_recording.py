"""Histories of GPU memory in a recording: a simulated allocator below torch's own Python code, a real engine, a real
capture."""

import functools
import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from cuda_double import installed
from cuda_double.versions import VERSIONS
from hiwater.capture import attachments
from hiwater.cli import main
from hiwater.errors import BadRequest, CaptureUnwritable, CorruptCapture
from hiwater.recording import device_histories
from hiwater.recording.imports_under_way import is_loop_under_way
from places import HELPERS
from recording import needs_engine
from snapshot_double import Allocator, frame

torch = pytest.importorskip("torch")
STACK = (frame("forward", 7), frame("main", 3))


@pytest.fixture
def cuda():
    with installed() as double:
        double[0].history.frames = list(STACK)
        yield double


@needs_engine
def test_the_history_is_in_the_capture_and_apart_from_ram(cuda, tmp_path, capsys):
    cuda.initialise()
    path = tmp_path / "run.hiw"
    with hiwater.record(path):
        first = cuda[0].malloc(40 << 20)
        cuda[0].free(first)
        cuda[0].malloc(5 << 20)
    assert cuda.bindings.calls == [
        ("all", "alloc", "python", device_histories.MOST_EVENTS),
        (None, "all", "all", sys.maxsize),
    ]
    capture = hiwater.open(path)
    (device,) = capture.device_histories
    assert (device.device, device.peak.allocated_bytes, device.end.allocated_bytes) == ("cuda:0", 40 << 20, 5 << 20)
    assert capture.peak.allocated_bytes < 20 << 20 and capture.peak.kind_bytes()["device"] == 0
    assert capture.problems() == [] and device.problems() == []
    assert hiwater.open(path / "cuda:0").peak.allocated_bytes == 40 << 20
    assert main(["report", str(path), "--kind", "device", "--format", "collapsed"]) == 0
    assert capsys.readouterr().out == f"main (/work/train.py:3);forward (/work/train.py:7) {40 << 20}\n"
    assert main(["report", str(path), "--full"]) == 0
    assert "Memory of devices" in capsys.readouterr().out
    for form in ("text", "tree", "table", "lines", "json", "svg", "html", "speedscope", "csv"):
        assert main(["report", str(path), "--kind", "device", "--format", form, "-o", str(tmp_path / "out")]) == 0, form


@needs_engine
def test_cuda_that_is_initialised_later_is_noticed(cuda, tmp_path):
    path = tmp_path / "run.hiw"
    with hiwater.record(path):
        assert cuda.bindings.calls == []
        cuda.initialise()
        assert cuda.bindings.calls[0][0] == "all"
        cuda[0].malloc(1 << 20)
    assert hiwater.open(path).device_histories[0].peak.allocated_bytes == 1 << 20
    # After the recording it does nothing.
    assert torch.cuda._queued_calls[-1][0]() is None and len(cuda.bindings.calls) == 2


@needs_engine
def test_a_history_of_the_programs_own_is_used_and_left_on(cuda, tmp_path):
    cuda.initialise()
    torch.cuda.memory._record_memory_history(max_entries=77)
    cuda[0].malloc(3 << 20)
    with hiwater.record(tmp_path / "run.hiw"):
        pass
    assert len(cuda.bindings.calls) == 1 and cuda[0].history.enabled
    assert hiwater.open(tmp_path / "run.hiw").device_histories[0].peak.allocated_bytes == 3 << 20


@needs_engine
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("legacy", [False, True])
def test_a_history_that_the_program_begins_meanwhile_goes_on(version, legacy, tmp_path):
    with installed(version=version) as cuda:
        cuda.initialise()
        record = torch._C._cuda_record_memory_history
        with hiwater.record(tmp_path / "run.hiw"):
            cuda[0].malloc(3 << 20)
            if legacy:
                torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=500)
            else:
                torch.cuda.memory._record_memory_history(max_entries=500)
            cuda[0].malloc(2 << 20)
        assert cuda[0].history.enabled and len(cuda.bindings.calls) == 2
        cuda[0].malloc(1 << 20)
        (events,) = torch.cuda.memory._snapshot()["device_traces"]
        assert [event["size"] >> 20 for event in events if event["action"] == "alloc"] == [3, 2, 1]
        assert torch._C._cuda_record_memory_history == record
        (device,) = hiwater.open(tmp_path / "run.hiw").device_histories
        assert device.end.allocated_bytes == 5 << 20


@needs_engine
def test_a_history_that_the_program_ends_meanwhile_stays_off_and_the_capture_says_so(cuda, tmp_path):
    cuda.initialise()
    with hiwater.record(tmp_path / "run.hiw"):
        cuda[0].malloc(3 << 20)
        torch.cuda.memory._record_memory_history(None)
        cuda[0].malloc(2 << 20)
    assert len(cuda.bindings.calls) == 2 and not cuda[0].history.enabled
    (device,) = hiwater.open(tmp_path / "run.hiw").device_histories
    assert device.end.allocated_bytes == 5 << 20 and "switched torch's history off" in device.facts["notes"]


@needs_engine
def test_a_function_put_over_ours_in_the_meantime_stays(cuda, tmp_path, monkeypatch):
    cuda.initialise()
    with hiwater.record(tmp_path / "run.hiw"):
        below = torch._C._cuda_record_memory_history
        above = functools.partial(below)
        monkeypatch.setattr(torch._C, "_cuda_record_memory_history", above)
    assert torch._C._cuda_record_memory_history is above and not cuda[0].history.enabled


@needs_engine
def test_it_can_be_switched_off(cuda, tmp_path):
    cuda.initialise()
    with hiwater.record(tmp_path / "run.hiw", device_history=False):
        cuda[0].malloc(3 << 20)
    assert cuda.bindings.calls == [] and hiwater.open(tmp_path / "run.hiw").device_histories == ()


@needs_engine
def test_snapshots_of_a_recording_have_it_too(cuda, tmp_path):
    cuda.initialise()
    with hiwater.record(tmp_path / "run.hiw") as recorder:
        cuda[0].malloc(1 << 20)
        shot = recorder.snapshot()
        cuda[0].malloc(2 << 20)
    assert hiwater.open(shot).device_histories[0].peak.allocated_bytes == 1 << 20
    assert hiwater.open(tmp_path / "run.hiw").device_histories[0].peak.allocated_bytes == 3 << 20


@needs_engine
def test_two_recordings_are_compared_and_merged_with_it(cuda, tmp_path, capsys):
    cuda.initialise()
    for number in (1, 2):
        with hiwater.record(tmp_path / f"{number}.hiw"):
            cuda[0].free(cuda[0].malloc(number << 20))
    assert main(["diff", str(tmp_path / "1.hiw"), str(tmp_path / "2.hiw"), "--kind", "device"]) == 0
    assert "1.0 MiB" in capsys.readouterr().out
    told = hiwater.open(tmp_path / "1.hiw").diff(tmp_path / "2.hiw", kind="device")
    assert (told.peak.before, told.peak.after) == (1 << 20, 2 << 20)
    assert main(["merge", "-q", "-o", str(tmp_path / "all.hiw"), str(tmp_path / "1.hiw"), str(tmp_path / "2.hiw")]) == 0
    found = [
        capture.device_histories[0].peak.allocated_bytes for capture in hiwater.open_run(tmp_path / "all.hiw").captures
    ]
    assert found == [1 << 20, 2 << 20]


@needs_engine
def test_a_ring_that_overflowed_is_said_to_have(cuda, tmp_path):
    cuda.initialise()
    histories = device_histories.DeviceHistories(most_events=10)
    histories.begin()
    for _ in range(10):
        cuda[0].malloc(1000)
    content = histories.collect()["torch.pickle"]
    histories.end()
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    assert "overflowed" in hiwater.open(path).facts["notes"]


@needs_engine
def test_a_failing_library_costs_a_warning_and_nothing_else(cuda, tmp_path, monkeypatch):
    cuda.initialise()

    def fails(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.warns(RuntimeWarning, match="illegal memory access"), hiwater.record(tmp_path / "run.hiw"):
        monkeypatch.setattr(torch._C, "_cuda_memorySnapshot", fails)
    assert hiwater.open(tmp_path / "run.hiw").device_histories == ()


@needs_engine
def test_programs_without_a_gpu_meet_nothing_of_it(tmp_path):
    program = tmp_path / "p.py"
    program.write_text(
        "import sys, torch\ntorch.ones(10)\n"
        "queued = torch.cuda._queued_calls[3 + bool(torch.version.cuda):]\n"  # one begins a history once CUDA begins
        "assert not torch.cuda.is_initialized() and not queued, queued\n"
        "assert 'zipfile' not in sys.modules or 'torch' in sys.modules\n"
    )
    for more, loaded in (([], ()), (["--no-device-history"], ("torch",))):
        out = tmp_path / "run.hiw"
        done = run_hiwater("run", *more, "-o", out, program, loaded=loaded)
        assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
        assert hiwater.open(out).device_histories == ()


LATE = """
import sys, time
sys.path.insert(0, {helpers!r})
from cuda_double import install

cuda = install()
begun = time.monotonic()
while len(cuda.module._queued_calls) < 4 and time.monotonic() < begun + 60:
    sum(range(1000))
cuda.module.init()
cuda[0].malloc(3 << 20)
print(cuda[0].history.enabled)
"""


@needs_engine
def test_torch_that_is_loaded_later_is_noticed_by_the_engine(tmp_path):
    program = tmp_path / "late.py"
    program.write_text(LATE.format(helpers=str(HELPERS)))
    out = tmp_path / "run.hiw"
    done = run_hiwater("run", "-o", out, program)
    assert done.returncode == 0 and done.stdout.startswith("True"), done.stderr
    (device,) = hiwater.open(out).device_histories
    assert device.peak.allocated_bytes == 3 << 20


@needs_engine
def test_a_program_that_allocates_right_after_its_import_of_torch_meets_our_call_in_the_queue(tmp_path):
    """The installed torch, except that its version says that it is built for CUDA."""
    real = Path(torch.__file__).parent
    (tmp_path / "torch").mkdir()
    for entry in real.iterdir():
        if entry.name not in {"version.py", "__pycache__"}:
            (tmp_path / "torch" / entry.name).symlink_to(entry)
    version = re.sub(r"^cuda\b.*", "cuda = '13.0'", (real / "version.py").read_text(), flags=re.MULTILINE)
    (tmp_path / "torch" / "version.py").write_text(version)
    program = tmp_path / "at_once.py"
    program.write_text("import torch\nprint([call.__name__ for call, _ in torch.cuda._queued_calls])\n")
    done = run_hiwater("run", "-o", tmp_path / "run.hiw", program, environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0 and "_run_calls" in done.stdout, done.stdout + done.stderr


NOTHING_LATER = """
import sys, time
sys.path.insert(0, {helpers!r})
import torch
from cuda_double import install

cuda = install()
before = set(sys.modules)
cuda.module.init()
cuda[0].malloc(3 << 20)
until = time.monotonic() + 1
while time.monotonic() < until:
    sum(range(1000))
print(sorted(set(sys.modules) - before))
"""


@needs_engine
def test_all_that_is_imported_for_devices_comes_with_the_programs_own_import(tmp_path):
    """An import of ours at any other moment would break a loop of the program over `sys.modules`."""
    program = tmp_path / "program.py"
    program.write_text(NOTHING_LATER.format(helpers=str(HELPERS)))
    done = run_hiwater("run", "-o", tmp_path / "run.hiw", program)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_loop_over_the_modules_is_seen_while_it_lasts():
    assert not is_loop_under_way()
    for view in (sys.modules, sys.modules.values(), sys.modules.items()):
        loop = iter(view)
        next(loop)
        assert is_loop_under_way()
        for _ in loop:
            pass
        assert not is_loop_under_way()


# A torch whose import takes a lock of the import system that is hard to get.
LOCKS = """
import sys, time
from importlib._bootstrap import _ModuleLock

class Slow:
    def __enter__(self):
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            sum(range(100))

    def __exit__(self, *error):
        pass

lock = _ModuleLock("another")
lock.lock = Slow()
lock.acquire()
until = time.monotonic() + 60
while "hiwater.recording.device_histories" not in sys.modules and time.monotonic() < until:
    sum(range(1000))
print("hiwater.recording.device_histories" in sys.modules)
"""


@needs_engine
def test_an_import_of_ours_waits_until_the_program_has_the_lock_of_its_own(tmp_path):
    """Before 3.12.1 the program's import would end with a KeyError."""
    (tmp_path / "torch.py").write_text(LOCKS)
    (tmp_path / "program.py").write_text("import torch\n")
    done = run_hiwater("run", "-o", tmp_path / "run.hiw", tmp_path / "program.py")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


INSIDE = """
import sys, time
sys.path.insert(0, {helpers!r})
import torch
from cuda_double import install

cuda = install(version={version!r})

def work_for_a_while(name):
    if name == {place!r}:
        calls = len(cuda.module._queued_calls), len(cuda.bindings.calls)
        until = time.monotonic() + 60
        while (len(cuda.module._queued_calls), len(cuda.bindings.calls)) == calls and time.monotonic() < until:
            sum(range(1000))
            time.sleep(0.001)

cuda.bindings.place = work_for_a_while
cuda.module.init()
print(cuda[0].history.enabled)
cuda[0].malloc(3 << 20)
"""


@pytest.mark.grid
@needs_engine
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", ["lazyInitDevice", "generators set"])
def test_the_engines_own_call_may_fall_due_in_the_middle_of_the_initialisation(tmp_path, version, place):
    program = tmp_path / "inside.py"
    program.write_text(INSIDE.format(helpers=str(HELPERS), version=version, place=place))
    done = run_hiwater("run", "-o", tmp_path / "run.hiw", program, loaded=("torch",))
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    (device,) = hiwater.open(tmp_path / "run.hiw").device_histories
    assert device.peak.allocated_bytes == 3 << 20 and device.live_before_bytes == 0


@needs_engine
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")
def test_jax_tells_its_profile_where_it_used_more_than_the_cpu(tmp_path):
    pytest.importorskip("google.protobuf")
    code = """
import types, hiwater, jax
from hiwater import _registry
from hiwater.recording import device_histories
from jax._src import xla_bridge
kept = jax.block_until_ready(jax.numpy.ones((300, 300), "float32"))
assert _registry.load(_registry.JAX_PROFILE)() is None
class Client:
    heap_profile = xla_bridge._default_backend.heap_profile
    def local_devices(self):
        return [types.SimpleNamespace(platform="gpu", id=0, memory_stats=lambda: None)]
xla_bridge._default_backend = Client()
with hiwater.record("run.hiw"):
    pass
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    (device,) = hiwater.open(tmp_path / "run.hiw").device_histories
    assert device.device == "jax:0" and device.end.allocated_bytes >= 4 * 300 * 300


# What is attached


@pytest.fixture
def plain(tmp_path):
    pytest.importorskip("hiwater._core")
    path = tmp_path / "plain.hiw"
    with hiwater.record(path):
        block = bytearray(1 << 20)
    del block
    return path


def test_what_is_attached_comes_back_and_changes_nothing_else(plain):
    before = hiwater.open(plain)
    large = os.urandom(700_000)
    attachments.append(str(plain), {"a.bin": large, "b.txt": b""})
    after = hiwater.open(plain)
    assert attachments.read(after) == {"a.bin": large, "b.txt": b""}
    for name, table in before.tables.contents.tables.items():
        assert (after.tables[name] == table).all()
    assert {k: v for k, v in after.tables.contents.header.items() if k not in ("extents_used", "table_count")} == {
        k: v for k, v in before.tables.contents.header.items() if k not in ("extents_used", "table_count")
    }


def test_room_for_more_tables_is_made_where_there_is_none(plain, monkeypatch):
    before = hiwater.open(plain)
    field = "table_count"
    original = attachments._CaptureExtender._field

    def with_little_room(self, name):
        found = original(self, name)
        if name == field and found[2] != attachments._MORE_COUNTS_OFFSET:
            found[3] = len(self._schema["tables"]) - 1
        return found

    monkeypatch.setattr(attachments._CaptureExtender, "_field", with_little_room)
    attachments.append(str(plain), {"a": b"x"})
    after = hiwater.open(plain)
    assert attachments.read(after) == {"a": b"x"} and after.peak.allocated_bytes == before.peak.allocated_bytes


def test_attaching_twice_or_to_something_else_is_refused(plain, tmp_path):
    attachments.append(str(plain), {"a": b"x"})
    with pytest.raises(CaptureUnwritable, match="attached to it already"):
        attachments.append(str(plain), {"a": b"y"})
    other = tmp_path / "other"
    other.write_bytes(b"x" * 5000)
    with pytest.raises(CaptureUnwritable):
        attachments.append(str(other), {"a": b"y"})


def test_what_is_attached_and_damaged_is_one_clear_error(plain, capsys):
    attachments.append(str(plain), {"torch.pickle": pickle.dumps(Allocator().snapshot())})
    content = bytearray(plain.read_bytes())
    place = content.index(b"PK\x03\x04")
    content[place + 60] ^= 0xFF
    plain.write_bytes(content)
    capture = hiwater.open(plain)
    assert capture.peak.allocated_bytes
    with pytest.raises(CorruptCapture):
        capture.device_histories  # noqa: B018 - it is read when it is asked for
    assert main(["report", str(plain), "--full"]) == 0  # what is known of RAM is shown all the same
    shown = capsys.readouterr()
    assert "cannot be read" in shown.out and "Memory of devices" not in shown.out
    assert main(["report", str(plain), "--kind", "device"]) == 2


def test_several_devices_of_a_recording_are_compared_one_by_one(plain, cuda):
    data = Allocator(device=0)
    data.alloc(1000, STACK)
    one = data.snapshot()
    other = Allocator(device=1)
    other.alloc(3000, STACK)
    more = other.snapshot()
    both = {
        "segments": one["segments"] + more["segments"],
        "device_traces": [one["device_traces"][0], more["device_traces"][1]],
    }
    attachments.append(str(plain), {"torch.pickle": pickle.dumps(both)})
    capture = hiwater.open(plain)
    assert [device.device for device in capture.device_histories] == ["cuda:0", "cuda:1"]
    with pytest.raises(BadRequest, match="several devices"):
        capture.diff(capture, kind="device")


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_on_a_gpu_the_history_has_the_peak_that_torch_counts(tmp_path):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    with hiwater.record(tmp_path / "run.hiw"):
        kept = [torch.empty(1 << 20, device="cuda") for _ in range(8)]
        del kept[::2]
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    histories = hiwater.open(tmp_path / "run.hiw").device_histories
    (device,) = [history for history in histories if history.device == "cuda:0"]  # JAX may be loaded, too
    assert device.peak.allocated_bytes == peak and device.end.allocated_bytes == before + 4 * (4 << 20)
    assert any(frame.file == __file__ for stack in device.peak.stacks for frame in stack.frames)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")
def test_on_a_gpu_the_history_costs_little(tmp_path):
    import statistics
    import time

    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8))).cuda()
    data = torch.randn(512, 2048, device="cuda")

    def seconds():
        begun = time.perf_counter()
        for _ in range(30):
            model(data).sum().backward()
            model.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    seconds()
    ratios = []
    for _ in range(5):
        plain = seconds()
        histories = device_histories.DeviceHistories()
        histories.begin()
        with_history = seconds()
        histories.end()
        ratios.append(with_history / plain)
    assert statistics.median(ratios) <= 1.05, ratios
