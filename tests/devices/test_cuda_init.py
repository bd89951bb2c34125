"""Recordings and guards around torch's initialisation of CUDA: whatever moment ours falls due at, no lock is waited
for, and the history is on before the program can allocate. On torch's real Python layer, with its real lock and
queue, over a simulated `torch._C`."""

import faulthandler
import os
import threading

import pytest

from children import run_python

pytest.importorskip("torch")

from cuda_double import Deadlock, installed
from cuda_double.versions import VERSIONS
from hiwater.recording.device_histories import DeviceHistories
from places import HELPERS

PATIENCE_SECONDS = 300
"""A hang ends the test; nothing is measured by it."""

PLACES = """
import sys
sys.path.insert(0, {helpers!r})
from cuda_initialisations import go_through
print(*go_through({version!r}, {inits}))
"""


@pytest.fixture(autouse=True)
def hangs_end():
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recording_that_begins_at_any_point_of_the_initialisation_hangs_nothing(version):
    code = PLACES.format(helpers=str(HELPERS), version=version, inits=1000)
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    came, places, *names = done.stdout.split()
    assert int(came) == 1000 and int(places) > 100
    assert [name.strip("[',]") for name in " ".join(names).split("', '")] == [
        "allocator initialised", "generators set", "initExtension", "lazyInitDevice", "torch.cuda imported"
    ]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recording_that_began_before_has_its_history_on_within_the_queue(version):
    with installed(version=version) as cuda:
        histories = DeviceHistories()
        histories.begin()
        histories.check()  # as often as the sampler looks, there is one call in the queue
        assert len(cuda.module._queued_calls) == 4 and cuda.bindings.calls == []
        seen = []
        cuda.module._lazy_call(lambda: seen.append((len(cuda.bindings.calls), cuda.module.is_initialized())))
        cuda.module.init()
        assert seen == [(1, False)]
        histories.end()


def test_another_threads_look_during_the_initialisation_waits_for_nothing():
    with installed() as cuda:
        histories = DeviceHistories()
        looked = []

        def look_elsewhere(name):
            if name == "allocator initialised":
                thread = threading.Thread(target=lambda: looked.append(histories.begin()))
                thread.start()
                thread.join(PATIENCE_SECONDS / 2)

        cuda.bindings.place = look_elsewhere
        cuda.module.init()
        assert looked == [None] and cuda[0].history.enabled
        histories.end()


def test_the_double_notices_a_call_that_would_wait_for_itself():
    """As hiwater did: `_lazy_call` from within `_cuda_init` takes the lock that `_lazy_init` holds; and C++'s
    `call_once` likewise."""
    with installed() as cuda:
        locked = []
        cuda.bindings.place = lambda name: locked.append(cuda.module._initialization_lock.locked())
        cuda.module.init()
        assert locked == [True] * 5
    with installed() as cuda:
        attach = cuda.torch._C._cuda_attach_out_of_memory_observer
        cuda.bindings.place = lambda name: name == "allocator initialised" and attach(print)
        with pytest.raises(Deadlock):
            cuda.module.init()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_child_of_a_program_that_uses_cuda_nothing_is_begun():
    with installed() as cuda:
        cuda.initialise()
        child = os.fork()
        if child == 0:
            try:
                histories = DeviceHistories()
                histories.begin()
                os._exit(len(cuda.bindings.calls))
            except BaseException:  # noqa: BLE001 - the child must not run the parent's tests
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
