"""Goes through torch's initialisation of CUDA with a recording that begins at each place in turn: tests do it in a
process of its own."""

import sys

from cuda_double import installed
from cuda_double.pending import At
from hiwater.recording.device_histories import DeviceHistories


def initialise_with_a_call_at(cuda, number):
    """One initialisation with a recording's look falling due at a place; how many places there were, and where it
    was."""
    cuda.renew()
    histories = DeviceHistories()
    with At(cuda.module._lazy_init, number, histories.begin, cuda.bindings) as at:
        cuda.module.init()
    if at.came is None:
        return at.places, None
    assert cuda.bindings.deadlocks == [], at.came
    assert cuda.bindings.calls == [("all", "alloc", "python", 100_000)], at.came
    cuda.module.caching_allocator_alloc(5 << 20, stream=0)
    (_, events) = cuda[0].snapshot()
    assert [event["action"] for event in events] == ["segment_alloc", "alloc", "snapshot"], at.came
    assert len(cuda[0].history.observers) == 1, at.came
    histories.end()
    assert cuda.bindings.calls[1:] == [(None, "all", "all", sys.maxsize)], at.came
    return at.places, at.came


def go_through(version, inits):
    """Initialise over and over, with the call at each place in turn: how many times, how many places there are, and
    those in C functions."""
    places, number, came, here = None, 0, 0, set()
    with installed(version=version) as cuda:
        while came < inits:
            found, where = initialise_with_a_call_at(cuda, number)
            if where is None:
                places, number = found, 0
                continue
            came += 1
            here.add(where)
            number += 1
    assert places is not None, "more places than initialisations"
    return came, places, sorted(name for name in here if isinstance(name, str))
