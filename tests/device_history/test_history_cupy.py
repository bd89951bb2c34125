"""CuPy's memory hook over a stand-in for the documented interface: hooks of a thread, called around malloc and free."""

import sys
import types

import pytest

import hiwater
from hiwater.contrib.cupy_history import CupyHistory
from hiwater.errors import MeterUnavailable
from hiwater.recording import device_histories
from recording import needs_engine


class MemoryHook:
    """As cupy.cuda.MemoryHook is documented: entering puts it among the thread's hooks by name, twice is an error."""

    hooks = None  # of the thread; a dict while a test runs
    name = "MemoryHook"

    def __enter__(self):
        if self.name in self.hooks:
            raise KeyError(self.name)
        self.hooks[self.name] = self
        return self

    def __exit__(self, *_):
        del self.hooks[self.name]

    def malloc_preprocess(self, **kwargs): ...
    def malloc_postprocess(self, **kwargs): ...
    def free_preprocess(self, **kwargs): ...
    def free_postprocess(self, **kwargs): ...


class Pool:
    """Addresses are used again, sizes rounded to 512 as CuPy's pool does."""

    def __init__(self):
        self.free_addresses, self.next_address, self.sizes = [], 0x1000, {}

    def malloc(self, size, device=0):
        address = self.free_addresses.pop() if self.free_addresses else self.next_address
        self.next_address = max(self.next_address, address + (1 << 20))
        rounded = -(-size // 512) * 512
        self.sizes[address] = rounded
        for hook in list(MemoryHook.hooks.values()):
            hook.malloc_postprocess(device_id=device, size=size, mem_size=rounded, mem_ptr=address, pmem_id=id(address))
        return address

    def free(self, address, device=0):
        for hook in list(MemoryHook.hooks.values()):
            hook.free_postprocess(device_id=device, mem_size=self.sizes[address], mem_ptr=address, pmem_id=id(address))
        self.free_addresses.append(address)


@pytest.fixture
def pool(monkeypatch):
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(MemoryHook=MemoryHook)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(MemoryHook, "hooks", {})
    return Pool()


def work(pool):
    first = pool.malloc(1000)
    second = pool.malloc(5000)
    pool.free(first)
    pool.free(pool.malloc(300))
    return second


def test_the_history_has_stacks_peak_and_end(pool, tmp_path):
    before = pool.malloc(77)
    with CupyHistory() as history:
        work(pool)
        pool.free(before)
    assert MemoryHook.hooks == {}
    history.save(tmp_path / "cupy.pickle")
    capture = hiwater.open(tmp_path / "cupy.pickle")
    assert (capture.peak.allocated_bytes, capture.end.allocated_bytes) == (6000, 5000)
    assert capture.problems() == [] and capture.live_before_bytes == 0 and capture.allocator is None
    (stack,) = capture.end.stacks
    assert [frame.function for frame in stack.frames[-2:]] == ["work", "Pool.malloc"] and stack.frames[
        -2
    ].file == __file__
    assert capture.facts["source"] == "CuPy's memory hook"


def test_several_histories_and_hooks_of_others_go_together(pool):
    class Other(MemoryHook):
        name = "the program's own"
        seen = 0

        def malloc_postprocess(self, **kwargs):
            self.seen += 1

    with Other() as other, CupyHistory() as outer:
        pool.malloc(100)
        with CupyHistory() as inner:
            pool.malloc(100)
    assert [len(one.snapshot()["device_traces"][0]) for one in (outer, inner)] == [2, 1] and other.seen == 2
    assert MemoryHook.hooks == {}


def test_the_ring_is_bounded_and_what_is_held_is_known_all_the_same(pool, tmp_path):
    with CupyHistory(most_events=5) as history:
        kept = pool.malloc(9000)
        for _ in range(20):
            pool.free(pool.malloc(100))
    history.save(tmp_path / "cupy.pickle")
    capture = hiwater.open(tmp_path / "cupy.pickle")
    assert kept and capture.end.allocated_bytes == 9000 == capture.live_before_bytes - 100 * (
        capture.live_before_bytes > 9000
    )
    assert "overflowed" in capture.facts["notes"] and capture.problems() == []


@needs_engine
def test_a_recording_has_it(pool, tmp_path):
    with hiwater.record(tmp_path / "run.hiw"), CupyHistory():
        work(pool)
    (device,) = hiwater.open(tmp_path / "run.hiw").device_histories
    assert device.device == "cupy:0" and device.peak.allocated_bytes == 6000
    assert device_histories.active() is None


def test_without_cupy_the_error_says_so(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(MeterUnavailable, match="CuPy is not loaded"):
        CupyHistory()
