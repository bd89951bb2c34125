"""The names of code that a compiler made in the recorded program, from the map that it wrote for `perf`."""

from __future__ import annotations

from bisect import bisect_right

from hiwater.capture import attachments
from hiwater.capture.native_frames import GENERATED
from hiwater.capture.reader import Contents
from hiwater.errors import CorruptCapture

_LONGEST = 4096


class GeneratedCode:
    """What lies where: each line of a map has a start, a size, both in hexadecimal, and a name. Of two at one place the
    later is in use."""

    def __init__(self, text: str = "") -> None:
        functions = dict[int, tuple[int, str]]()
        for line in text.splitlines():
            start, size, name = [*line.split(" ", 2), "", ""][:3]
            try:
                functions[int(start, 16)] = int(size, 16), name[:_LONGEST]
            except ValueError:
                continue  # not a line of such a map
        self._starts = sorted(functions)
        self._functions = functions

    @classmethod
    def of(cls, contents: Contents) -> GeneratedCode:
        """That of a capture."""
        try:
            return cls(attachments.read(contents).get(attachments.PERF_MAP, b"").decode("utf-8", "replace"))
        except CorruptCapture:
            return cls()

    def at(self, address: int) -> str:
        """The function at an address."""
        index = bisect_right(self._starts, address) - 1
        size, name = self._functions[self._starts[index]] if index >= 0 else (0, "")
        return name if index >= 0 and address < self._starts[index] + size and name else GENERATED
