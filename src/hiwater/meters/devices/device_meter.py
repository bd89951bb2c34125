"""One quantity of one device as a meter, which scopes use like any other."""

from __future__ import annotations

from hiwater.errors import MeterUnavailable
from hiwater.meters.base import Meter, Reading, Traits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.devices.base import Backend, Device, Standing
    from hiwater.meters.devices.peaks import SharedPeaks


class DeviceMeter(Meter):
    """Bytes of one quantity on one device.

    Where the library's marks can be started anew, each scope has an exact peak. Where they can only be read, a peak that rose during the
    scope is exact, and otherwise the highest of what was seen at the ends of scopes is a lower bound. Where there is no mark at all it
    is always that.
    """

    def __init__(self, backend: Backend, device: Device, quantity: str) -> None:
        self.name = f"{backend.name}:{device.name}:{quantity}"
        self.backend = backend
        self.device = device
        self.quantity = quantity
        self._statistic = backend.statistic_of(quantity)
        self._peaks: SharedPeaks | None = None
        self._last: Standing | None = None
        self._inherited = False

    @property
    def mark_only_rises(self) -> bool:
        """Whether the source's own mark is all there is; known once it is open."""
        return self._peaks is None

    @property
    def disturbance(self) -> str:
        """What it means when `read_and_reset` says that the peak was disturbed."""
        if self._peaks is None:
            return self.backend.refusal(self.device)
        return "something else in the process started the device's peaks anew behind the library's Python functions"

    @property
    def traits(self) -> Traits:
        """What the figure is worth here."""
        backend = self.backend
        refusal = backend.refusal(self.device)
        return Traits(
            self.name,
            f"{backend.source}: {self._statistic}",
            backend.whose,
            exact=not refusal,
            reason=refusal,
            keeps_peak=True,  # `read_and_reset` says itself whether the peak moved
            resets_peak=not refusal,
            cost_us=backend.cost_us,
        )

    def open(self) -> None:
        """Begin; raises MeterUnavailable when the device is not in use any more, or the source has no such quantity."""
        self.device = self.backend.device(self.device.name)
        self._inherited = False
        self._peaks = self.backend.shared_peaks(self.device)
        if self._peaks is None:
            self._last = self._standing()
            return
        try:
            self._peaks.open(self._statistic)
        except Exception:
            self.backend.let_go(self.device)
            raise

    def close(self) -> None:
        """Let go of the device's marks."""
        if self._peaks is not None:
            self._peaks.close(self._statistic)
            self.backend.let_go(self.device)

    def forked(self) -> None:
        """A context does not outlive a fork: the child's figures would be the parent's of then."""
        self._inherited = True
        if self._peaks is not None:
            self._peaks.forked()

    def now(self) -> int:
        """Read the quantity; raises MeterUnavailable when the source has it no longer."""
        self._check_process()
        return self._peaks.now(self._statistic) if self._peaks is not None else self._standing().now

    def read_and_reset(self) -> Reading:
        """Return (now, the most since the last reset, whether that misses nothing)."""
        self._check_process()
        if self._peaks is not None:
            return self._peaks.read_and_reset(self._statistic)
        before, standing = self._last, self._standing()
        self._last = standing
        moved = before is not None and 0 <= before.peak < standing.peak
        highest = max(standing.now, before.now if before is not None else 0)
        return standing.now, max(standing.peak, highest) if moved else highest, moved

    def _check_process(self) -> None:
        if self._inherited:
            raise MeterUnavailable("a device's memory is not a forked child's", "begin a scope in the child")

    def _standing(self) -> Standing:
        found = self.backend.standings(self.device).get(self.quantity)
        if found is None:
            raise MeterUnavailable(
                f"{self.backend.name} does not tell {self.quantity!r} of {self.device.name}",
                f"choose from {', '.join(self.backend.standings(self.device)) or 'nothing'}",
            )
        return found
