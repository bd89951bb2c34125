"""A history of CuPy's memory pool, through CuPy's hooks: `with CupyHistory() as history: ...; history.save("cupy.pickle")`.

Written for CuPy's documented MemoryHook and tested with a replacement of it; not yet tested with CuPy or on a GPU. A hook belongs to one
thread: the history has no allocations of other threads, and none of MemoryAsyncPool, which has no hooks. Each event costs a walk through
Python's frames, some microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque

from hiwater.errors import MeterUnavailable
from hiwater.recording.device_histories import active

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Self

MOST_EVENTS = 100_000
_DEEPEST = 128
_PROTOCOL = 4
_SOURCE = "CuPy's memory hook"
_FREED = "free_completed"


class CupyHistory:
    """Records what this thread allocates from CuPy's pool and frees, with Python stacks, in the form of torch's snapshots."""

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
        """Raises MeterUnavailable if the program has not loaded CuPy."""
        cupy = sys.modules.get("cupy")
        if cupy is None:
            raise MeterUnavailable("CuPy is not loaded", "import cupy first")
        self._most_events = most_events
        self._events: dict[int, deque[dict[str, Any]]] = {}
        self._live: dict[tuple[int, int], dict[str, Any]] = {}
        self._frames: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._lock = threading.Lock()  # a block may be freed by another thread's hook
        self._hook: Any = _hook_class(cupy)(self)

    def __enter__(self) -> Self:
        self._hook.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hook.__exit__(kind, error, traceback)
        recording = active()
        if recording is not None:
            recording.give("cupy.pickle", self.to_bytes())

    def allocated(self, device: int, address: int, size: int, rounded: int, frame: FrameType | None) -> None:
        """A block was allocated: `size` bytes were requested, and the block has `rounded` bytes."""
        frames = self._stack(frame)
        with self._lock:
            self._live[device, address] = {
                "address": address, "size": rounded, "requested_size": size, "state": "active_allocated", "frames": frames,
            }  # fmt: skip
            self._note("alloc", device, address, size, frames)

    def freed(self, device: int, address: int) -> None:
        """A block was freed. A block from before this history is ignored."""
        with self._lock:
            block = self._live.pop((device, address), None)
            if block is not None:
                self._note(_FREED, device, address, block["requested_size"], [])

    def snapshot(self) -> dict[str, Any]:
        """The history so far, in the form of torch's snapshots."""
        with self._lock:
            devices = sorted({*self._events, *(device for device, _ in self._live)})
            segments = [
                {"device": device, "address": block["address"], "total_size": block["size"], "stream": 0, "segment_type": "large",
                 "blocks": [dict(block)]}
                for (device, _), block in self._live.items()
            ]  # fmt: skip
            traces = [list(self._events.get(device, ())) for device in range(max(devices, default=0) + 1)]
        ours = {"source": _SOURCE, "no_segments": True, "most_events": self._most_events}
        return {"segments": segments, "device_traces": traces, "hiwater": ours}

    def to_bytes(self) -> bytes:
        """The snapshot, pickled."""
        import pickle

        return pickle.dumps(self.snapshot(), _PROTOCOL)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the snapshot to a file that `hiwater report` reads. Raises OSError."""
        with open(path, "wb") as stream:
            stream.write(self.to_bytes())

    def _note(self, action: str, device: int, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        events = self._events.get(device)
        if events is None:
            events = self._events[device] = deque(maxlen=self._most_events)
        events.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time.time_ns() // 1000, "frames": frames}
        )  # fmt: skip

    def _stack(self, frame: FrameType | None) -> list[dict[str, Any]]:
        """The frames, innermost first. A frame that is in several stacks is one dict."""
        stack: list[dict[str, Any]] = []
        while frame is not None and len(stack) < _DEEPEST:
            key = (frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname)
            known = self._frames.get(key)
            if known is None:
                known = self._frames[key] = {"filename": key[0], "line": key[1], "name": key[2]}
            stack.append(known)
            frame = frame.f_back
        return stack


def _hook_class(cupy: Any) -> type[Any]:
    """A hook that passes events to a history. CuPy accepts only subclasses of its own hook."""
    base: type[Any] = cupy.cuda.MemoryHook

    class Hook(base):  # type: ignore[misc]  # known at run time only
        def __init__(self, history: CupyHistory) -> None:
            self.name = f"hiwater {id(history)}"  # CuPy refuses a second hook with the same name in a thread
            self._history = history

        def malloc_postprocess(self, **event: int) -> None:
            if event["mem_ptr"]:
                self._history.allocated(
                    event["device_id"], event["mem_ptr"], event["size"], event["mem_size"], sys._getframe(1)
                )  # fmt: skip

        def free_postprocess(self, **event: int) -> None:
            self._history.freed(event["device_id"], event["mem_ptr"])

    return Hook
