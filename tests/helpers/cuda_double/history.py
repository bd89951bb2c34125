"""What the allocator of one device records: a ring of events, with Python stacks, and the observers of refusals.

After `DeviceCachingAllocator::recordHistory`, `record_trace`, `maybeGatherContext` and `RingBuffer` in
`c10/cuda/CUDACachingAllocator.cpp`.
"""

import os
import sys
import time

NEVER, STATE, ALLOC, ALL = range(4)
CONTEXTS = {None: NEVER, "state": STATE, "alloc": ALLOC, "all": ALL}
_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Ring:
    """`RingBuffer`: the last events, and room for at least one."""

    def __init__(self):
        self.most, self.next, self.kept = 1, 0, []

    def set_most(self, count):
        """`setMaxEntries`."""
        self.most = max(1, count)

    def insert(self, entry):
        """`insertEntries`."""
        if len(self.kept) < self.most:
            self.kept.append(entry)
        else:
            self.kept[self.next] = entry
            self.next = (self.next + 1) % self.most

    def entries(self):
        """`getEntries`: in the order of time."""
        return self.kept[self.next :] + self.kept[: self.next]

    def clear(self):
        """`clear`."""
        self.next, self.kept = 0, []


class History:
    """The events of one device. `frames` replaces the stack of the caller, for tests that need a fixed one."""

    def __init__(self):
        self.enabled = False
        self.context = NEVER
        self.skipped = ()
        self.ring = Ring()
        self.observers = []
        self.frames = None
        self.events_in_all = 0
        self.clock_us, self._step_us = time.time_ns() // 1000, 0

    def use_clock(self, start_us, step_us):
        """Have times that are known in advance."""
        self.clock_us, self._step_us = start_us, step_us

    def record(self, enabled, context, most, clear, skipped):
        """`recordHistory`: switching off clears the ring."""
        self.enabled = enabled
        self.context = context if enabled else NEVER
        self.ring.set_most(most)
        self.skipped = tuple(skipped)
        if not enabled or clear:
            self.ring.clear()

    def gather(self, level):
        """`maybeGatherContext`: the caller's stack, innermost frame first; None where none is kept for this."""
        if self.context < level:
            return None
        return list(self.frames) if self.frames is not None else _stack()

    def trace(self, action, address, size, stream, pool, context):
        """`record_trace`. Stacks are kept from `context="alloc"` on. For "oom", `address` is what the driver has
        left."""
        self.clock_us = (
            self.clock_us + self._step_us if self._step_us else max(self.clock_us + 1, time.time_ns() // 1000)
        )
        if not self.enabled or action in self.skipped:
            return
        if self.context < ALLOC:
            context = None
        self.events_in_all += 1
        identity = pool.private.id if pool is not None and pool.private is not None else (0, 0)
        self.ring.insert((action, address, size, stream, self.clock_us, identity, context))

    def shown(self):
        """The events as `THCPModule_memorySnapshot` in `torch/csrc/cuda/Module.cpp` gives them."""
        found = []
        for action, address, size, stream, time_us, identity, context in self.ring.entries():
            entry = {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "time_us": time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": identity,
            }
            if context is not None:
                entry["frames"] = list(context)
            found.append(entry)
        return found


def _stack():
    """The Python frames of the caller, without this package's (`CapturedTraceback::gather`)."""
    found, frame = [], sys._getframe()
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_FOLDER):
            found.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return found
