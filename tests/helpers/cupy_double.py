"""CuPy's default pool as `cupy/cuda/memory.pyx` and `device.pyx` have it: which device is current belongs to a thread, every method of the
whole pool asks for it and makes its pool, and the CUDA runtime (12.0 and later) makes a context for a device that is made current."""

import collections
import contextlib
import threading
import types

UNIT = 512


class Runtime:
    """`cupy.cuda.runtime`, with the devices that have a context."""

    def __init__(self, count):
        self.count = count
        self.contexts = set()
        self._current = threading.local()

    def getDevice(self):  # noqa: N802 - its name, like those below
        return getattr(self._current, "device", 0)

    def setDevice(self, device):  # noqa: N802
        self._current.device = device
        self.contexts.add(device)

    def memGetInfo(self):  # noqa: N802
        self.contexts.add(self.getDevice())
        return 70 << 30, 80 << 30


class SingleDeviceMemoryPool:
    """That of the device which is current when it is made. `share` is what CUPY_GPU_MEMORY_LIMIT says."""

    def __init__(self, runtime, share):
        self._device_id = runtime.getDevice()
        self._runtime = runtime
        self._limit = int(share * runtime.memGetInfo()[1]) if share else 0
        self._used, self._total = [], 0

    def malloc(self, size):
        self._runtime.contexts.add(self._device_id)
        self._used.append(-(-size // UNIT) * UNIT)
        self._total = max(self._total, self.used_bytes())

    def free(self):
        self._used.pop()

    def used_bytes(self):
        return sum(self._used)

    def total_bytes(self):
        return self._total

    def free_bytes(self):
        return self._total - self.used_bytes()

    def get_limit(self):
        return self._limit

    def free_all_blocks(self):
        self._total = self.used_bytes()


class MemoryPool:
    """`cupy.cuda.MemoryPool`: its attributes are C's, so Python sees none of them, and the garbage collector sees all."""

    __slots__ = ("_c_allocator", "_c_pools", "_c_runtime", "_c_share")

    def __init__(self, runtime, share):
        self._c_runtime, self._c_share, self._c_allocator = runtime, share, len
        self._c_pools = collections.defaultdict(lambda: SingleDeviceMemoryPool(runtime, share))

    def _current(self):
        return self._c_pools[self._c_runtime.getDevice()]

    def __getattr__(self, name):
        """Every method is the current device's."""
        return getattr(self._current(), name)


class MemoryPool14(MemoryPool):
    """That of CuPy 14, which makes the pools of all devices at its first use."""

    __slots__ = ()

    def __init__(self, runtime, share):
        super().__init__(runtime, share)
        self._c_pools = None

    def _current(self):
        if self._c_pools is None:
            made = []
            for device in range(self._c_runtime.count):
                made.append(SingleDeviceMemoryPool(self._c_runtime, self._c_share))
                made[-1]._device_id = device
            self._c_pools = made
        return self._c_pools[self._c_runtime.getDevice()]


POOLS = {"13.6.0": MemoryPool, "14.2.0": MemoryPool14}


def module(version, *, count=2, share=0.0):
    """A module for `sys.modules["cupy"]`; `runtime` and `pool` are in it under these names, too."""
    runtime = Runtime(count)
    pool = POOLS[version](runtime, share)

    @contextlib.contextmanager
    def device(number):
        before = runtime.getDevice()
        runtime.setDevice(number)
        yield
        runtime.setDevice(before)

    memory = types.SimpleNamespace(SingleDeviceMemoryPool=SingleDeviceMemoryPool)
    made = types.ModuleType("cupy")
    made.__version__, made.runtime, made.pool = version, runtime, pool
    made.get_default_memory_pool = lambda: pool
    made.cuda = types.SimpleNamespace(runtime=runtime, Device=device, memory=memory)
    return made
