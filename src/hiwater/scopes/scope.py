"""A scope and its meters: the notes of each meter's peaks, and the figures of each scope."""

from __future__ import annotations

from bisect import bisect_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hiwater.meters.base import Meter
    from hiwater.meters.counters import Counters


class Peaks:
    """Notes of peaks in order of time. They answer "the highest since epoch m" without a loop over open scopes.

    A note is dropped once a later one is at least as high, so the remaining values fall strictly, and the first note at
    or after m is the highest. `add` costs O(1) on average, `highest_since` O(log n).
    """

    __slots__ = ("epochs", "values")

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.values: list[int] = []

    def add(self, epoch: int, value: int) -> None:
        """Note `value`; epochs never decrease."""
        values = self.values
        while values and values[-1] <= value:
            values.pop()
            self.epochs.pop()
        values.append(value)
        self.epochs.append(epoch)

    def highest_since(self, epoch: int) -> int:
        """Return the highest value noted at `epoch` or later; there must be one."""
        return self.values[bisect_left(self.epochs, epoch)]

    def keep(self, askers: Sequence[int]) -> None:
        """Drop all notes that none of `askers` (epochs in ascending order) can get."""
        positions = sorted({bisect_left(self.epochs, epoch) for epoch in askers} - {len(self.epochs)})
        self.epochs = [self.epochs[i] for i in positions]
        self.values = [self.values[i] for i in positions]

    def clear(self) -> None:
        self.epochs.clear()
        self.values.clear()


class Slot:
    """A meter in use: its notes, the number of scopes that use it, and when its peak was last disturbed or
    unreadable."""

    __slots__ = (
        "disturbed_at", "failed", "is_busy", "meter", "name", "now", "peaks", "risen_at", "thread", "users",
    )  # fmt: skip

    def __init__(self, meter: Meter, thread: int = 0) -> None:
        self.meter = meter
        self.thread = thread
        """The thread that the figure belongs to; 0 for a figure of the process."""
        self.name = meter.name
        self.peaks = Peaks()
        self.users = 0
        self.is_busy = False
        """Whether the meter is being opened, read or closed."""
        self.now = 0
        self.disturbed_at = self.risen_at = -1
        self.failed = ""

    def read_and_reset(self, epoch: int) -> None:
        """Take a note. If a meter fails, only its figure is lost; the program continues."""
        try:
            self.now, peak, intact = self.meter.read_and_reset()
        except Exception as error:  # noqa: BLE001 - no failure of a meter may break the measured program
            self.failed = f"{type(error).__name__}: {error}"
            intact, peak = False, self.now
        self.peaks.add(epoch, peak)
        if intact:
            self.risen_at = epoch
        else:
            self.disturbed_at = epoch

    def is_intact_since(self, epoch: int) -> bool:
        """Whether the notes since `epoch` miss nothing: a lifetime peak must have risen since then; any other peak
        must never have been disturbed."""
        return self.risen_at >= epoch if self.meter.has_lifetime_peak else self.disturbed_at < epoch


class MeterFigures:
    """The raw figures of one meter for one scope."""

    __slots__ = ("allocated", "came_late", "end", "intact", "peak", "slot", "start", "totals")

    def __init__(self, slot: Slot, *, came_late: bool = False) -> None:
        self.slot = slot
        self.came_late = came_late
        """Whether the meter joined during the scope; its figure then starts at 0."""
        self.start = self.end = self.peak = 0 if came_late else slot.now
        self.intact = True
        self.totals = slot.meter.totals()
        self.allocated: tuple[int, int] | None = None
        """Bytes and allocations of the scope; None if the meter does not count them."""


class Scope:
    """One interval. `ScopeManager.enter` begins it; it is complete after `ScopeManager.exit`."""

    __slots__ = (
        "began", "ended", "epoch", "error", "figures", "is_open", "name", "slots", "spent_ns", "started_at", "thread",
        "unmeasured", "wanted", "wants_devices",
    )  # fmt: skip

    def __init__(self, name: str, wanted: Sequence[str] | None = None) -> None:
        self.name = name
        self.wanted = wanted
        self.wants_devices = wanted is None or "gpu" in wanted
        self.is_open = False
        self.epoch = 0
        self.slots: list[Slot] = []
        self.figures: list[MeterFigures] = []
        self.unmeasured: dict[str, str] = {}
        self.began: Counters | None = None
        self.ended: Counters | None = None
        self.spent_ns = 0
        self.started_at = 0.0
        self.thread = 0
        self.error = ""
