"""A small caching allocator that keeps a history as torch's does, and shows it in torch's format: segments, blocks, traces.

It follows what torch documents of its allocator: sizes are rounded up to 512 bytes, small requests share segments of 2 MiB, larger ones
get segments of 20 MiB or their own, free neighbours are joined, a block that another stream uses waits, and the trace is a ring.
Nothing here has been compared with a real GPU.
"""

from collections import deque

_ROUNDING, _SMALL, _SMALL_SEGMENT, _LARGE_SEGMENT, _OWN_SEGMENT = 512, 1 << 20, 2 << 20, 20 << 20, 10 << 20


class Refused(Exception):
    """Stands for torch.OutOfMemoryError."""


class Allocator:
    """One device. `live` is the naive truth beside it: address to (requested bytes, frames)."""

    def __init__(self, device=0, capacity=1 << 40, max_entries=None, recording=True, context="alloc"):
        self.device, self.capacity, self.context = device, capacity, context
        self.recording = recording
        self.trace = deque(maxlen=max_entries)
        self.segments = []
        self.live = {}
        self.waiting = set()
        self.time_us = 1_700_000_000_000_000
        self.next_address = 0x7F00_0000_0000
        self.events_in_all = 0

    def alloc(self, size, frames=(), stream=0, **more):
        rounded = max(_ROUNDING, -(-size // _ROUNDING) * _ROUNDING)
        found = self._find(rounded, stream)
        if found is None:
            found = self._grow(rounded, size, frames, stream)
        segment, block = found
        rest = block["size"] - rounded
        if rest >= (_ROUNDING if rounded <= _SMALL else _SMALL + 1):
            place = segment["blocks"].index(block)
            segment["blocks"].insert(place + 1, _free(block["address"] + rounded, rest))
            block["size"] = rounded
        block.update(state="active_allocated", requested_size=size)
        if self.recording and self.context:
            block["frames"] = list(frames)
        self.live[block["address"]] = size, tuple(frame["name"] for frame in frames)
        self._event("alloc", block["address"], size, frames if self.context else (), stream, **more)
        return block["address"]

    def free(self, address, *, waits=False):
        segment, block = self._block(address)
        self._event("free_requested", address, block["requested_size"], (), segment["stream"])
        if waits:
            block["state"] = "active_awaiting_free"
            self.waiting.add(address)
        else:
            self._complete(segment, block)

    def synchronise(self):
        for address in sorted(self.waiting):
            self._complete(*self._block(address))
        self.waiting.clear()

    def empty_cache(self):
        for segment in [one for one in self.segments if all(block["state"] == "inactive" for block in one["blocks"])]:
            self.segments.remove(segment)
            self._event("segment_free", segment["address"], segment["total_size"], (), segment["stream"])

    def snapshot(self):
        segments = [
            {
                **segment,
                "blocks": [dict(block) for block in segment["blocks"]],
                "allocated_size": sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"),
                "active_size": sum(b["size"] for b in segment["blocks"] if b["state"] != "inactive"),
                "requested_size": sum(
                    b.get("requested_size", 0) for b in segment["blocks"] if b["state"] != "inactive"
                ),
            }
            for segment in self.segments
        ]
        return {
            "segments": segments,
            "device_traces": [[] for _ in range(self.device)] + [[dict(event) for event in self.trace]],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": [],
        }

    @property
    def reserved(self):
        return sum(segment["total_size"] for segment in self.segments)

    def _find(self, rounded, stream):
        kind = "small" if rounded <= _SMALL else "large"
        fits = [
            (block["size"], segment["address"], number, segment, block)
            for segment in self.segments
            if segment["segment_type"] == kind and segment["stream"] == stream
            for number, block in enumerate(segment["blocks"])
            if block["state"] == "inactive" and block["size"] >= rounded
        ]
        return min(fits, key=lambda fit: fit[:3])[3:] if fits else None

    def _grow(self, rounded, size, frames, stream):
        total = _SMALL_SEGMENT if rounded <= _SMALL else _LARGE_SEGMENT
        if rounded >= _OWN_SEGMENT:
            total = -(-rounded // _SMALL_SEGMENT) * _SMALL_SEGMENT
        if self.reserved + total > self.capacity:
            self.empty_cache()
        if self.reserved + total > self.capacity:
            free = self.capacity - self.reserved
            self._event("oom", None, size, frames if self.context else (), stream, device_free=free)
            raise Refused(size)
        segment = {
            "device": self.device, "address": self.next_address, "total_size": total, "stream": stream,
            "segment_type": "small" if rounded <= _SMALL else "large", "segment_pool_id": (0, 0), "is_expandable": False,
            "frames": [], "blocks": [_free(self.next_address, total)],
        }  # fmt: skip
        self.next_address += total
        self.segments.append(segment)
        self._event("segment_alloc", segment["address"], total, frames, stream)
        return segment, segment["blocks"][0]

    def _complete(self, segment, block):
        self._event("free_completed", block["address"], block["requested_size"], (), segment["stream"])
        del self.live[block["address"]]
        for name in ("requested_size", "frames"):
            block.pop(name, None)
        block["state"] = "inactive"
        joined = []
        for one in segment["blocks"]:
            if joined and joined[-1]["state"] == one["state"] == "inactive":
                joined[-1]["size"] += one["size"]
            else:
                joined.append(one)
        segment["blocks"] = joined

    def _block(self, address):
        return next(
            (segment, block)
            for segment in self.segments
            for block in segment["blocks"]
            if block["address"] == address and block["state"] != "inactive"
        )

    def _event(self, action, address, size, frames, stream, **more):
        self.time_us += 7
        if not self.recording:
            return
        where = {} if address is None else {"addr": address}
        self.events_in_all += 1
        self.trace.append(
            {
                "action": action,
                **where,
                "size": size,
                "stream": stream,
                "frames": list(frames),
                "time_us": self.time_us,
                **more,
            }
        )


def _free(address, size):
    return {"address": address, "size": size, "state": "inactive"}


def frame(name, line=1, filename="/work/train.py"):
    """A frame as torch shows it; stacks are innermost first there."""
    return {"filename": filename, "line": line, "name": name}
