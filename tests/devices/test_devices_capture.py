"""Captures with devices: real recordings of programs over a simulated allocator, in every view of them."""

import json
import signal
from io import StringIO

import pytest

import compiled
import hiwater
import schemas
from children import run_hiwater, run_python
from hiwater._registry import DEVICE_LIBRARIES
from hiwater.cli import main
from hiwater.report.export import json_report
from hiwater.report.request import Report
from packages import skip_without
from page_reader import Page, page_of
from places import HELPERS
from recording import needs_engine

skip_without("torch")

pytestmark = needs_engine
MIB = 1 << 20
WAIT = """
import sys, time, os, signal
def wait(seconds):
    until = time.time() + seconds
    while time.time() < until:
        sum(range(500))
        time.sleep(0.001)
def wait_until(happened):  # it computes meanwhile: the engine looks for devices at an allocation
    until = time.time() + 60
    while not happened() and time.time() < until:
        wait(0.01)
def open_scopes():  # one, of the recording, once a device in use is met
    manager = sys.modules.get("hiwater.scopes.manager")
    return manager.SCOPE_MANAGER.open_scopes if manager is not None else 0
"""
CUDA = f"""
sys.path.insert(0, {str(HELPERS)!r})
import cuda_double, torch
cuda = cuda_double.install(2)
"""
SETUP = WAIT + CUDA


def run(tmp_path, body, *, setup=SETUP, expect=0, loaded=("torch",)):
    (tmp_path / "program.py").write_text(setup + body)
    done = run_hiwater("run", "-o", "run.hiw", "program.py", folder=tmp_path, loaded=loaded)
    assert done.returncode == expect, done.stderr
    return hiwater.open(tmp_path / "run.hiw"), done


