"""Replaces the C functions through which torch's Python code reads and resets a device's statistics, while our meters
use them.

All of torch's functions (`max_memory_allocated`, `memory_stats`, `memory_summary`, however they were imported) look
these C functions up at each call. So our replacements can show the program its peaks as they would be without our
resets, and note the program's resets. torch's peaks cannot be set. So the replacements stay until the program's peaks
need no correction: after the program has reset them, or after they have risen above the noted ones.
"""

from __future__ import annotations

from typing import NamedTuple

from hiwater.meters.devices.peaks import SharedPeaks
from hiwater.meters.devices.statistics import RunningTotals, currents_and_peaks, leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Names(NamedTuple):
    """The names of the functions in `torch._C` for one type of device."""

    statistics: str
    reset: str
    reset_totals: str


NAMES = {
    "cuda": Names("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats"),
    "xpu": Names("_xpu_memoryStats", "_xpu_resetPeakMemoryStats", "_xpu_resetAccumulatedMemoryStats"),
}
ACCELERATOR = Names("_accelerator_getDeviceStats", "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats")
"""The same statistics for the accelerator that this torch was built for (2.9 and later)."""


class Doors:
    """The functions of one type of device: torch's originals and our replacements. `module` is `torch._C`."""

    def __init__(self, module: Any, kind: str, *, is_accelerator: bool) -> None:
        chosen = [NAMES[kind]] if kind in NAMES else []
        if is_accelerator:
            chosen.append(ACCELERATOR)
        self._module = module
        self._names = [each for each in chosen if hasattr(module, each.statistics) and hasattr(module, each.reset)]
        self._theirs: dict[str, Callable[[int], Any]] = {}
        self._ours: dict[str, Callable[[int], Any]] = {}
        self._peaks: dict[int, SharedPeaks] = {}
        self._totals: dict[int, RunningTotals] = {}  # of devices whose totals are read
        # The last reading by device: the nested statistics, and the peaks in them.
        self._last_read: dict[int, tuple[dict[str, Any], dict[str, tuple[int, int]]]] = {}

    @property
    def there(self) -> bool:
        """Whether this torch has such functions."""
        return bool(self._names)

    def statistics(self, index: int) -> dict[str, Any]:
        """The library's nested statistics of a device, unchanged."""
        found: dict[str, Any] = self._native(self._names[0].statistics)(index)
        return found

    def peaks(self, index: int) -> SharedPeaks:
        """The peaks of a device, shared with the program from now on."""
        found = self._peaks.get(index)
        if found is None:
            reset = self._names[0].reset
            found = SharedPeaks(lambda: self._read_peaks(index), lambda: self._native(reset)(index))
            self._peaks[index] = found
        self._stand_in()
        return found

    def last_read(self, index: int) -> dict[str, Any]:
        """The nested statistics of the last reading of the device's peaks; do not change them."""
        return self._last_read[index][0]

    def flat(self, index: int) -> dict[str, int]:
        """The same statistics, flat, with totals that the program's resets do not lower."""
        return self._totals.setdefault(index, RunningTotals()).lift(dict(leaves(self.last_read(index))))

    def _read_peaks(self, index: int) -> dict[str, tuple[int, int]]:
        nested = self.statistics(index)
        before = self._last_read.get(index)
        # True after most lines of a program, and the comparison is cheap.
        if before is not None and before[0] == nested:
            return before[1]
        found = currents_and_peaks(nested)
        self._last_read[index] = nested, found
        return found

    def noted_peak(self, index: int, statistic: str) -> int:
        """The highest peak of a statistic that we have reset and the program has not; 0 without any."""
        peaks = self._peaks.get(index)
        return peaks.noted_for_program(statistic) if peaks is not None else 0

    def leave_if_done(self) -> None:
        """Restore the library's functions when no meter is open and the program's peaks need no correction."""
        if any(peaks.in_use or peaks.owes for peaks in self._peaks.values()):
            return
        for name, ours in self._ours.items():
            # Otherwise another replacement wraps ours, which stays and does no harm.
            if getattr(self._module, name, None) is ours:
                setattr(self._module, name, self._theirs.pop(name))
        self._ours = {name: ours for name, ours in self._ours.items() if name in self._theirs}
        self._peaks.clear()
        self._totals.clear()

    def _native(self, name: str) -> Callable[[int], Any]:
        found: Callable[[int], Any] = self._theirs.get(name) or getattr(self._module, name)
        return found

    def _stand_in(self) -> None:
        for names in self._names:
            if names.statistics not in self._ours:
                self._replace(names.statistics, self._shown(names.statistics))
                self._replace(names.reset, self._noted_reset(names.reset))
                if hasattr(self._module, names.reset_totals):
                    self._replace(names.reset_totals, self._totals_kept(names.reset_totals))

    def _replace(self, name: str, ours: Callable[[int], Any]) -> None:
        self._theirs[name] = getattr(self._module, name)
        self._ours[name] = ours
        setattr(self._module, name, ours)

    def _shown(self, name: str) -> Callable[[int], Any]:
        def statistics(device: int) -> Any:
            found = self._native(name)(device)
            peaks = self._peaks.get(device)
            if peaks is not None:
                peaks.show_program(found)
            return found

        return statistics

    def _noted_reset(self, name: str) -> Callable[[int], Any]:
        def reset(device: int) -> Any:
            peaks = self._peaks.get(device)
            if peaks is None:
                return self._native(name)(device)
            peaks.program_resets()
            self.leave_if_done()
            return None

        return reset

    def _totals_kept(self, name: str) -> Callable[[int], Any]:
        def reset(device: int) -> Any:
            totals = self._totals.get(device)
            if totals is None:
                return self._native(name)(device)
            before = dict(leaves(self.statistics(device)))
            result = self._native(name)(device)
            totals.program_reset(before, dict(leaves(self.statistics(device))))
            return result

        return reset
