"""One quantity of a scope's result."""

from __future__ import annotations

from dataclasses import asdict, dataclass

_UNNAMED = frozenset({"torch"})  # the names of its devices are unmistakable


@dataclass(frozen=True, slots=True)
class Level:
    """One quantity during a scope, in bytes: at its beginning, at its end, and its peak in between."""

    name: str
    start_bytes: int
    end_bytes: int
    peak_bytes: int
    exact: bool
    """Whether the peak is exact (within `error_bytes`); otherwise it is a lower bound, and `reason` says why."""
    error_bytes: int
    source: str
    whose: str
    reason: str
    allocated_bytes: int | None = None
    """The sum of the sizes of all allocations, also of those freed since; None for quantities without allocations."""
    allocations: int | None = None
    """Their number; a reallocation is one of its new size."""

    @property
    def label(self) -> str:
        """The name in tables: `cuda:0 allocated` for `torch:cuda:0:allocated`."""
        backend, _, rest = self.name.partition(":")
        device, _, quantity = rest.rpartition(":")
        return f"{'' if backend in _UNNAMED else backend + ' '}{device} {quantity}" if device else self.name

    @property
    def peak_above_start_bytes(self) -> int:
        """Peak − start: what the scope needed in addition."""
        return self.peak_bytes - self.start_bytes

    @property
    def kept_bytes(self) -> int:
        """End − start: what the scope retained. Negative if it freed more than it allocated."""
        return self.end_bytes - self.start_bytes

    @property
    def transient_bytes(self) -> int:
        """Peak − the higher of start and end: what was only live for a part of the scope."""
        return self.peak_bytes - max(self.start_bytes, self.end_bytes)

    def to_dict(self) -> dict[str, object]:
        """Return all of it but the name as plain values."""
        derived = ("peak_above_start_bytes", "kept_bytes", "transient_bytes")
        found = asdict(self) | {name: getattr(self, name) for name in derived}
        del found["name"]
        return found
