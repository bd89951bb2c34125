"""The figures of a line profile."""

from __future__ import annotations

from collections.abc import Sequence


class LineFigures:
    """The figures of one line, over all its calls, in bytes.

    Heap figures count the line's thread and everything that the line calls. `kept_bytes` is the change of the live
    bytes. `allocated_bytes` is the sum of all allocations. `peak_bytes` is the highest peak of one call above its
    start, so it shows temporary allocations.

    Resident figures are of the whole process. `resident_bytes` is the growth. `resident_start_bytes` and
    `resident_end_bytes` are of the last call, `resident_highest_bytes` is the highest at the end of any call.

    Resident figures are 0 if they were not measured, heap figures are None if they were not. In recursion the outermost
    call counts each byte once.
    """

    __slots__ = (
        "allocated_bytes",
        "calls",
        "kept_bytes",
        "line",
        "peak_bytes",
        "resident_bytes",
        "resident_end_bytes",
        "resident_highest_bytes",
        "resident_start_bytes",
    )

    def __init__(
        self,
        line: int,
        calls: int,
        kept_bytes: int | None,
        allocated_bytes: int | None,
        peak_bytes: int | None,
        resident_bytes: int = 0,
        resident_start_bytes: int = 0,
        resident_end_bytes: int = 0,
        resident_highest_bytes: int = 0,
    ) -> None:
        self.line = line
        self.calls = calls
        self.kept_bytes = kept_bytes
        self.allocated_bytes = allocated_bytes
        self.peak_bytes = peak_bytes
        self.resident_bytes = resident_bytes
        self.resident_start_bytes = resident_start_bytes
        self.resident_end_bytes = resident_end_bytes
        self.resident_highest_bytes = resident_highest_bytes

    def add(self, other: LineFigures) -> None:
        """Add the figures of the same line in another process. Those of the last call stay."""
        self.calls += other.calls
        for name in ("kept_bytes", "allocated_bytes", "resident_bytes"):
            setattr(self, name, (getattr(self, name) or 0) + (getattr(other, name) or 0))
        self.peak_bytes = max(self.peak_bytes or 0, other.peak_bytes or 0)
        self.resident_highest_bytes = max(self.resident_highest_bytes, other.resident_highest_bytes)

    def to_dict(self) -> dict[str, int | None]:
        """Return the figures by name."""
        return {name: getattr(self, name) for name in ("line", *(n for n in self.__slots__ if n != "line"))}

    def __repr__(self) -> str:
        return "LineFigures(" + ", ".join(f"{name}={value}" for name, value in self.to_dict().items()) + ")"


class FunctionLines:
    """The lines of a function that ran, in the order of the source, with those of the code nested in it.

    `calls` is the number of calls, with those that already ran when the measuring began. `resident_first_bytes` is the
    resident memory at the first of them; 0 if resident memory was not measured. `child_processes` is the number of
    children that ran it: their figures are added.
    """

    __slots__ = ("calls", "child_processes", "file", "first_line", "last_line", "lines", "name", "resident_first_bytes")

    def __init__(
        self,
        file: str,
        name: str,
        first_line: int,
        last_line: int,
        lines: Sequence[LineFigures],
        calls: int = 0,
        resident_first_bytes: int = 0,
    ) -> None:
        self.file = file
        self.name = name
        self.first_line = first_line
        self.last_line = last_line
        self.lines = list(lines)
        self.calls = calls
        self.resident_first_bytes = resident_first_bytes
        self.child_processes = 0

    def empty(self) -> FunctionLines:
        """The same function, as if it had not run."""
        return FunctionLines(self.file, self.name, self.first_line, self.last_line, [])

    def add_child(self, other: FunctionLines) -> None:
        """Add the figures of the same function in a child process."""
        self.child_processes += 1
        self.calls += other.calls
        self.resident_first_bytes = self.resident_first_bytes or other.resident_first_bytes
        known = {line.line: line for line in self.lines}
        for line in other.lines:
            if line.line in known:
                known[line.line].add(line)
            else:
                known[line.line] = line
        self.lines = [known[number] for number in sorted(known)]

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "file": self.file,
            "name": self.name,
            "first_line": self.first_line,
            "last_line": self.last_line,
            "calls": self.calls,
            "child_processes": self.child_processes,
            "resident_first_bytes": self.resident_first_bytes,
            "lines": [line.to_dict() for line in self.lines],
        }

    def __repr__(self) -> str:
        return f"<FunctionLines {self.name} ({self.file}:{self.first_line}), {len(self.lines)} lines ran>"
