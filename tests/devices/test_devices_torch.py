"""Device meters on torch's real Python layer over a simulated allocator. No GPU has seen these yet."""

import random
import threading

import pytest

import hiwater
import hiwater.compat
from hiwater.errors import MeterUnavailable
from hiwater.meters import device_names
from hiwater.scopes.manager import ScopeManager
from hiwater.scopes.scope import Scope
from recording import rounds

torch = pytest.importorskip("torch")

from cuda_double import installed  # noqa: E402 - it needs torch

MIB = 1 << 20


@pytest.fixture
def cuda():
    with installed(2) as double:
        yield double


def track(name="", **options):
    return hiwater.track(name, meters=("gpu",), **options)


def test_a_torch_that_has_initialised_nothing_is_left_alone(cuda):
    doors = torch._C._cuda_memoryStats
    with hiwater.track() as t:
        pass
    assert t.usage.gpu == []
    assert not any("gpu" in key or "cuda" in key for key in (*t.usage.unmeasured, *t.usage.levels))
    assert "cuda" not in str(t)
    assert torch._C._cuda_memoryStats is doors


def test_asking_for_gpu_where_none_is_in_use_says_why():
    with track() as t:
        pass
    assert "no device is in use" in t.usage.unmeasured["gpu"]
    assert "torch" in t.usage.unmeasured["gpu"]


def test_a_scope_has_each_device_that_is_used(cuda):
    cuda.initialise(0, 1)
    kept = cuda[0].malloc(3 * MIB)
    with track() as t:
        block = cuda[0].malloc(5 * MIB)
        cuda[0].free(block)
        cuda[1].malloc(700)
    first, second = t.usage.gpu
    assert [first.name, second.name] == ["cuda:0", "cuda:1"]
    assert (first.start_bytes, first.peak_bytes, first.end_bytes) == (3 * MIB, 8 * MIB, 3 * MIB)
    assert (first.peak_above_start_bytes, first.transient_bytes, first.kept_bytes) == (5 * MIB, 5 * MIB, 0)
    assert (first.reserved.start_bytes, first.reserved.end_bytes) == (20 * MIB, 20 * MIB)
    assert (second.kept_bytes, second.exact, second.error_bytes) == (1024, True, 0)
    assert "allocated_bytes.all" in first.source
    with pytest.raises(MeterUnavailable, match="no 'used' figure"):
        first.used  # noqa: B018 - it raises
    cuda[0].free(kept)


def test_what_a_scope_prints_and_gives_as_data(cuda):
    cuda.initialise()
    with track("step") as t:
        cuda[0].malloc(2 * MIB)
    assert [line.split("  ")[0] for line in str(t).splitlines()[2:4]] == ["cuda:0 allocated", "cuda:0 reserved"]
    assert "2.00 MiB" in str(t) and "cuda:0 allocated" in t._repr_html_()
    (said,) = t.to_dict()["gpu"]
    assert (said["name"], said["backend"], said["kept_bytes"]) == ("cuda:0", "torch", 2 * MIB)
    assert said["quantities"]["reserved"]["end_bytes"] == 20 * MIB


def test_inner_scopes_do_not_truncate_outer_ones(cuda):
    cuda.initialise()
    with track() as outer:
        cuda[0].free(cuda[0].malloc(9 * MIB))
        with track() as inner:
            cuda[0].free(cuda[0].malloc(4 * MIB))
    assert (outer.usage.gpu[0].peak_bytes, inner.usage.gpu[0].peak_bytes) == (9 * MIB, 4 * MIB)


def test_the_programs_own_peak_stays_true_however_it_was_imported(cuda):
    from torch.cuda import max_memory_allocated as imported_before

    cuda.initialise()
    with track():
        cuda[0].free(cuda[0].malloc(9 * MIB))
        with track():
            cuda[0].malloc(MIB)
        assert cuda[0].stats.arrays["allocated_bytes"]["all"].peak == MIB  # ours truncated it
        assert imported_before() == torch.cuda.max_memory_allocated(0) == 9 * MIB
        assert torch.cuda.memory_stats()["requested_bytes.large_pool.peak"] == 9 * MIB
    assert imported_before() == 9 * MIB  # also when nobody measures any more
    torch.cuda.reset_peak_memory_stats()
    assert imported_before() == MIB


