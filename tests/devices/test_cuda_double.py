"""The double of CUDA torch does what the sources say, as far as tests of hiwater rely on it."""

import random

import pytest

torch = pytest.importorskip("torch")

from cuda_double import Card, installed  # noqa: E402 - after torch is known to be there
from cuda_double.versions import VERSIONS  # noqa: E402 - the same

MIB = 1 << 20


@pytest.mark.parametrize("version", VERSIONS)
def test_the_python_layer_is_torchs_own(version):
    before, binding = torch.cuda, getattr(torch._C, "_cuda_memoryStats", None)
    with installed(2, version=version) as cuda:
        assert torch.cuda is not before and torch.cuda.__file__.endswith("torch/cuda/__init__.py")
        assert not torch.cuda.is_initialized() and torch.cuda.is_available() and torch.cuda.device_count() == 2
        assert torch.cuda.memory_stats() == {} and torch.cuda.max_memory_allocated() == 0
        cuda.initialise()
        address = torch.cuda.caching_allocator_alloc(1000, stream=0)
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (1024, 2 * MIB)
        torch.cuda.caching_allocator_delete(address)
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0 and "allocated_bytes.all.peak" in torch.cuda.memory_stats()
        assert "Allocated memory" in torch.cuda.memory_summary()
    assert torch.cuda is before and getattr(torch._C, "_cuda_memoryStats", None) is binding


def test_a_free_that_waits_lowers_allocated_first_and_the_rest_later():
    with installed() as cuda:
        cuda.initialise()
        device = cuda[0]
        block = device.malloc(3 * MIB + 5)
        device.record_stream(block, 7)
        device.free(block)
        assert [device.now(name) for name in ("allocated_bytes", "active_bytes", "requested_bytes")] == [
            0, 3 * MIB + 512, 3 * MIB + 5
        ]  # fmt: skip
        (segment,) = device.snapshot()[0]
        assert segment["blocks"][0]["state"] == "active_pending_free" and segment["requested_size"] == 3 * MIB + 5
        device.finish(7)
        assert device.now("active_bytes") == 3 * MIB + 512  # until the next request sees to it
        device.malloc(100)
        assert device.now("active_bytes") == 512
        large = next(one for one in device.snapshot()[0] if one["segment_type"] == "large")
        # Stale.
        assert [(one["state"], one["requested_size"]) for one in large["blocks"]] == [("inactive", 3 * MIB + 5)]


def test_a_refusal_tells_observers_the_segments_size_and_the_trace_the_rounded_one():
    with installed([Card(0, 30 * MIB)]) as cuda:
        cuda.initialise()
        torch.cuda.memory._record_memory_history()
        told = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: told.append(numbers))
        cuda[0].malloc(2 * MIB)
        cuda[0].malloc(12 * MIB)
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB\. GPU 0"):
            cuda[0].malloc(9 * MIB + 1)
        assert told == [(0, 20 * MIB, 30 * MIB, 10 * MIB)]
        (event,) = [one for one in cuda[0].snapshot()[1] if one["action"] == "oom"]
        assert (event["size"], event["device_free"]) == (9 * MIB + 512, 10 * MIB)


def test_expandable_segments_map_and_unmap_pages_inside():
    with installed(expandable=True) as cuda:
        cuda.initialise()
        torch.cuda.memory._record_memory_history()
        device = cuda[0]
        blocks = [device.malloc(20 * MIB) for _ in range(4)]
        assert device.now("reserved_bytes") == 80 * MIB and len(device.snapshot()[0]) == 1
        device.free(blocks[1])
        device.free(blocks[2])
        device.empty_cache()
        assert device.now("reserved_bytes") == 40 * MIB == cuda.cards[0].mapped_bytes
        segments, events = device.snapshot()
        assert [segment["total_size"] for segment in segments] == [20 * MIB, 20 * MIB] and segments[0]["is_expandable"]
        actions = [event["action"] for event in events]
        assert actions.count("segment_map") == 4 and actions.count("segment_unmap") == 1
        assert device.malloc(40 * MIB) == blocks[1]


def test_private_pools_keep_their_memory_and_are_counted_by_tuples():
    with installed() as cuda:
        cuda.initialise()
        with cuda[0].private_pool((0, 1)):
            block = cuda[0].malloc(5 * MIB)
        cuda[0].free(block)
        cuda[0].empty_cache()
        assert torch.cuda.memory_stats()["reserved_bytes_by_private_pools.0_1.all.current"] == 20 * MIB
        assert list(torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]) == [(0, 1)]
        assert cuda[0].snapshot()[0][0]["segment_pool_id"] == (0, 1)
        cuda[0].drop_pool((0, 1))
        cuda[0].empty_cache()
        assert torch.cuda.memory_reserved() == 0


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_counters_and_snapshots_agree_in_random_programs(seed, expandable):
    chosen = random.Random(seed)
    with installed([Card(0, 400 * MIB)], expandable=expandable) as cuda:
        cuda.initialise()
        device, live = cuda[0], {}
        for _ in range(400):
            if live and chosen.random() < 0.45:
                address = chosen.choice(list(live))
                if chosen.random() < 0.3:
                    device.record_stream(address, 1)
                device.free(address)
                del live[address]
            else:
                size = chosen.choice((chosen.randrange(1, 4000), chosen.randrange(1, 30 * MIB)))
                try:
                    live[device.malloc(size, stream=chosen.choice((0, 0, 2)))] = size
                except torch.cuda.OutOfMemoryError:
                    device.finish()
            if chosen.random() < 0.05:
                device.empty_cache()
            segments, _ = device.snapshot()
            blocks = [block for segment in segments for block in segment["blocks"]]
            active = [block for block in blocks if block["state"] != "inactive"]
            assert device.live == live
            assert device.now("reserved_bytes") == sum(segment["total_size"] for segment in segments)
            assert device.now("reserved_bytes") == cuda.cards[0].mapped_bytes
            assert device.now("active_bytes") == sum(block["size"] for block in active)
            assert device.now("requested_bytes") == sum(block["requested_size"] for block in active)
            assert device.now("allocated_bytes") == sum(
                block["size"] for block in active if block["state"] == "active_allocated"
            )
            if not expandable:
                split = [one for segment in segments if len(segment["blocks"]) > 1 for one in segment["blocks"]]
                assert device.now("inactive_split_bytes") == sum(
                    block["size"] for block in split if block["state"] == "inactive"
                )
