"""One quantity of one device as a meter for scopes."""

from __future__ import annotations

from hiwater.errors import MeterUnavailable
from hiwater.meters.base import Meter, Reading, Traits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.devices.base import Backend, Device, Standing
    from hiwater.meters.devices.peaks import SharedPeaks


class DeviceMeter(Meter):
    """Bytes of one quantity on one device.

    Where the library's peaks can be reset, each scope has an exact peak. Where they can only be read, the peak of a
    scope is exact if the library's peak rose during the scope; otherwise the highest reading is a lower bound. Where
    the library has no peak, it always is one.
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
    def has_lifetime_peak(self) -> bool:
        """Whether only the source's lifetime peak is available; known once the meter is open."""
        return self._peaks is None

    @property
    def disturbance(self) -> str:
        """Why a peak is a lower bound when `read_and_reset` says that something else reset it."""
        if self._peaks is None:
            return self.backend.refusal(self.device)
        return "something else in the process reset the device's peaks without the library's Python functions"

    @property
    def traits(self) -> Traits:
        """How exact the figure is here."""
        backend = self.backend
        refusal = backend.refusal(self.device)
        return Traits(
            self.name,
            f"{backend.source}: {self._statistic}",
            backend.whose,
            exact=not refusal,
            reason=refusal,
            keeps_peak=True,  # `read_and_reset` reports whether the peak rose
            resets_peak=not refusal,
            cost_us=backend.cost_us,
        )

    def open(self) -> None:
        """Begin; raises MeterUnavailable when the device is no longer in use, or the source has no such quantity."""
        self.device = self.backend.device(self.device.name)
        self._inherited = False
        self._peaks = self.backend.shared_peaks(self.device)
        if self._peaks is None:
            self._last = self._standing()
            return
        try:
            self._peaks.open(self._statistic)
        except Exception:
            self.backend.release(self.device)
            raise

    def close(self) -> None:
        """Stop keeping the device's peaks."""
        if self._peaks is not None:
            self._peaks.close(self._statistic)
            self.backend.release(self.device)

    def forked(self) -> None:
        """A context does not survive a fork: the figures in the child would be those of the parent at the fork."""
        self._inherited = True
        if self._peaks is not None:
            self._peaks.forked()

    def now(self) -> int:
        """Read the quantity; raises MeterUnavailable when the source no longer has it."""
        self._check_process()
        return self._peaks.now(self._statistic) if self._peaks is not None else self._standing().now

    def read_and_reset(self) -> Reading:
        """Return (now, peak since the last reset, whether that peak is exact)."""
        self._check_process()
        if self._peaks is not None:
            return self._peaks.read_and_reset(self._statistic)
        before, standing = self._last, self._standing()
        self._last = standing
        rose = before is not None and 0 <= before.peak < standing.peak
        highest = max(standing.now, before.now if before is not None else 0)
        return standing.now, max(standing.peak, highest) if rose else highest, rose

    def _check_process(self) -> None:
        if self._inherited:
            raise MeterUnavailable(
                "a forked child does not inherit the memory of a device", "begin a scope in the child"
            )

    def _standing(self) -> Standing:
        found = self.backend.standings(self.device).get(self.quantity)
        if found is None:
            raise MeterUnavailable(
                f"{self.backend.name} has no figure {self.quantity!r} for {self.device.name}",
                f"choose from {', '.join(self.backend.standings(self.device)) or 'nothing'}",
            )
        return found