def test_torchs_functions_come_back_when_nothing_is_owed(cuda):
    before = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
    cuda.initialise()
    with track():
        cuda[0].malloc(MIB)
    assert torch.cuda.max_memory_allocated() == MIB
    with track():
        cuda[0].free(cuda[0].malloc(MIB))
    assert torch._C._cuda_memoryStats is not before[0]  # the program would see less than it should
    torch.cuda.reset_peak_memory_stats()
    assert (torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats) == before


def test_a_reset_of_the_programs_is_no_loss(cuda):
    cuda.initialise()
    with track() as t:
        cuda[0].free(cuda[0].malloc(9 * MIB))
        torch.cuda.reset_peak_memory_stats()
        cuda[0].free(cuda[0].malloc(2 * MIB))
        assert torch.cuda.max_memory_allocated() == 2 * MIB
    assert (t.usage.gpu[0].peak_bytes, t.usage.gpu[0].exact) == (9 * MIB, True)


def test_a_reset_behind_torchs_back_makes_a_lower_bound(cuda):
    cuda.initialise()
    cuda[0].malloc(MIB)
    big = cuda[0].malloc(9 * MIB)
    with track() as t:
        cuda[0].free(big)
        cuda[0].stats.reset_peak()  # as C++ would
        cuda[0].malloc(512)
    with track() as after:
        pass
    assert not t.usage.gpu[0].exact
    assert "without the library" in t.usage.gpu[0].reason
    assert "at least" in str(t)
    assert after.usage.gpu[0].exact


def test_a_device_that_comes_into_use_within_a_scope_counts_from_0(cuda):
    with track() as outer:
        with track() as inner:
            cuda.initialise()
            cuda[0].free(cuda[0].malloc(7 * MIB))
            cuda[0].malloc(MIB)
        with track() as later:
            pass
    for t, figures in ((outer, (0, 7 * MIB, MIB)), (inner, (0, 7 * MIB, MIB)), (later, (MIB, MIB, MIB))):
        device = t.usage.gpu[0]
        assert (device.start_bytes, device.peak_bytes, device.end_bytes) == figures
        assert device.exact
    assert "began to use the device during the scope" in inner.usage.gpu[0].reason
    assert "began to use" in str(outer) and "began to use" not in str(later)
    assert "gpu" not in outer.usage.unmeasured


def test_any_statistic_with_a_peak_may_be_asked_for(cuda):
    cuda.initialise()
    with hiwater.track(meters=("torch:cuda:0:active_bytes.large_pool", "torch:cuda:0:requested")) as t:
        cuda[0].free(cuda[0].malloc(3 * MIB + 1))
    assert t.usage.levels["torch:cuda:0:active_bytes.large_pool"].peak_bytes == 3 * MIB + 512
    assert t.usage.levels["torch:cuda:0:requested"].peak_bytes == 3 * MIB + 1
    with (
        pytest.raises(MeterUnavailable, match="no statistic 'num_ooms'"),
        hiwater.track(meters=("torch:cuda:0:num_ooms",)),
    ):
        pass
    with (
        pytest.raises(MeterUnavailable, match="no device 'cuda:7' in use"),
        hiwater.track(meters=("torch:cuda:7:allocated",)),
    ):
        pass


def test_an_allocator_that_tells_nothing_costs_only_its_figures(cuda, monkeypatch):
    cuda.initialise()
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda _: {})  # a pluggable allocator may
    with hiwater.track() as t:
        pass
    assert t.usage.gpu == []
    assert t.usage.resident.peak_bytes > 0