COUNTED = """
from hiwater import _core
sample, samples = _core.sample_device, 0
def counted(*figures):
    global samples
    sample(*figures)
    samples += 1
_core.sample_device = counted
def wait_for_samples(more):
    wanted = samples + more
    wait_until(lambda: samples >= wanted)
"""
PEAKS = (
    COUNTED
    + """
cuda.initialise(0)
cuda[0].free(cuda[0].malloc(900 << 20))
held = cuda[0].malloc(100 << 20)
wait_for_samples(8)
cuda[0].free(cuda[0].malloc(200 << 20))
wait_for_samples(2)  # one may have begun before
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated() >> 20)
cuda.initialise(1)
cuda[1].malloc(5 << 20)
wait_for_samples(2)
cuda[0].free(held)
"""
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run(tmp_path_factory.mktemp("devices"), PEAKS)


def test_peaks_before_the_first_look_and_before_the_programs_reset_are_there(tmp_path):
    capture, done = run(tmp_path, PEAKS, loaded=())  # torch is imported in the recording, as usual
    first, second = capture.devices
    assert done.stdout == "100\n"  # the program's own peak, since it reset it
    assert (first.name, first.backend, first.exact, first.limit_bytes) == ("cuda:0", "torch", True, 80 << 30)
    assert (first.peak_allocated_bytes, first.peak_reserved_bytes) == (900 * MIB, 900 * MIB)
    assert first.peak_used_bytes is None
    assert (second.name, second.peak_allocated_bytes) == ("cuda:1", 5 * MIB)


def test_samples_miss_no_peak_between_them(made):
    first = made[0].devices[0]
    assert len(first.at_ns) > 8
    assert sorted(first.at_ns.tolist()) == first.at_ns.tolist()
    assert 300 * MIB in first.peaks_bytes.tolist()  # it was there for no time at all
    assert first.allocated_bytes[-1] == 0


def test_the_summary_the_report_and_the_timeline_name_them(made, capsys):
    capture, done = made
    assert "cuda:0 900.0 MiB allocated / 900.0 MiB reserved, cuda:1 5.0 MiB allocated" in done.stderr
    assert len(done.stderr.splitlines()) == 3
    assert main(["report", str(capture.path), "--full"]) == 0
    said = capsys.readouterr().out
    assert "cuda:0     900.0 MiB allocated · 900.0 MiB reserved · of 80.0 GiB  exact" in said
    assert "Where the memory of cuda:0 was" in said
    assert "unaccounted" in said
    (curve,) = [line for line in said.splitlines() if line.startswith("  cuda:0") and "█" in line]
    assert "900.0 MiB" in curve
    assert main(["report", str(capture.path), "--format", "timeline"]) == 0
    assert "cuda:0 allocated" in capsys.readouterr().out


def test_json_keeps_to_its_schema(made):
    stream = StringIO()
    report = Report(made[0], made[0].peak)
    json_report.write([report], stream)
    said = json.loads(stream.getvalue())
    schemas.check(said, "report")
    first = said["devices"][0]
    assert (first["name"], first["peak_allocated_bytes"], first["peak_used_bytes"]) == ("cuda:0", 900 * MIB, None)
    terms = {term["name"]: term["bytes"] for term in first["breakdown"]["terms"]}
    assert terms["tensors, requested"] + terms["fragments"] + terms["cached"] == 900 * MIB
    assert terms["unaccounted"] is None  # no driver here


def test_the_page_has_a_curve_for_each_device(made):
    text = page_of([Report(made[0], made[0].peak)])
    page = Page(text)  # which keeps to its schema
    curves = {series["name"]: series for series in page.unpacked.head["captures"][0]["timeline"]["series"]}
    assert [name for name, series in curves.items() if series["group"] == "device"] == [
        "cuda:0 allocated",
        "cuda:1 allocated",
    ]
    assert page.unpacked.column(curves["cuda:0 allocated"]["bytes"]).max() == 900 * MIB
    assert "on cuda:0 at its peak" in text  # without scripts, too


def test_a_killed_program_leaves_its_devices(tmp_path):
    body = """
cuda.initialise(0)
cuda[0].free(cuda[0].malloc(700 << 20))
wait_for_samples(2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    capture, _ = run(tmp_path, COUNTED + body, expect=-signal.SIGKILL)
    assert capture.process.ended == "killed"
    assert [(device.name, device.peak_allocated_bytes) for device in capture.devices] == [("cuda:0", 700 * MIB)]


def test_a_program_that_leaves_no_time_to_look_has_its_peak(tmp_path):
    capture, _ = run(tmp_path, "cuda.initialise(0)\ncuda[0].free(cuda[0].malloc(700 << 20))\nos._exit(3)\n", expect=3)
    assert [device.peak_allocated_bytes for device in capture.devices] == [700 * MIB]


def test_a_check_of_the_engine_in_the_middle_of_the_last_look_adds_no_device(tmp_path):
    slow = """
class Slow:
    def find_spec(name, path=None, target=None):
        if name == "hiwater.recording.device_sampler":
            print("begins", flush=True)
            wait(0.6)  # the engine checks five times a second

sys.meta_path.insert(0, Slow)  # before torch is loaded: from then on the engine may begin
"""
    body = "cuda.initialise(0)\ncuda[0].free(cuda[0].malloc(700 << 20))\nos._exit(3)\n"
    capture, done = run(tmp_path, body, setup=WAIT + slow + CUDA, expect=3, loaded=())
    assert done.stdout.splitlines() == ["begins"]
    assert [device.peak_allocated_bytes for device in capture.devices] == [700 * MIB]


def test_scopes_of_the_program_and_the_recording_do_not_disturb_each_other(tmp_path):
    body = """
import hiwater
cuda.initialise(0)
with hiwater.track("a") as a:
    cuda[0].free(cuda[0].malloc(700 << 20))
    wait(0.5)
    with hiwater.track("b") as b:
        cuda[0].free(cuda[0].malloc(90 << 20))
        wait(0.2)
print([t.usage.gpu[0].peak_bytes >> 20 for t in (a, b)], torch.cuda.max_memory_allocated() >> 20, a.usage.gpu[0].exact)
"""
    capture, done = run(tmp_path, body)
    assert done.stdout == "[700, 90] 700 True\n"
    assert capture.devices[0].peak_allocated_bytes == 700 * MIB


def test_a_check_of_the_engine_while_a_scope_begins_leaves_it_its_peaks(tmp_path):
    body = """
import hiwater
from hiwater.scopes.manager import SCOPE_MANAGER
def create(name):
    made = of_manager(name)
    if name.endswith("allocated"):
        wait(0.6)  # the engine checks five times a second
    return made
of_manager, SCOPE_MANAGER._create = SCOPE_MANAGER._create, create
cuda.initialise(0)
with hiwater.track("a") as a:
    cuda[0].free(cuda[0].malloc(700 << 20))
    wait_until(lambda: open_scopes() == 2)
print(a.usage.gpu[0].peak_bytes >> 20, a.usage.gpu[0].exact)
"""
    capture, done = run(tmp_path, body)
    assert done.stdout == "700 True\n"
    assert capture.devices[0].peak_allocated_bytes == 700 * MIB


_ASKED = """
from hiwater.recording.device_sampler import DeviceSampler
def asked(self):
    print("asked")
    return False
DeviceSampler.consider = asked
"""


def test_the_engine_waits_for_the_libraries_that_there_are_meters_for():
    assert tuple(DEVICE_LIBRARIES) == pytest.importorskip("hiwater._core").DEVICE_LIBRARIES


def test_nothing_of_pythons_runs_as_long_as_no_library_is_loaded(tmp_path):
    body = """
import time, os, sys
until = time.time() + 0.7
while time.time() < until:
    sum(range(500))
print(len(os.listdir("/proc/self/task")), "hiwater.scopes.manager" in sys.modules)
sys.modules["jax"] = sys
until = time.time() + 0.7
while time.time() < until:
    sum(range(500))
"""
    code = _ASKED + f"import hiwater\nwith hiwater.record({str(tmp_path / 'run.hiw')!r}):\n    exec({body!r})\n"
    done = run_python("-c", code, check=True)
    before, *after = done.stdout.splitlines()
    assert before == "2 False"
    assert 1 <= len(after) <= 5
    assert set(after) == {"asked"}


def test_an_import_of_the_programs_that_is_half_way_is_not_met(tmp_path):
    body = """
for name in ("torch", "typing", "re", "dataclasses", "enum"):
    sys.modules.pop(name, None)

class Slow:
    def find_spec(name, path=None, target=None):
        if name == "enum":
            sys.modules["torch"] = torch
            cuda.initialise(0)  # here, because a device in use before the import is met
            cuda[0].free(cuda[0].malloc(700 << 20))
            wait(1.0)
            print(open_scopes())

sys.meta_path.insert(0, Slow)
print(open_scopes())
import re
print(re.compile("a").match("a").end())
wait_until(open_scopes)
print(open_scopes())
"""
    capture, done = run(tmp_path, body)
    assert done.stdout.splitlines() == ["0", "0", "1", "1"]
    assert "warning" not in done.stderr
    assert capture.devices[0].peak_allocated_bytes == 700 * MIB


def test_a_recording_in_the_middle_counts_from_there(tmp_path):
    body = f"""
import hiwater
cuda.initialise(0)
cuda[0].free(cuda[0].malloc(700 << 20))
held = cuda[0].malloc(50 << 20)
with hiwater.record({str(tmp_path / "inner.hiw")!r}):
    cuda[0].free(cuda[0].malloc(100 << 20))
print(torch.cuda.max_memory_allocated() >> 20)
"""
    done = run_python("-c", SETUP + body)
    assert done.stdout == "700\n", done.stderr
    (device,) = hiwater.open(tmp_path / "inner.hiw").devices
    assert (device.allocated_bytes[0], device.peak_allocated_bytes, device.exact) == (50 * MIB, 150 * MIB, True)


def test_a_forked_child_goes_on_and_its_scopes_say_that_devices_are_the_parents(tmp_path):
    body = """
import hiwater
cuda.initialise(0)
cuda[0].malloc(70 << 20)
wait(0.5)
with hiwater.track("a") as a:
    pid = os.fork()
    if pid == 0:
        cuda[0].malloc(5 << 20)
if pid == 0:
    print(a.usage.gpu, "forked child" in str(a.usage.unmeasured), flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print(a.usage.gpu[0].peak_bytes >> 20)
"""
    _, done = run(tmp_path, body)
    assert done.stdout == "[] True\n70\n"


def test_samples_grow_with_the_logarithm_of_the_time(tmp_path):
    body = """
from hiwater import _core
from hiwater.recording import device_sampler
number = _core.add_device("x:0", "x", "a test", -1)
for step in range(4000):
    _core.sample_device(number, step, 2 * step, -1, -1, -1, True, "")
"""
    capture, _ = run(tmp_path, body)
    (device,) = capture.devices
    assert len(device.at_ns) < 10
    assert (device.allocated_bytes[-1], device.peaks_bytes[-1], device.peak_allocated_bytes) == (3999, 7998, 7998)


WITH_DRIVER = """
import driver_double
driver_double.compiled.library = {}.__getitem__
driver = driver_double.Driver()
mine = driver.card(used=2 << 30)
def until_asked():
    before = driver.process_lists
    wait_until(lambda: driver.process_lists != before)
    wait(0.3)
"""


def with_driver():
    """For a program's first lines: a driver with one card, `mine`, which is cuda:0."""
    pytest.importorskip("pynvml")
    return WITH_DRIVER.replace("{}", repr({"nvml": str(compiled.library("nvml"))}))


def test_the_drivers_figures_are_sampled_and_the_context_is_told_from_what_comes_later(tmp_path):
    body = """
driver.processes(mine, {os.getpid(): 450 << 20, 77: 200 << 20})
cuda.initialise(0)
until_asked()
cuda[0].malloc(100 << 20)
driver.processes(mine, {os.getpid(): 580 << 20, 77: 200 << 20})
until_asked()
"""
    capture, done = run(tmp_path, with_driver() + body)
    (device,) = capture.devices
    assert device.peak_used_bytes == 580 * MIB
    assert "580.0 MiB used" in done.stderr
    terms = dict(device.snapshots[-1].terms)
    assert (terms["context, at first sight"], terms["unaccounted"]) == (450 * MIB, 30 * MIB)
    assert (terms["used by this process"], terms["other processes"]) == (580 * MIB, 200 * MIB)


def test_a_driver_that_refuses_figures_leaves_the_librarys_as_they_are(tmp_path):
    """As on a GB10, where the driver tells no memory of the card: the rest, and torch's own figures, go on."""
    body = """
driver.refuse(*driver_double.MEMORY_OF_CARDS)
driver.processes(mine, {os.getpid(): 580 << 20})
cuda.initialise(0)
cuda[0].free(cuda[0].malloc(100 << 20))
until_asked()
driver.refuse(*driver_double.LISTS, error=driver_double.GPU_IS_LOST)
cuda[0].free(cuda[0].malloc(700 << 20))
until_asked()
"""
    capture, done = run(tmp_path, with_driver() + body)
    (device,) = capture.devices
    assert (device.peak_allocated_bytes, device.exact) == (700 * MIB, True)
    assert len(device.at_ns) > 3
    assert device.peak_used_bytes == 580 * MIB
    assert "warning" not in done.stderr
    first, last = dict(device.snapshots[0].terms), dict(device.snapshots[-1].terms)
    assert (first["used by this process"], first["used on the card"]) == (580 * MIB, None)
    assert (last["used by this process"], last["other processes"]) == (None, None)


def test_a_fault_in_asking_the_driver_takes_nothing_from_the_librarys_figures(tmp_path):
    body = """
cuda.initialise(0)
cuda[0].free(cuda[0].malloc(100 << 20))
until_asked()
import pynvml
hits = []
def broken(*_):
    hits.append(1)
    raise OSError("libnvidia-ml.so.1: version mismatch")
pynvml.nvmlDeviceGetComputeRunningProcesses = broken
wait_until(lambda: hits)
cuda[0].free(cuda[0].malloc(700 << 20))
"""
    capture, done = run(tmp_path, with_driver() + body)
    (device,) = capture.devices
    assert (device.peak_allocated_bytes, device.exact) == (700 * MIB, True)
    assert "the GPU driver's figures are missing at the end: OSError: libnvidia-ml" in done.stderr


def test_a_library_that_fails_ends_the_sampling_and_nothing_else(tmp_path):
    body = """
from hiwater.contrib.devices.torch import Torch
held, hits = Torch.limit_bytes, []
def told(self, device):
    hits.append(1)
    return held(self, device)
Torch.limit_bytes = told
cuda.initialise(0)
cuda[0].malloc(70 << 20)
wait_until(lambda: hits)
def broken(self, device):
    hits.append(2)
    raise RuntimeError("CUDA error: unspecified launch failure")
Torch.limit_bytes = broken
cuda.initialise(1)
wait_until(lambda: 2 in hits)
cuda[0].malloc(700 << 20)
print("goes on")
"""
    capture, done = run(tmp_path, body)
    (device,) = capture.devices
    assert done.stdout == "goes on\n"
    assert (device.peak_allocated_bytes, device.exact) == (70 * MIB, False)
    assert device.reason == "not measured to the end: RuntimeError: CUDA error: unspecified launch failure"
    assert "warning: memory of devices was not measured to the end: RuntimeError: CUDA error" in done.stderr
