"""Why the driver says more than the tensors: golden tables, and the sum for any figures. No driver has seen these yet."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpu_double
import hiwater
from hiwater.meters.devices import reconcile
from hiwater.meters.devices.nvml import CardMemory, ProcessMemory
from hiwater.meters.devices.reconcile import CONTEXT, ELSEWHERE, OF_PROCESS, UNACCOUNTED, USED

MIB = 1 << 20
GIB = 1 << 30


def stats(requested=0, allocated=0, active=0, split=0, reserved=0):
    named = {
        "requested_bytes": requested,
        "allocated_bytes": allocated,
        "active_bytes": active,
        "inactive_split_bytes": split,
        "reserved_bytes": reserved,
    }
    return {f"{name}.all.current": value for name, value in named.items()}


def golden():
    flat = stats(900 * MIB, 901 * MIB, 911 * MIB, 80 * MIB, 1200 * MIB)
    return reconcile.reconcile(
        "cuda:0",
        flat,
        others={"jax": 300 * MIB},
        private_bytes=64 * MIB,
        process=ProcessMemory(2000 * MIB, "", 500 * MIB),
        card=CardMemory(80 * GIB, 2600 * MIB, 600 * MIB),
    )


def test_every_term_of_a_device_by_its_name():
    assert {term.name: term.bytes // MIB for term in golden().terms} == {
        "tensors, requested": 900,
        "rounding": 1,
        "waiting for a stream": 10,
        "fragments": 80,
        "cached": 145,
        "private pools": 64,
        "held by jax": 300,
        UNACCOUNTED: 500,
        USED: 2000,
        "other processes": 500,
        "the driver's own": 600,
        ELSEWHERE: 100,
        "used on the card": 2600,
    }


def test_the_table_for_people():
    assert str(golden()).splitlines() == [
        "cuda:0: where its memory is",
        "  tensors, requested       900 MiB",
        "  rounding                1.00 MiB",
        "  waiting for a stream    10.0 MiB",
        "  fragments               80.0 MiB",
        "  cached                   145 MiB",
        "  private pools           64.0 MiB",
        "  held by jax              300 MiB",
        "  unaccounted              500 MiB",
        "  used by this process    1.95 GiB",
        "  other processes          500 MiB",
        "  the driver's own         600 MiB",
        "  unnamed processes        100 MiB",
        "  used on the card        2.54 GiB",
    ]


sizes = st.integers(0, 1 << 40)


@given(*[sizes] * 6, st.dictionaries(st.sampled_from(["jax", "cupy"]), sizes))
def test_the_terms_of_the_process_add_up_to_what_the_driver_counts(requested, more, waiting, split, free, used, others):
    allocated = requested + more
    flat = stats(requested, allocated, allocated + waiting, split, allocated + waiting + split + free)
    found = reconcile.reconcile("cuda:0", flat, others=others, process=ProcessMemory(used, "", 0))
    names = [term.name for term in found.terms]
    before = found.terms[: names.index(USED)]
    assert names[: len(OF_PROCESS)] == list(OF_PROCESS)
    assert abs(sum(term.bytes for term in before) - used) <= 1  # a remainder of −1 is said as 0
    assert all(term.bytes >= 0 for term in before if term.name != UNACCOUNTED)
    assert UNACCOUNTED in str(found)


def test_a_remainder_below_zero_is_shown_and_not_hidden():
    found = reconcile.reconcile("cuda:0", stats(reserved=9 * MIB), process=ProcessMemory(5 * MIB, "", 0))
    assert found[UNACCOUNTED] == -4 * MIB
    assert "−4.00 MiB" in str(found) or "-4.00 MiB" in str(found)


def test_what_the_driver_does_not_tell_is_unknown_and_the_reason_is_given():
    withheld = ProcessMemory(-1, "the driver lists no process with this one's number", 700 * MIB)
    found = reconcile.reconcile("cuda:0", stats(reserved=MIB), process=withheld, card=CardMemory(GIB, GIB, -1))
    assert (found[UNACCOUNTED], found[USED]) == (-1, -1)
    assert found.to_dict()["terms"][UNACCOUNTED] is None
    assert found.to_dict()["terms"]["the driver's own"] is None
    assert str(found).endswith("the driver lists no process with this one's number")
    assert ELSEWHERE not in [term.name for term in found.terms]


def test_an_allocator_that_does_not_count_requests_has_no_rounding():
    found = reconcile.reconcile("cuda:0", stats(0, 5 * MIB, 5 * MIB, 0, 6 * MIB))
    assert (found["tensors, requested"], found["rounding"], found["cached"]) == (5 * MIB, 0, MIB)


def test_private_pools_come_from_a_snapshot_or_torch_2_15s_counter():
    def segment(pool, size, active, *blocks):
        return {"segment_pool_id": pool, "total_size": size, "active_size": active, "blocks": [{}] * len(blocks)}

    free, used, split = segment((0, 1), 20, 0, 1), segment((0, 1), 30, 30, 1), segment((0, 1), 40, 8, 1, 2)
    assert reconcile.free_in_private_pools([free, used, split, segment((0, 0), 50, 0, 1)]) == 20
    flat = stats(reserved=9 * MIB) | {"reserved_bytes_by_private_pools.0_1.all.current": 4 * MIB}
    found = reconcile.reconcile("cuda:0", flat)
    assert (found["cached"], found["private pools"]) == (5 * MIB, 4 * MIB)


def test_the_context_is_a_term_where_it_was_seen_by_itself():
    found = reconcile.reconcile(
        "cuda:0", stats(reserved=MIB), context_bytes=400 * MIB, process=ProcessMemory(500 * MIB, "", 0)
    )
    assert (found[CONTEXT], found[UNACCOUNTED]) == (400 * MIB, 99 * MIB)


def test_a_library_that_tells_two_figures_has_two_terms():
    found = reconcile.reconcile("gpu:0", {"allocated": 3 * MIB, "reserved": 10 * MIB})
    assert [(term.name, term.bytes) for term in found.terms[:2]] == [("arrays", 3 * MIB), ("cached", 7 * MIB)]


def test_the_devices_of_this_process(monkeypatch):
    pytest.importorskip("torch")
    from test_devices_others import Driver, card

    gpu_double.forget()
    cuda = gpu_double.Cuda(monkeypatch)
    cuda.initialise()
    monkeypatch.setattr(
        sys.modules["torch"]._C,
        "_cuda_memorySnapshot",
        lambda *_: {
            "segments": [
                {"device": 0, "segment_pool_id": (0, 1), "total_size": 2 * MIB, "active_size": 0, "blocks": [{}]}
            ]
        },
        raising=False,
    )
    cuda[0].free(cuda[0].alloc(10 * MIB))
    cuda[0].alloc(3 * MIB - 100)
    monkeypatch.setitem(sys.modules, "pynvml", Driver([card({os.getpid(): 510 * MIB}, uuid="GPU-card-0")]))
    (found,) = hiwater.device_breakdown()
    assert (found["tensors, requested"], found["rounding"], found["cached"]) == (3 * MIB - 100, 100, 5 * MIB)
    assert (found["private pools"], found[UNACCOUNTED], found[USED]) == (2 * MIB, 500 * MIB, 510 * MIB)
    gpu_double.forget()


def test_without_a_driver_the_reason_is_in_the_table(monkeypatch):
    gpu_double.forget()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", None)  # so that what stands there now comes back
    gpu_double.small_torch()
    cuda = gpu_double.Cuda(monkeypatch)
    cuda.initialise()
    cuda[0].alloc(MIB)
    (found,) = hiwater.device_breakdown()
    assert "hiwater[gpu]" in found.reason
    assert "unknown" in str(found)
    gpu_double.forget()
