"""What hiwater does over allocators that refuse: the driver's pools (cudaMallocAsync) and those that a program plugs
in, as RMM's."""

import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

import hiwater  # noqa: E402 - after torch is known to be there
import hiwater.contrib.torch  # noqa: E402 - the same
from cuda_double import installed  # noqa: E402 - the same
from cuda_double.versions import VERSIONS  # noqa: E402 - the same
from hiwater.errors import MeterUnavailable  # noqa: E402 - the same
from hiwater.recording import device_histories  # noqa: E402 - the same
from recording import needs_engine  # noqa: E402 - the same

MIB = 1 << 20
THROWING = ("cudaMallocAsync", "pluggable")


@pytest.fixture(params=THROWING)
def backend(request):
    return request.param


@pytest.mark.parametrize("version", VERSIONS)
def test_a_scope_over_a_plugged_in_allocator_says_why_it_has_no_figure(version):
    with installed(backend="pluggable", version=version) as cuda:
        cuda.initialise()
        theirs = torch._C._cuda_memoryStats
        with hiwater.track("step") as t:
            cuda.module.caching_allocator_alloc(MIB, stream=0)
        assert t.usage.gpu == []
        assert "does not yet support getDeviceStats" in t.usage.unmeasured["torch:cuda:0"]
        assert "torch:cuda:0: not measured" in str(t)
        assert torch._C._cuda_memoryStats == theirs


def test_asked_for_by_the_group_it_does_not_raise_either():
    with installed(2, backend="pluggable") as cuda:
        cuda.initialise(0, 1)
        with hiwater.track(meters=("gpu",)) as t:
            pass
        assert set(t.usage.unmeasured) >= {"torch:cuda:0", "torch:cuda:1"}
        assert "getDeviceStats" in t.usage.unmeasured["gpu"]


def test_a_device_that_comes_into_use_within_the_scope_is_told_of_too():
    with installed(backend="pluggable") as cuda:
        with hiwater.track() as t:
            cuda.initialise()
        assert "getDeviceStats" in t.usage.unmeasured["torch:cuda:0"]


def test_one_card_that_cannot_be_measured_costs_the_other_nothing(monkeypatch):
    with installed(2) as cuda:
        cuda.initialise(0, 1)
        theirs = torch._C._cuda_memoryStats

        def statistics(device):
            if device == 0:
                raise RuntimeError("CUDA error: device-side assert triggered")
            return theirs(device)

        with monkeypatch.context() as patched:  # what is there after the double is not the double's
            patched.setattr(torch._C, "_cuda_memoryStats", statistics)
            with hiwater.track() as t:
                cuda[1].malloc(3 * MIB)
        (device,) = t.usage.gpu
        assert (device.name, device.peak_bytes) == ("cuda:1", 3 * MIB)
        assert "device-side assert" in t.usage.unmeasured["torch:cuda:0"]


def test_figures_that_are_asked_for_by_name_raise_our_own_error_and_leave_torchs_functions_alone():
    with installed(backend="pluggable") as cuda:
        cuda.initialise()
        theirs = torch._C._cuda_memoryStats
        with (
            pytest.raises(MeterUnavailable, match=r"torch:cuda:0:allocated cannot be read.*getDeviceStats"),
            hiwater.track(meters=("torch:cuda:0:allocated",)),
        ):
            pass
        assert torch._C._cuda_memoryStats == theirs


def test_lines_run_without_a_word_and_the_table_says_why_it_is_empty(capsys):
    with installed(backend="pluggable") as cuda:
        cuda.initialise()
        theirs = torch._C._cuda_memoryStats

        def work():
            return cuda.module.caching_allocator_alloc(MIB, stream=0)

        with hiwater.contrib.torch.LineProfiler(work) as profiler:
            work()
        assert "No data collected: cuda:0 cannot be read" in repr(profiler.display())
        assert "getDeviceStats" in repr(profiler.display()) and torch._C._cuda_memoryStats == theirs
    assert capsys.readouterr() == ("", "")


def test_the_breakdown_says_why_it_is_empty(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with installed(backend="pluggable") as cuda:
        cuda.initialise()
        (found,) = hiwater.device_breakdown()
    assert "torch has no figures for it" in found.reason and "getDeviceStats" in found.reason
    assert sum(term.bytes for term in found.terms if term.bytes > 0) == 0


def test_the_drivers_pool_is_measured_for_what_it_knows():
    with installed(backend="cudaMallocAsync") as cuda:
        cuda.initialise()
        with hiwater.track() as t:
            block = cuda.module.caching_allocator_alloc(3 * MIB, stream=0)
            cuda.module.caching_allocator_delete(block)
        (device,) = t.usage.gpu
        assert (device.allocated.peak_bytes, device.reserved.peak_bytes, device.kept_bytes) == (3 * MIB, 3 * MIB, 0)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("first", [True, False])
def test_a_guard_changes_nothing_of_a_program_that_uses_them(backend, version, first, tmp_path):
    with installed(backend=backend, version=version) as cuda, warnings.catch_warnings():
        warnings.simplefilter("error")
        if first:
            cuda.initialise()
        with hiwater.contrib.torch.guard(tmp_path / "oom"):
            cuda.initialise()  # the program's first use: a call of ours in torch's queue that raises would fail it
            cuda.module.caching_allocator_alloc(MIB, stream=0)
        assert list(tmp_path.iterdir()) == []


def test_a_guard_reports_what_such_an_allocator_refuses(backend, tmp_path, capsys):
    with installed(backend=backend) as cuda:
        cuda.initialise()
        cuda.cards[0].total_bytes = MIB
        with pytest.raises(torch.cuda.OutOfMemoryError), hiwater.contrib.torch.guard(tmp_path / "oom") as guard:
            cuda.module.caching_allocator_alloc(2 * MIB, stream=0)
    assert guard.report.verdict.kind == "unknown"
    assert "oom.txt says what was live" in capsys.readouterr().err
    assert (tmp_path / "oom.txt").exists() and not (tmp_path / "oom.pickle").exists()


@needs_engine
@pytest.mark.parametrize("first", [True, False])
def test_a_recording_says_once_that_there_is_no_history(backend, first, tmp_path):
    with installed(backend=backend) as cuda:
        if first:
            cuda.initialise()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with hiwater.record(tmp_path / "run.hiw") as recorder:
                cuda.initialise()
                recorder.snapshot(tmp_path / "shot.hiw")
        assert ["does not yet support recordHistory" in str(one.message) for one in said] == [True]
        trouble = recorder.summary()["device_trouble"]
        assert ("getDeviceStats" in trouble) == (backend == "pluggable")
    capture = hiwater.open(tmp_path / "run.hiw")
    assert capture.device_histories == () and capture.problems() == []


def test_where_warnings_are_errors_the_first_use_of_cuda_does_not_fail(backend, capsys):
    with installed(backend=backend) as cuda, warnings.catch_warnings():
        warnings.simplefilter("error")
        histories = device_histories.DeviceHistories()
        histories.begin()
        cuda.initialise()
        histories.end()
    assert "torch's allocator records no history" in capsys.readouterr().err
