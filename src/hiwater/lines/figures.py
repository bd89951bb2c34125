"""What a line profile says."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class LineFigures:
    """One line, all its calls together. Bytes.

    `kept_bytes` is what its thread held more after the line than before it, with all that the line called; `allocated_bytes`
    all that was asked for meanwhile; `peak_bytes` the most that one call held above its start, so a temporary is seen.
    `resident_bytes` is how much resident memory grew (of the whole process: the kernel knows no other);
    `resident_start_bytes` and `resident_end_bytes` are those of the last call, `resident_highest_bytes` the highest at the end
    of any. All resident figures are 0 where they were not asked for, those of the heap None where it was not counted. In
    recursion each byte is counted once, by the outermost call.
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

    def to_dict(self) -> dict[str, int | None]:
        """Return the figures by name."""
        return {name: getattr(self, name) for name in ("line", *(n for n in self.__slots__ if n != "line"))}

    def __repr__(self) -> str:
        return "LineFigures(" + ", ".join(f"{name}={value}" for name, value in self.to_dict().items()) + ")"


class FunctionLines:
    """The lines of a function that ran, in the order of the source; the code nested in it is part of it.

    `calls` is how often it began, or was come upon while it ran; `resident_first_bytes` what was resident the first time, 0 where
    resident memory was not asked for.
    """

    __slots__ = ("calls", "file", "first_line", "last_line", "lines", "name", "resident_first_bytes")

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

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "file": self.file,
            "name": self.name,
            "first_line": self.first_line,
            "last_line": self.last_line,
            "calls": self.calls,
            "resident_first_bytes": self.resident_first_bytes,
            "lines": [line.to_dict() for line in self.lines],
        }

    def __repr__(self) -> str:
        return f"<FunctionLines {self.name} ({self.file}:{self.first_line}), {len(self.lines)} lines ran>"
