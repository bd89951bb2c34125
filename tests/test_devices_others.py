"""Device meters of JAX (the real one, on a CPU), and of CuPy, TensorFlow, RMM and NVML over objects that count as theirs are documented to."""

import importlib.util
import os
import subprocess
import sys
import types

import pytest

import gpu_double
import hiwater
from hiwater.errors import MeterUnavailable
from hiwater.meters import devices
from hiwater.meters.devices import nvml as nvml_module
from hiwater.meters.devices.base import leaves, marks

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_known():
    gpu_double.forget()
    yield
    gpu_double.forget()


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
    assert marks(nested) == {"x.y": (1, 2), "v": (5, 6), "deep.a.b": (7, 8), "deep.a.c.d": (9, 10)}


def test_no_library_is_loaded_by_looking():
    code = "import hiwater, sys\nwith hiwater.track(meters=('gpu',)) as t: pass\n"
    code += (
        "print([n for n in ('torch', 'jax', 'cupy', 'tensorflow', 'rmm', 'pynvml') if n in sys.modules], t.usage.gpu)"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert done.stdout.strip() == "[] []"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")
def test_jax_on_a_cpu_is_asked_and_tells_nothing():
    code = """
import jax, hiwater
from hiwater.meters import devices
source = devices.backend("jax")
assert "has not initialised" in source.status().reason
jax.numpy.zeros(10).block_until_ready()
assert "tells its memory" in source.status().reason
with hiwater.track() as t:
    pass
assert t.usage.gpu == []
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
    module(monkeypatch, "jax", local_devices=lambda: [device])
    module(monkeypatch, "jax._src.xla_bridge", backends_are_initialized=lambda: True)
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
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
    assert "cannot be started anew" in second.reason
    assert list(first.levels) == ["allocated"]  # -1 is unknown
    assert devices.backend("jax").limit_bytes(devices.backend("jax").devices()[0]) == 60 << 30


def test_two_libraries_on_one_card_are_told_apart(jax_device, monkeypatch):
    pool = types.SimpleNamespace(
        used_bytes=lambda: 2 * MIB, total_bytes=lambda: 4 * MIB, free_bytes=lambda: 2 * MIB, get_limit=lambda: 0
    )
    runtime = types.SimpleNamespace(getDevice=lambda: 0)

    class Current:
        def __init__(self, _):
            pass

        __enter__ = __exit__ = lambda *_: None

    module(
        monkeypatch,
        "cupy",
        get_default_memory_pool=lambda: pool,
        cuda=types.SimpleNamespace(runtime=runtime, Device=Current),
    )
    with hiwater.track() as t:
        pass
    assert [(device.backend, device.name) for device in t.usage.gpu] == [("jax", "gpu:0"), ("cupy", "cuda:0")]
    cupy = t.usage.gpu[1]
    assert (cupy.allocated.end_bytes, cupy.reserved.end_bytes, cupy.exact) == (2 * MIB, 4 * MIB, False)
    assert "cupy cuda:0 allocated" in str(t)


def test_tensorflow_folds_its_peak(monkeypatch):
    state = {"current": MIB, "peak": 8 * MIB}
    experimental = types.SimpleNamespace(
        get_memory_info=lambda _: dict(state), reset_memory_stats=lambda _: state.update(peak=state["current"])
    )
    logical = [types.SimpleNamespace(name="/device:GPU:0")]
    module(
        monkeypatch,
        "tensorflow",
        config=types.SimpleNamespace(experimental=experimental, list_logical_devices=lambda _: logical),
    )
    context = module(monkeypatch, "tensorflow.python.eager.context", _context=None)
    assert "not initialised" in devices.backend("tensorflow").status().reason
    context._context = types.SimpleNamespace(_initialized=True)
    with hiwater.track(meters=("tensorflow:GPU:0:allocated",)) as t:
        state.update(current=2 * MIB, peak=6 * MIB)
    assert (t.usage.gpu[0].start_bytes, t.usage.gpu[0].peak_bytes, t.usage.gpu[0].exact) == (MIB, 6 * MIB, True)


def test_rmm_is_measured_where_its_statistics_are_on(monkeypatch):
    module(monkeypatch, "rmm")
    said = [None]
    module(monkeypatch, "rmm.statistics", get_statistics=lambda: said[0])
    assert "enable_statistics" in devices.backend("rmm").status().reason
    said[0] = types.SimpleNamespace(current_bytes=MIB, peak_bytes=MIB, current_count=1)
    with hiwater.track(meters=("rmm:current:allocated",)) as t:
        said[0] = types.SimpleNamespace(current_bytes=0, peak_bytes=3 * MIB, current_count=0)
    assert (t.usage.gpu[0].peak_bytes, t.usage.gpu[0].exact) == (3 * MIB, True)


# NVML


class Driver:
    """pynvml over a made-up driver: `cards` are {"total", "used", "processes": {pid: bytes or None}, "mig": [cards]}."""

    class NVMLError(Exception):
        pass

    NVML_DEVICE_MIG_ENABLE = 1
    nvmlMemory_v2 = 2  # noqa: N815 - its name

    def __init__(self, cards, *, old=False):
        self.cards = cards
        self.old = old
        self.lists = 0

    def nvmlInit(self):  # noqa: N802 - its name, like those below
        pass

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return b"580.00"

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card):  # noqa: N802
        return card.get("uuid", "GPU-x")

    def nvmlDeviceGetMigMode(self, card):  # noqa: N802
        if "mig" not in card:
            raise self.NVMLError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, _):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):  # noqa: N802
        if index not in card["mig"]:
            raise self.NVMLError("not found")
        return card["mig"][index]

    def nvmlDeviceGetMemoryInfo(self, card, version=None):  # noqa: N802
        if version is not None and self.old:
            raise self.NVMLError("function not found")
        figures = {"total": card["total"], "used": card["used"]}
        return types.SimpleNamespace(**figures, **({"reserved": 3 * MIB} if version else {}))

    def nvmlDeviceGetComputeRunningProcesses(self, card):  # noqa: N802
        self.lists += 1
        if "processes" not in card:
            raise self.NVMLError("not supported")
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card["processes"].items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, _):  # noqa: N802
        return []


@pytest.fixture
def driver(monkeypatch):
    def put(cards, **traits):
        made = Driver(cards, **traits)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        return made

    return put


def card(processes, used=900 * MIB, **more):
    return {"total": 80 << 30, "used": used, "processes": processes, **more}


def ours(source, **how):
    return source.process(source.devices()[0], **how)


def test_nvml_without_its_package_or_a_driver_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install 'hiwater[gpu]'" in nvml_module.Nvml().status().reason
    monkeypatch.delitem(sys.modules, "pynvml")
    pytest.importorskip("pynvml")
    if not os.path.exists("/proc/driver/nvidia"):
        assert "no NVIDIA driver" in nvml_module.Nvml().status().reason
        with pytest.raises(MeterUnavailable, match="no NVIDIA driver"), hiwater.track(meters=("nvml",)):
            pass


def test_nvml_finds_this_process(driver):
    driver([card({os.getpid(): 500 * MIB, 77: 100 * MIB})])
    source = nvml_module.Nvml()
    assert source.status() == (True, "NVML, driver 580.00")
    assert ours(source) == nvml_module.ProcessMemory(500 * MIB, "", 100 * MIB)
    assert source.card(source.devices()[0]) == nvml_module.CardMemory(80 << 30, 900 * MIB, 3 * MIB)


def test_an_old_driver_does_not_tell_what_it_reserves(driver):
    driver([card({})], old=True)
    source = nvml_module.Nvml()
    assert source.status().works
    assert source.card(source.devices()[0]).reserved_bytes == -1


def test_the_list_of_processes_is_read_once_a_second_at_most(driver):
    made = driver([card({os.getpid(): MIB})])
    clock = [100.0]
    source = nvml_module.Nvml(clock=lambda: clock[0])
    assert source.status().works
    for step in range(50):
        clock[0] = 100 + step / 20
        ours(source)
        source.card(source.devices()[0])
    assert made.lists == 3


def test_in_a_container_the_figure_is_unknown_rather_than_wrong(driver, monkeypatch):
    monkeypatch.setattr(nvml_module, "_in_first_namespace", lambda: False)
    made = driver([card({4_000_001: 500 * MIB, 4_000_002: 100 * MIB})])
    source = nvml_module.Nvml()
    assert source.status().works
    assert ours(source).bytes == -1
    assert "host's numbers" in ours(source, has_context=True).reason
    with hiwater.track(meters=("gpu", "nvml")) as t:
        pass
    assert list(t.usage.gpu[0].levels) == ["device_used"]
    assert "in a container" in t.usage.unmeasured["nvml:0:used"]
    made.cards[0]["processes"] = {4_000_001: 500 * MIB}
    alone = nvml_module.Nvml()
    assert alone.status().works
    assert ours(alone).bytes == -1  # perhaps another container's
    found = ours(alone, has_context=True)
    assert found.bytes == 500 * MIB
    assert "only one" in found.reason


def test_outside_of_containers_not_being_listed_is_zero(driver, monkeypatch):
    monkeypatch.setattr(nvml_module, "_in_first_namespace", lambda: True)
    driver([card({77: 100 * MIB})])
    source = nvml_module.Nvml()
    assert source.status().works
    assert ours(source) == nvml_module.ProcessMemory(0, "", 100 * MIB)


def test_a_driver_that_withholds_the_figure_says_so(driver):
    driver([card({os.getpid(): None})])
    source = nvml_module.Nvml()
    assert source.status().works
    assert ours(source).bytes == -1
    assert "withheld" in ours(source).reason


def test_mig_instances_stand_for_their_card(driver):
    instances = {0: card({}, used=MIB), 2: card({os.getpid(): 7 * MIB}, used=9 * MIB)}
    driver([{"total": 80 << 30, "used": 0, "mig": instances}, card({})])
    source = nvml_module.Nvml()
    assert source.status().works
    assert [device.name for device in source.devices()] == ["0:mig:0", "0:mig:2", "1"]
    assert source.process(source.devices()[1]).bytes == 7 * MIB
    with hiwater.track(meters=("nvml:0:mig:2:used",)) as t:
        pass
    assert (t.usage.gpu[0].used.end_bytes, t.usage.gpu[0].exact) == (7 * MIB, False)


def test_the_drivers_figure_joins_the_librarys_device(driver, monkeypatch):
    torch = pytest.importorskip("torch")
    assert torch
    cuda = gpu_double.Cuda(monkeypatch, 2)
    cuda.initialise(1)
    driver([card({}, uuid="GPU-card-1"), card({os.getpid(): 5 * MIB}, uuid="GPU-card-0")])  # PCI order is not CUDA's
    with hiwater.track(meters=("gpu", "nvml")) as t:
        cuda[1].alloc(MIB)
    joined, other = t.usage.gpu
    assert (joined.name, list(joined.levels)) == ("cuda:1", ["allocated", "reserved", "used", "device_used"])
    assert (joined.used.end_bytes, other.used.end_bytes) == (0, 5 * MIB)
    assert joined.peak_bytes == MIB


# torch's other types of device, over the same statistics under their own names


def other_torch(kind):
    """A torch built for another accelerator than CUDA, with one allocator; its first device is in use."""
    torch, allocator = gpu_double.small_torch(), gpu_double.Allocator()
    doors = {"statistics": lambda _: allocator.nested(), "reset": lambda _: allocator.reset_peak()}
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
        allocator.free(allocator.alloc(9 * MIB))
        with hiwater.track() as inner:
            allocator.alloc(2 * MIB)
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
    torch = gpu_double.small_torch()
    torch.cuda._initialized = True
    assert "shows no statistics of cuda" in devices.backend("torch").status().reason
    with hiwater.track() as t:
        pass
    assert t.usage.gpu == []
