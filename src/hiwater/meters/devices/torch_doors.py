"""The C functions through which torch's Python code reads and resets a device's statistics, and what stands in them while we do.

All of torch's own readers (`max_memory_allocated`, `memory_stats`, `memory_summary`, however they were imported) come through these
two, looked up anew at each call. So whoever stands there can show the program its peaks as they would be without us, and hear of its
resets. torch's peaks cannot be set, so the doors stay until nothing is owed: the program has reset its peaks, or they have risen above ours.
"""

from __future__ import annotations

from typing import NamedTuple

from hiwater.meters.devices.base import leaves, marks
from hiwater.meters.devices.peaks import SharedPeaks
from hiwater.meters.devices.totals import RunningTotals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Names(NamedTuple):
    """What the functions are called in `torch._C` for one type of device."""

    statistics: str
    reset: str
    reset_totals: str


NAMES = {
    "cuda": Names("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats"),
    "xpu": Names("_xpu_memoryStats", "_xpu_resetPeakMemoryStats", "_xpu_resetAccumulatedMemoryStats"),
}
ACCELERATOR = Names("_accelerator_getDeviceStats", "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats")
"""The same statistics for whatever accelerator this torch was built for (2.9 and later)."""


class Doors:
    """The functions of one type of device, theirs and ours. `module` is `torch._C`."""

    def __init__(self, module: Any, kind: str, *, is_accelerator: bool) -> None:
        chosen = [NAMES[kind]] if kind in NAMES else []
        if is_accelerator:
            chosen.append(ACCELERATOR)
        self._module = module
        self._names = [each for each in chosen if hasattr(module, each.statistics) and hasattr(module, each.reset)]
        self._theirs: dict[str, Callable[[int], Any]] = {}
        self._ours: dict[str, Callable[[int], Any]] = {}
        self._peaks: dict[int, SharedPeaks] = {}
        self._totals: dict[int, RunningTotals] = {}  # of devices whose totals somebody reads
        # What a device's marks were last read from, and they.
        self._last_read: dict[int, tuple[dict[str, Any], dict[str, tuple[int, int]]]] = {}

    @property
    def there(self) -> bool:
        """Whether this torch has such functions."""
        return bool(self._names)

    def statistics(self, index: int) -> dict[str, Any]:
        """The library's nested statistics of a device, as they are."""
        found: dict[str, Any] = self._native(self._names[0].statistics)(index)
        return found

    def peaks(self, index: int) -> SharedPeaks:
        """The marks of a device, shared with the program from now on."""
        found = self._peaks.get(index)
        if found is None:
            reset = self._names[0].reset
            found = SharedPeaks(lambda: self._marks(index), lambda: self._native(reset)(index))
            self._peaks[index] = found
        self._stand_in()
        return found

    def last_read(self, index: int) -> dict[str, Any]:
        """The nested statistics that the device's marks were last read from; not to be changed."""
        return self._last_read[index][0]

    def flat(self, index: int) -> dict[str, int]:
        """The same, flat, with totals that the program's resets do not lower."""
        return self._totals.setdefault(index, RunningTotals()).lift(dict(leaves(self.last_read(index))))

    def _marks(self, index: int) -> dict[str, tuple[int, int]]:
        nested = self.statistics(index)
        before = self._last_read.get(index)
        if before is not None and before[0] == nested:  # as after most lines of a program: comparing is cheap
            return before[1]
        found = marks(nested)
        self._last_read[index] = nested, found
        return found

    def noted_peak(self, index: int, statistic: str) -> int:
        """The highest that we wiped out of the program's peak of a statistic; 0 without any."""
        peaks = self._peaks.get(index)
        return peaks.noted_for_program(statistic) if peaks is not None else 0

    def leave_if_done(self) -> None:
        """Put the library's functions back when no meter is open and the program's peaks are true without us."""
        if any(peaks.in_use or peaks.owes for peaks in self._peaks.values()):
            return
        for name, ours in self._ours.items():
            if (
                getattr(self._module, name, None) is ours
            ):  # else somebody put theirs over ours: then ours stays below, and does no harm
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
                self._replace(names.reset, self._reset_told(names.reset))
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

    def _reset_told(self, name: str) -> Callable[[int], Any]:
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
            totals.start_anew(before, dict(leaves(self.statistics(device))))
            return result

        return reset
