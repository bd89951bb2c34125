"""Device meters of JAX (the real one, on a CPU), and of torch's other types of device."""

import importlib.util
import os
import subprocess
import sys
import types

import pytest

import hiwater
import jax_double
from children import run_hiwater, run_python
from cuda_double import Card, forget
from cuda_double.device_allocator import DeviceAllocator
from hiwater.meters import devices
from hiwater.meters.devices.statistics import currents_and_peaks, leaves
from recording import needs_engine

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_known():
    forget()
    yield
    forget()


def module(monkeypatch, name, **attributes):
    made = types.ModuleType(name)
    made.__version__ = "0"
    made.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_statistics_of_any_depth_are_flattened_and_what_is_no_number_left_out():
    nested = {"a": 1, "b": {"c": {"d": {"e": 4}}}, "f": None, "g": True, "h": {}, "i": 1.5}
    assert dict(leaves(nested)) == {"a": 1, "b.c.d.e": 4}
    nested = {"x": {"y": {"current": 1, "peak": 2}, "z": {"current": 1}}, "n": 3, "v": {"current": 5, "peak": 6}}
    nested["deep"] = {"a": {"b": {"current": 7, "peak": 8}, "c": {"d": {"current": 9, "peak": 10}}}}
    nested["pools"] = {(0, 1): {"all": {"current": 3, "peak": 4}}}  # as torch keys private pools, and flattens them
    assert currents_and_peaks(nested) == {
        "x.y": (1, 2),
        "v": (5, 6),
        "deep.a.b": (7, 8),
        "deep.a.c.d": (9, 10),
        "pools.0_1.all": (3, 4),
    }
    assert dict(leaves(nested))["pools.0_1.all.peak"] == 4


def test_no_library_is_loaded_by_looking():
    code = "import hiwater, sys\nwith hiwater.track(meters=('gpu',)) as t: pass\n"
    code += "print([n for n in ('torch', 'jax', 'pynvml') if n in sys.modules], t.usage.gpu)"

    done = run_python("-c", code, env={**os.environ, "PYTHONPATH": "src"}, check=True)
    assert done.stdout.strip() == "[] []"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")
def test_jax_on_a_cpu_is_asked_and_tells_nothing():
    code = """
import jax, hiwater
from hiwater.meters import devices
source = devices.backend("jax")
assert "has not initialised" in source.status().reason
jax.numpy.zeros(10).block_until_ready()
assert "no device with memory statistics" in source.status().reason
with hiwater.track() as t:
    pass
assert t.usage.gpu == []
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# What JAX does while it initialises its backends, for longer: it has its locks, and runs Python code in this thread.
# The recording looks for devices at an allocation.
INITIALISES = """
import time
import jax
from jax._src import xla_bridge
with xla_bridge._plugin_lock, xla_bridge._backend_lock:
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        held = bytes(1000)
print(jax.numpy.ones(3).sum())
"""


@needs_engine
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")
def test_a_recording_looks_for_devices_while_jax_has_its_locks(tmp_path):
    (tmp_path / "program.py").write_text(INITIALISES)
    done = run_hiwater("run", "-q", "-o", tmp_path / "c.hiw", tmp_path / "program.py")
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr


class JaxDevice:
    platform, id = "gpu", 0

    def __init__(self):
        self.stats = {"bytes_in_use": 0, "peak_bytes_in_use": 0, "bytes_limit": 60 << 30, "pool_bytes": -1}

    def memory_stats(self):
        return self.stats

    def hold(self, size):
        self.stats["bytes_in_use"] = size
        self.stats["peak_bytes_in_use"] = max(size, self.stats["peak_bytes_in_use"])


@pytest.fixture
def jax_device(monkeypatch):
    device = JaxDevice()
    module(monkeypatch, "jax")
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", jax_double.bridge_with(device))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return device


def test_a_mark_that_cannot_be_started_anew_is_exact_for_a_scope_in_which_it_rose(jax_device):
    jax_device.hold(5 * MIB)
    with hiwater.track() as outer:
        jax_device.hold(9 * MIB)
        jax_device.hold(MIB)
        with hiwater.track() as inner:
            jax_device.hold(3 * MIB)
    first, second = outer.usage.gpu[0], inner.usage.gpu[0]
    assert (first.start_bytes, first.peak_bytes, first.end_bytes, first.exact) == (5 * MIB, 9 * MIB, 3 * MIB, True)
    assert (second.start_bytes, second.peak_bytes, second.exact) == (MIB, 3 * MIB, False)
    assert "cannot be reset" in second.reason
    assert list(first.levels) == ["allocated"]  # -1 is unknown
    assert devices.backend("jax").limit_bytes(devices.backend("jax").devices()[0]) == 60 << 30


# torch's other types of device, over the same statistics under their own names


def small_torch():
    """A module in torch's place that has what finding its devices takes."""
    torch = types.ModuleType("torch")
    torch.__version__, torch._C, torch.version = "0", types.SimpleNamespace(), types.SimpleNamespace(cuda="0")
    cuda = torch.cuda = types.ModuleType("torch.cuda")
    cuda._initialized = False
    cuda.is_initialized = lambda: cuda._initialized
    cuda.device_count = cuda.get_device_properties = None
    sys.modules["torch"] = torch
    return torch


