"""CuPy's pools over a double in which the current device belongs to a thread, and making one current makes a context, as in CUDA 12."""

import sys
import threading

import pytest

import cupy_double
import hiwater
from cuda_double import forget
from hiwater.meters import devices

MIB = 1 << 20


@pytest.fixture(params=list(cupy_double.POOLS))
def cupy(request, monkeypatch):
    """CuPy in a program that uses device 1 of two, from a thread of its own."""
    forget()
    made = cupy_double.module(request.param)
    monkeypatch.setitem(sys.modules, "cupy", made)
    for name in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield made
    forget()


def on_device(cupy, number, work):
    """Do something in a thread in which this device is current, and stays so."""

    def run():
        cupy.runtime.setDevice(number)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_memory_of_another_threads_device_is_seen(cupy):
    on_device(cupy, 1, lambda: cupy.pool.malloc(5 * MIB))
    source = devices.backend("cupy")
    (device,) = source.devices()
    assert (device.name, device.number, device.ordinal) == ("cuda:1", 1, 1)
    assert source.standings(device) == {"allocated": (5 * MIB, -1), "reserved": (5 * MIB, -1)}
    with hiwater.track() as t:
        on_device(cupy, 1, lambda: cupy.pool.malloc(3 * MIB))
    (usage,) = t.usage.gpu
    assert (usage.name, usage.allocated.kept_bytes, usage.reserved.end_bytes) == ("cuda:1", 3 * MIB, 8 * MIB)


def test_looking_makes_no_context_and_no_pool(cupy):
    source = devices.backend("cupy")
    for _ in range(2):
        assert source.devices() == []
        assert "is empty" in source.status().reason
    assert cupy.runtime.contexts == set()
    on_device(cupy, 1, lambda: cupy.pool.malloc(5 * MIB))
    for look in (lambda: None, lambda: cupy.runtime.setDevice(1)):
        on_device(cupy, 1, look)
        with hiwater.track() as t:
            pass
        assert t.usage.gpu[0].name == "cuda:1"
        source.limit_bytes(source.devices()[0])
    assert cupy.runtime.contexts == {1}
    assert cupy.runtime.getDevice() == 0


def test_a_limit_given_as_a_share_makes_no_context_either(monkeypatch, cupy):
    """CuPy asks the driver for the memory of the current device when it makes a pool with such a limit."""
    made = cupy_double.module("13.6.0", share=0.5)
    monkeypatch.setitem(sys.modules, "cupy", made)
    assert devices.backend("cupy").devices() == []
    on_device(made, 1, lambda: made.pool.malloc(5 * MIB))
    (device,) = devices.backend("cupy").devices()
    assert devices.backend("cupy").limit_bytes(device) == 40 << 30
    assert made.runtime.contexts == {1}


def test_each_device_has_its_own_figures(cupy):
    cupy.pool.malloc(2 * MIB)
    on_device(cupy, 1, lambda: cupy.pool.malloc(5 * MIB))
    with hiwater.track() as t:
        cupy.pool.free()
    figures = [(device.name, device.allocated.end_bytes, device.reserved.end_bytes) for device in t.usage.gpu]
    assert figures == [("cuda:0", 0, 2 * MIB), ("cuda:1", 5 * MIB, 5 * MIB)]


def test_a_device_stays_known_when_its_pool_is_empty(cupy):
    on_device(cupy, 1, lambda: cupy.pool.malloc(5 * MIB))
    assert devices.backend("cupy").devices()
    on_device(cupy, 1, lambda: (cupy.pool.free(), cupy.pool.free_all_blocks()))
    with hiwater.track() as t:
        pass
    assert (t.usage.gpu[0].name, t.usage.gpu[0].reserved.end_bytes) == ("cuda:1", 0)