def test_a_failing_driver_costs_only_its_figures(cuda, monkeypatch):
    cuda.initialise()

    def broken(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with hiwater.track() as t:
        monkeypatch.setattr(cuda[0].stats, "nested", lambda **_: broken(0))
        monkeypatch.setattr(cuda[0].stats, "reset_peak", lambda: broken(0))
    assert t.usage.gpu == []
    assert t.usage.resident.peak_bytes > 0
    assert "torch:cuda:0:allocated" in t.usage.unmeasured


def test_the_published_tracker_has_its_cuda_line(cuda):
    cuda.initialise()
    lines = []
    with hiwater.compat.ResourceTracker(lines.append) as tracker:
        cuda[0].malloc(762 * MIB)
    assert tracker.get_peak_gpu_memory_usage() == 762
    assert any(line.startswith("Peak CUDA GPU Memory Usage (Incremental): 762.00 MiB, kept") for line in lines)


def model_of(trace, manager, allocators):
    """Play a trace of scopes and allocations; yield (scope, figures that a model which saw everything has)."""
    values = [[0, 0] for _ in allocators]  # allocated, reserved
    running, blocks = [], [[] for _ in allocators]
    for step, where, size in trace:
        allocator = allocators[where]
        if step == "enter":
            scope = Scope("", None)
            manager.enter(scope)
            running.append((scope, [[tuple(each)] for each in values]))
        elif step == "exit" and running:
            scope, seen = running.pop(size % len(running))
            manager.exit(scope)
            yield scope, seen
        elif step == "alloc":
            blocks[where].append(allocator.malloc(size))
        elif step == "free" and blocks[where]:
            allocator.free(blocks[where].pop(size % len(blocks[where])))
        elif step == "empty":
            allocator.empty_cache()
        elif step == "reset":
            torch.cuda.reset_peak_memory_stats(where)
        values[where] = [allocator.now("allocated_bytes"), allocator.now("reserved_bytes")]
        for _, seen in running:
            seen[where].append(tuple(values[where]))
    for scope, seen in running:
        manager.exit(scope)
        yield scope, seen


def test_two_thousand_random_traces_of_scopes_agree_with_a_model(cuda):
    cuda.initialise(0, 1)
    steps = ("enter", "exit", "alloc", "alloc", "free", "empty", "reset")
    checked = 0
    for seed in range(rounds(2000)):
        chance = random.Random(seed)
        manager = ScopeManager(list_devices=device_names)
        trace = [(chance.choice(steps), chance.randrange(2), chance.randint(1, 4 * MIB)) for _ in range(14)]
        for scope, seen in model_of(trace, manager, (cuda[0], cuda[1])):
            found = {f.slot.name: (f.start, f.peak, f.end) for f in scope.figures if ":" in f.slot.name}
            for device, history in enumerate(seen):
                for column, quantity in enumerate(("allocated", "reserved")):
                    line = [each[column] for each in history]
                    assert found[f"torch:cuda:{device}:{quantity}"] == (line[0], max(line), line[-1]), seed
            assert all(figure.intact for figure in scope.figures)
            checked += 1
        for allocator in (cuda[0], cuda[1]):
            for block in allocator.live:
                allocator.free(block)
            allocator.empty_cache()
    assert checked > rounds(2000)


def test_threads_that_measure_reset_and_read_at_once_lose_no_peak(cuda):
    cuda.initialise()
    wrong = []

    def measure(number):
        for step in range(60):
            with track() as t:
                block = cuda[0].malloc((number + 1) * MIB + step)
                if torch.cuda.max_memory_allocated() < (number + 1) * MIB:
                    wrong.append("own")
                cuda[0].free(block)
            if t.usage.gpu[0].peak_above_start_bytes + t.usage.gpu[0].start_bytes < (number + 1) * MIB:
                wrong.append("scope")
            if number == 0 and step % 7 == 0:
                with track() as outer:
                    cuda[0].free(cuda[0].malloc(64 * MIB))
                    torch.cuda.reset_peak_memory_stats()
                if outer.usage.gpu[0].peak_bytes < 64 * MIB:
                    wrong.append("reset")

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
