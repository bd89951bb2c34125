# ruff: noqa: N802 - the names are those in torch._C
"""The functions of `torch._C` below the Python layer: `torch/csrc/cuda/Module.cpp`,
`torch/csrc/cuda/memory_snapshot.cpp`.

Each does what the real one does, in its order: what initialises CUDA first, what takes which lock, what raises.
"""

import os
import threading
import types

_STACKS = ("python", "all")


class Deadlock(BaseException):
    """Here the real library would wait for itself for ever. No `except Exception` catches it."""


class Bindings:
    """The functions, by the names they have in `torch._C`. `place` is called inside of those that let other code
    run, with a name of the place, so that a test can have something happen there."""

    def __init__(self, torch, backend, cards, *, is_old):
        self._torch = torch
        self.backend = backend
        self._cards = cards
        self._is_old = is_old
        self._thread = threading.local()
        self._once = threading.Lock()
        self._once_by = 0
        self.is_initialized = False
        self._forked_from = os.getpid()
        self.place = lambda name: None
        self.deadlocks = []
        self.calls = []
        """What was asked to record history: (enabled, context, stacks, max_entries) of each call."""

    def table(self):
        """Everything to be put into `torch._C`."""
        found = {
            "_cudart": types.SimpleNamespace(
                cudaMemGetInfo=lambda device: (self._cards[device].free_bytes, self._cards[device].total_bytes)
            ),
            "_CudaDeviceProperties": types.SimpleNamespace,
            "_cuda_CUDAAllocator": type("_cuda_CUDAAllocator", (), {}),
            "_cuda_getCompiledVersion": lambda: 13000,
            "_cuda_getArchFlags": lambda: "sm_90",
            "_cuda_isInBadFork": lambda: self.is_initialized and os.getpid() != self._forked_from,
            "_cuda_synchronize": lambda: None,
        }
        found |= {name: getattr(self, name) for name in dir(self) if name.startswith("_cuda_")}
        if not self._is_old:
            found |= {name: getattr(self, name) for name in dir(self) if name.startswith("_accelerator_")}
        return found

    # Initialising

    def lazy_init(self):
        """`Context::lazyInitDevice(kCUDA)`: `call_once` around `CUDAHooks::init`. Who comes back into it on the same
        thread waits for ever."""
        if self.is_initialized:
            return
        if self._once_by == threading.get_ident():
            self.deadlocks.append("lazyInitDevice")
            raise Deadlock("call_once was entered again by the thread that is in it")
        with self._once:
            if self.is_initialized:
                return
            self._once_by = threading.get_ident()
            try:
                self.place("lazyInitDevice")
                self.backend.init()
                self.place("allocator initialised")
                self.is_initialized = True
            finally:
                self._once_by = 0

    def _cuda_init(self):
        """`THCPModule_initExtension`: initialises CUDA, then gives `torch.cuda` its generators and
        `_get_device_properties`."""
        self.place("initExtension")
        self.lazy_init()
        import torch.cuda as module  # as PyImport_ImportModule does: Python code of the import system runs here

        self.place("torch.cuda imported")
        module.default_generators = tuple(self._torch.Generator() for _ in self._cards)
        self.place("generators set")
        module._get_device_properties = self._properties

    def _properties(self, device):
        card = self._cards[device]
        return types.SimpleNamespace(
            name=card.name, major=9, minor=0, multi_processor_count=132, total_memory=card.total_bytes,
            **({} if self._is_old else {"uuid": card.uuid})
        )  # fmt: skip

    # Devices

    def _cuda_getDeviceCount(self):
        return len(self._cards)

    def _cuda_getDevice(self):
        """`THCPModule_getDevice_wrap`: each thread has its own."""
        return getattr(self._thread, "device", 0)

    def _cuda_setDevice(self, device):
        """`cudaSetDevice` makes the context since CUDA 12."""
        if device >= 0:
            self._check(device)
            self._thread.device = device
            self._cards[device].has_context = True

    def _cuda_exchangeDevice(self, device):
        before = self._cuda_getDevice()
        self._cuda_setDevice(device)
        return before

    def _cuda_maybeExchangeDevice(self, device):
        """`MaybeExchangeDevice`: leaves a device that has no context yet alone."""
        before = self._cuda_getDevice()
        if device >= 0:
            self._check(device)
            self._thread.device = device
        return before

    def _cuda_hasPrimaryContext(self, device):
        """`CUDAHooks::hasPrimaryContext`."""
        if not 0 <= device < len(self._cards):
            raise RuntimeError(f"hasPrimaryContext expects a valid device index, but got device_index={device}")
        return self._cards[device].has_context

    def _check(self, device):
        if not 0 <= device < len(self._cards):
            raise RuntimeError("CUDA error: invalid device ordinal")

    # Memory

    def _cuda_cudaCachingAllocator_raw_alloc(self, size, stream):
        device = self._cuda_getDevice()
        self._cards[device].has_context = True
        return self.backend.malloc(device, size, stream)

    def _cuda_cudaCachingAllocator_raw_delete(self, address):
        self.backend.free(address)

    def _cuda_emptyCache(self):
        self.backend.empty_cache()

    def _cuda_setMemoryFraction(self, fraction, device):
        self.backend.set_fraction(fraction, device)

    def _cuda_getAllocatorBackend(self):
        return self.backend.name

    def _cuda_memoryStats(self, device):
        """`THCPModule_memoryStats`: a new dictionary each time. Private pools are in it since torch 2.13."""
        version = tuple(map(int, self._torch.__version__.split(".")[:2]))
        return self.backend.statistics(device, private_pools=not self._is_old and version >= (2, 13))

    def _cuda_resetPeakMemoryStats(self, device):
        self.backend.reset_peak(device)

    def _cuda_resetAccumulatedMemoryStats(self, device):
        self.backend.reset_accumulated(device)

    def _cuda_memorySnapshot(self, wanted=None):
        """`THCPModule_memorySnapshot`. `wanted`: None, or (pool, pool, include_traces) in new versions; old ones
        take nothing."""
        traces = wanted is None or len(wanted) < 3 or bool(wanted[2])
        segments, events = self.backend.snapshot(traces=traces)
        return {
            "segments": segments,
            "device_traces": events,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": self._is_expandable()},
            **({} if self._is_old else {"external_annotations": []}),
        }

    def _is_expandable(self):
        return any(allocator.expandable for allocator in getattr(self.backend, "devices", ()))

    # History

    def _cuda_record_memory_history(self, enabled, context, stacks, max_entries, clear=False, *rest):
        """`_record_memory_history` in memory_snapshot.cpp: checks its words, initialises CUDA, then reaches all
        device allocators."""
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if stacks not in _STACKS:
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        from .history import CONTEXTS

        self.lazy_init()
        self.calls.append((enabled, context, stacks, max_entries))
        skipped = rest[2] if len(rest) > 2 else ()
        most = max_entries if enabled == "all" else 1
        self.backend.record_history(enabled is not None, CONTEXTS[context], most, clear, skipped)

    def _cuda_record_memory_history_legacy(self, enabled, record_context, most, context_of_allocs, *_):
        """The same for `_record_memory_history(True)`."""
        from .history import ALLOC, NEVER, STATE

        self.lazy_init()
        self.calls.append((enabled, record_context, "legacy", most))
        level = ALLOC if context_of_allocs else STATE if record_context else NEVER
        self.backend.record_history(bool(enabled), level, most, False, ())

    def _cuda_isHistoryEnabled(self):
        return self.backend.is_history_enabled()

    def _cuda_attach_out_of_memory_observer(self, observer):
        """`THCPModule_attachOutOfMemoryObserver`: initialises CUDA first. It cannot be detached."""
        self.lazy_init()
        self.backend.attach_observer(observer)

    # torch.accelerator, of torch 2.9 and later

    def _accelerator_getAccelerator(self):
        return self._torch.device("cuda")

    def _accelerator_isAllocatorInitialized(self):
        return self.backend.initialized

    def _accelerator_getDeviceStats(self, device):
        return self._cuda_memoryStats(device)

    def _accelerator_resetPeakStats(self, device):
        self._cuda_resetPeakMemoryStats(device)
