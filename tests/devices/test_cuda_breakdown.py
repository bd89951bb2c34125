"""What a device's memory consists of, against the allocator's own truth: over the double that follows torch's
sources."""

import random

import pytest

torch = pytest.importorskip("torch")

import hiwater  # noqa: E402 - after torch is known to be there
from cuda_double import installed  # noqa: E402 - the same
from cuda_double.versions import VERSIONS  # noqa: E402 - the same
from hiwater.allocator_state import of_segments  # noqa: E402 - the same
from hiwater.meters import devices  # noqa: E402 - the same
from hiwater.meters.devices import reconcile  # noqa: E402 - the same

KIB, MIB = 1 << 10, 1 << 20


def from_counters(cuda):
    source = devices.backend("torch")
    found = reconcile.of_device(source, source.devices()[0])
    return {term.name: term.bytes for term in found.terms if term.name in reconcile.OF_PROCESS}


def from_blocks():
    (found,) = hiwater.device_breakdown()
    return {term.name: term.bytes for term in found.terms if term.name in reconcile.OF_PROCESS}


def one_waits(cuda):
    """3 MiB + 5 in use, 2 MiB + 7 that wait for a stream, in a segment of 20 MiB."""
    device = cuda[0]
    device.malloc(3 * MIB + 5)
    waiting = device.malloc(2 * MIB + 7)
    device.record_stream(waiting, 7)
    device.free(waiting)


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_that_waits_for_a_stream_is_counted_once(version):
    with installed(version=version) as cuda:
        cuda.initialise()
        one_waits(cuda)
        assert from_blocks() == {
            "tensors, requested": 3 * MIB + 5, "rounding": 512 - 5, "waiting for a stream": 2 * MIB + 512,
            "fragments": 15 * MIB - 1024, "cached": 0, "private pools": 0,
        }  # fmt: skip
        counted = from_counters(cuda)
        assert counted["waiting for a stream"] == 2 * MIB + 512
        # The rounding of what waits is told by no counter: it is among the rounding, and missing from the tensors.
        assert counted["rounding"] == (512 - 5) + (512 - 7)
        assert counted["tensors, requested"] == 3 * MIB + 5 - (512 - 7)


def test_statistics_have_the_names_of_memory_stats():
    """Those of private pools, too, whose keys are pairs in what C gives."""
    with installed() as cuda:
        cuda.initialise()
        with cuda[0].private_pool((0, 1)):
            cuda[0].malloc(3 * MIB)
        source = devices.backend("torch")
        (device,) = source.devices()
        ours = source.statistics(device)
        assert ours == {name: value for name, value in torch.cuda.memory_stats().items() if isinstance(value, int)}
        name = "torch:cuda:0:reserved_bytes_by_private_pools.0_1.all"
        with hiwater.track(meters=(name,)) as t, cuda[0].private_pool((0, 1)):
            cuda[0].malloc(30 * MIB)
        assert t.usage.levels[name].kept_bytes == 30 * MIB
        torch.cuda.reset_peak_memory_stats()


def random_program(cuda, seed, *, waits):
    """Some hundred steps of malloc and free on two streams, in the default pool and a private one."""
    rng, device, live = random.Random(seed), cuda[0], []
    for _ in range(300):
        if live and rng.random() < 0.45:
            address = live.pop(rng.randrange(len(live)))
            if waits and rng.random() < 0.3:
                device.record_stream(address, 9)
            device.free(address)
        elif rng.random() < 0.1:
            rng.choice((device.empty_cache, device.finish))()
        else:
            size = rng.choice((1, 700, 300 * KIB, 2 * MIB + 3, 9 * MIB, 33 * MIB, rng.randrange(1, 60 * MIB)))
            stream = rng.choice((0, 5))
            if rng.random() < 0.2:
                with device.private_pool((0, 1)):
                    live.append(device.malloc(size, stream))
            else:
                live.append(device.malloc(size, stream))
    return device


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_called_returnable_is_what_empty_cache_returns(seed, expandable):
    with installed(expandable=expandable) as cuda:
        cuda.initialise()
        device = random_program(cuda, seed, waits=False)
        state = of_segments(device.snapshot()[0])
        before = device.now("reserved_bytes")
        assert state.reserved_bytes == before
        assert state.requested_bytes == sum(device.live.values())
        assert state.allocated_bytes == device.now("allocated_bytes")
        found = from_blocks()
        torch.cuda.empty_cache()
        assert before - device.now("reserved_bytes") == found["cached"]
        # What is left free is in pieces, or a private pool's.
        assert from_blocks() == found | {"cached": 0}


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_terms_add_up_whatever_waits(seed, expandable):
    with installed(expandable=expandable) as cuda:
        cuda.initialise()
        device = random_program(cuda, seed, waits=True)
        exact, counted = from_blocks(), from_counters(cuda)
        for found in (exact, counted):
            assert sum(found.values()) == device.now("reserved_bytes")
            assert all(count >= 0 for count in found.values())
        assert exact["tensors, requested"] == sum(device.live.values())
        waiting = exact["waiting for a stream"]
        assert counted["waiting for a stream"] == waiting
        assert exact["tensors, requested"] - waiting <= counted["tensors, requested"] <= exact["tensors, requested"]


def test_the_largest_free_block_is_told_for_those_who_can_have_it():
    with installed() as cuda:
        cuda.initialise()
        device = cuda[0]
        for stream, size in ((0, 4 * MIB), (5, 3 * MIB), (0, 100 * KIB)):
            device.malloc(size, stream)
        state = of_segments(device.snapshot()[0])
        assert state.largest_free == {
            "large, stream 0x0": 16 * MIB, "large, stream 0x5": 17 * MIB, "small, stream 0x0": 2 * MIB - 100 * KIB,
        }  # fmt: skip
        assert state.largest_free_bytes("small") == 2 * MIB - 100 * KIB
