"""JAX's profile of device memory (`jax.profiler.save_device_memory_profile`), as histories of devices. Needs the
package protobuf.

It is a pprof profile of the memory at one moment, with the Python stack that made each buffer: samples of (allocations,
space) with the labels `kind` (buffer or executable) and `device`. It has no events, so it has no earlier peak. Tested
with JAX 0.10 on the CPU.
"""

from __future__ import annotations

import re
from typing import Any

from hiwater.capture.layout import corrupt
from hiwater.capture.paths import Frame
from hiwater.device_history.events import Blocks, DeviceHistory, Events, EventStacks
from hiwater.errors import ExtraMissing, ForeignFile

_REMEDY = "give one that jax.profiler.save_device_memory_profile() wrote"
_SOURCE = "JAX's profile of device memory"
_NOTE = "the profile has the memory of one moment, and nothing from before"
_LAST_NUMBER = re.compile(r"(\d{1,6})$")


def histories(content: bytes) -> list[DeviceHistory]:
    """One history for each device in an unpacked profile. Raises ForeignFile, CorruptCapture, or ExtraMissing
    without protobuf."""
    try:
        from google.protobuf.message import DecodeError

        from hiwater.device_history.pprof_proto import profile_pb2
    except ImportError as error:
        raise ExtraMissing.of("protobuf", "pprof", error) from error
    made: Any = profile_pb2  # its classes are generated at the import
    profile = made.Profile()
    try:
        profile.ParseFromString(content)
    except DecodeError as error:
        raise ForeignFile("the file is gzipped, and no pprof profile", _REMEDY) from error
    try:
        return _Profile(profile).histories()
    except (KeyError, IndexError, OverflowError, ValueError) as error:
        raise corrupt(f"the profile refers to an entry that it does not have ({error!r})") from error


class _Profile:
    """A profile with tables to look up its numbers."""

    def __init__(self, profile: Any) -> None:
        self._profile, self._texts = profile, profile.string_table
        self._functions = {function.id: function for function in profile.function}
        self._locations = {location.id: location for location in profile.location}
        types = [(self._texts[kind.type], self._texts[kind.unit]) for kind in profile.sample_type]
        if ("space", "bytes") not in types or ("allocations", "count") not in types:
            raise ForeignFile("the profile is not of device memory", _REMEDY)
        self._space, self._count = types.index(("space", "bytes")), types.index(("allocations", "count"))

    def histories(self) -> list[DeviceHistory]:
        found: dict[str, DeviceHistory] = {}
        for sample in self._profile.sample:
            labels = {self._texts[label.key]: self._texts[label.str] for label in sample.label}
            size, count = sample.value[self._space], sample.value[self._count]
            if size <= 0 or count < 0:
                continue  # an executable whose size is not known
            name = labels.get("device", "")
            if name not in found:
                found[name] = self._begin(name, found)
            history = found[name]
            path = self._path(sample)
            if labels.get("kind", "buffer") != "buffer":
                path = (Frame(f"[{labels['kind']}]", "", 0), *path)
            history.live.address.append(len(history.live.address))
            history.live.bytes.append(size)
            history.live.count.append(count)
            history.live.stack.append(history.stacks.number("", path))
        return list(found.values()) or [self._begin("", found)]

    def _begin(self, name: str, others: dict[str, DeviceHistory]) -> DeviceHistory:
        number = _LAST_NUMBER.search(name)
        device = f"jax:{number[1] if number else len(others)}"
        if any(other.device == device for other in others.values()):
            device = f"jax:{1_000_000 + len(others)}"  # of another platform, with the same number
        facts = {"source": f"{_SOURCE}, device {name}" if name else _SOURCE}
        return DeviceHistory(
            device, EventStacks(), Events(), Blocks(), None, has_times=False, notes=[_NOTE], facts=facts
        )

    def _path(self, sample: Any) -> tuple[Frame, ...]:
        """The path, root first. A location may have several functions, the innermost first."""
        lines = [line for location in sample.location_id for line in self._locations[location].line]
        return tuple(self._frame(line) for line in reversed(lines))

    def _frame(self, line: Any) -> Frame:
        function = self._functions[line.function_id]
        return Frame(self._texts[function.name], self._texts[function.filename], max(0, min(line.line, (1 << 32) - 1)))
