"""Why the driver says more than the tensors: golden tables, and the sum for any figures. No driver has seen these
yet."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import driver_double
import hiwater
from cuda_double import installed
from hiwater.allocator_state import AllocatorState
from hiwater.meters.devices import reconcile
from hiwater.meters.devices.nvml import CardMemory, ProcessOnCard
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
    state = AllocatorState(
        requested_bytes=900 * MIB, rounding_bytes=MIB, awaiting_free_bytes=10 * MIB, inactive_split_bytes=80 * MIB,
        free_segments_bytes=209 * MIB, private_free_segments_bytes=64 * MIB,
    )  # fmt: skip
    return reconcile.reconcile(
        "cuda:0",
        {},
        others={"jax": 300 * MIB},
        state=state,
        process=ProcessOnCard(2000 * MIB, "", 500 * MIB),
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


@given(*[sizes] * 6, st.dictionaries(st.just("jax"), sizes))
def test_the_terms_of_the_process_add_up_to_what_the_driver_counts(requested, more, waiting, split, free, used, others):
    allocated = requested + more
    asked = requested + waiting * 9 // 10  # what waits is among what was asked for, until it can be used again
    flat = stats(asked, allocated, allocated + waiting, split, allocated + waiting + split + free)
    found = reconcile.reconcile("cuda:0", flat, others=others, process=ProcessOnCard(used, "", 0))
    names = [term.name for term in found.terms]
    before = found.terms[: names.index(USED)]
    assert names[: len(OF_PROCESS)] == list(OF_PROCESS)
    assert abs(sum(term.bytes for term in before) - used) <= 1  # a remainder of −1 is said as 0
    assert all(term.bytes >= 0 for term in before if term.name != UNACCOUNTED)
    assert UNACCOUNTED in str(found)


def test_a_remainder_below_zero_is_shown_and_not_hidden():
    found = reconcile.reconcile("cuda:0", stats(reserved=9 * MIB), process=ProcessOnCard(5 * MIB, "", 0))
    assert found[UNACCOUNTED] == -4 * MIB
    assert "−4.00 MiB" in str(found) or "-4.00 MiB" in str(found)


def test_what_the_driver_does_not_tell_is_unknown_and_the_reason_is_given():
    withheld = ProcessOnCard(-1, "the driver lists no process with this one's number", 700 * MIB)
    found = reconcile.reconcile("cuda:0", stats(reserved=MIB), process=withheld, card=CardMemory(GIB, GIB, -1))
    assert (found[UNACCOUNTED], found[USED]) == (-1, -1)
    assert found.to_dict()["terms"][UNACCOUNTED] is None
    assert found.to_dict()["terms"]["the driver's own"] is None
    assert str(found).endswith("the driver lists no process with this one's number")
    assert ELSEWHERE not in [term.name for term in found.terms]


def test_an_allocator_that_does_not_count_requests_has_no_rounding():
    found = reconcile.reconcile("cuda:0", stats(0, 5 * MIB, 5 * MIB, 0, 6 * MIB))
    assert (found["tensors, requested"], found["rounding"], found["cached"]) == (5 * MIB, 0, MIB)


def test_private_pools_come_from_a_snapshot_or_torch_2_13s_counter():
    flat = stats(reserved=9 * MIB) | {"reserved_bytes_by_private_pools.0_1.all.current": 4 * MIB}
    found = reconcile.reconcile("cuda:0", flat)
    assert (found["cached"], found["private pools"]) == (5 * MIB, 4 * MIB)
    state = AllocatorState(reserved_bytes=9 * MIB, free_segments_bytes=9 * MIB, private_free_segments_bytes=3 * MIB)
    found = reconcile.reconcile("cuda:0", flat, state=state)
    assert (found["cached"], found["private pools"]) == (6 * MIB, 3 * MIB)


def test_the_context_is_a_term_where_it_was_seen_by_itself():
    found = reconcile.reconcile(
        "cuda:0", stats(reserved=MIB), context_bytes=400 * MIB, process=ProcessOnCard(500 * MIB, "", 0)
    )
    assert (found[CONTEXT], found[UNACCOUNTED]) == (400 * MIB, 99 * MIB)


def test_a_library_that_tells_two_figures_has_two_terms():
    found = reconcile.reconcile("gpu:0", {"allocated": 3 * MIB, "reserved": 10 * MIB})
    assert [(term.name, term.bytes) for term in found.terms[:2]] == [("arrays", 3 * MIB), ("cached", 7 * MIB)]


def test_the_devices_of_this_process():
    pytest.importorskip("torch")
    pytest.importorskip("pynvml")
    driver = driver_double.Driver()
    driver.processes(driver.card(), {os.getpid(): 552 * MIB})
    with installed() as cuda:
        cuda.initialise()
        with cuda[0].private_pool():
            cuda[0].free(cuda[0].malloc(10 * MIB))
        cuda[0].malloc(3 * MIB - 100)
        cuda[0].malloc(15 * MIB)
        cuda[0].free(cuda[0].malloc(22 * MIB))
        (found,) = hiwater.device_breakdown()
    driver.remove()
    assert {term.name: term.bytes for term in found.terms[:6]} == {
        "tensors, requested": 18 * MIB - 100, "rounding": 100, "waiting for a stream": 0, "fragments": 2 * MIB,
        "cached": 22 * MIB, "private pools": 10 * MIB,
    }  # fmt: skip
    assert (found[UNACCOUNTED], found[USED]) == (500 * MIB, 552 * MIB)


def test_without_a_driver_the_reason_is_in_the_table(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with installed() as cuda:
        cuda.initialise()
        cuda[0].malloc(MIB)
        (found,) = hiwater.device_breakdown()
    assert "hiwater[gpu]" in found.reason
    assert "unknown" in str(found)