def other_torch(kind):
    """A torch built for another accelerator than CUDA, with one allocator; its first device is in use."""
    torch, allocator = small_torch(), DeviceAllocator(Card(0), MemoryError)
    doors = {
        "statistics": lambda _: allocator.stats.nested(private_pools=True),
        "reset": lambda _: allocator.stats.reset_peak(),
    }
    if kind == "xpu":
        torch._C._xpu_memoryStats, torch._C._xpu_resetPeakMemoryStats = doors.values()
        torch.xpu = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)
    if kind != "mps":
        torch._C._accelerator_getDeviceStats, torch._C._accelerator_resetPeakStats = doors.values()
        torch._C._accelerator_isAllocatorInitialized = lambda: True
        current = types.SimpleNamespace(type=kind)
        torch.accelerator = types.SimpleNamespace(current_accelerator=lambda: current, device_count=lambda: 1)
    else:
        torch._C._has_mps = True
        torch.backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: True))
        torch.mps = types.SimpleNamespace(
            current_allocated_memory=lambda: allocator.now("allocated_bytes"),
            driver_allocated_memory=lambda: allocator.now("reserved_bytes"),
            recommended_max_memory=lambda: 20 << 30,
        )
    return torch, allocator


@pytest.mark.parametrize("kind", ["xpu", "npu", "mps"])
def test_other_accelerators_come_through_the_same_adapter(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "torch", None)  # so that what stands there now comes back
    monkeypatch.setitem(sys.modules, "pynvml", None)
    torch, allocator = other_torch(kind)
    with hiwater.track() as outer:
        allocator.free(allocator.malloc(9 * MIB))
        with hiwater.track() as inner:
            allocator.malloc(2 * MIB)
    (whole,), (part,) = outer.usage.gpu, inner.usage.gpu
    assert (whole.name, part.kept_bytes) == (kind if kind == "mps" else f"{kind}:0", 2 * MIB)
    if kind == "mps":
        assert (whole.exact, whole.peak_bytes) == (False, 2 * MIB)
        assert "no peak" in whole.reason
        return
    assert (whole.exact, whole.peak_bytes, part.peak_bytes) == (True, 9 * MIB, 2 * MIB)
    shown = torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["peak"]
    assert shown == 9 * MIB  # the program's own, by either name


def test_a_torch_without_the_functions_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    torch = small_torch()
    torch.cuda._initialized = True
    assert "shows no statistics of cuda" in devices.backend("torch").status().reason
    with hiwater.track() as t:
        pass
    assert t.usage.gpu == []


LOADS_LATE = """
import os, sys, time
import jax  # beside this file
time.sleep(0.5)
names = [name for name in sys.modules if name.startswith("hiwater.contrib.torch") or name == "pynvml"]
with open("/proc/self/statm") as file:
    resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
print(names, "hiwater.meters.devices" in sys.modules, resident)
"""


@needs_engine
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="with a driver, pynvml is needed")
def test_what_is_loaded_for_devices_is_hiwaters_overhead_and_no_more_than_needed(tmp_path):
    (tmp_path / "jax.py").write_text("import time; time.sleep(0.3); __version__ = '0'")
    program = tmp_path / "program.py"
    program.write_text(LOADS_LATE)
    *_, plain = run_python(program, check=True).stdout.split()
    done = run_hiwater("run", "-o", tmp_path / "c.hiw", program, check=True)
    names, is_loaded, _ = done.stdout.split()
    assert (names, is_loaded) == ("[]", "True")
    resident = hiwater.open(tmp_path / "c.hiw").resident
    assert resident.program_end_bytes == pytest.approx(int(plain), abs=1.5 * MIB)  # 2.6 where it is not counted
