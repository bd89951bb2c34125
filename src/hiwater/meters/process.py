"""What the kernel knows of this process's memory: resident and its peak, and, on demand, PSS, USS and swap.

The peak is the kernel's own mark, VmHWM, which it keeps at every page: nothing between two looks can be missed, also inside one
call that holds the GIL. Writing "5" to clear_refs starts the mark anew. What is inexact about it: each CPU keeps back up to
max(32, 2 x CPUs) pages of each counter (since Linux 6.2), and resident memory is the sum of three: that is `error_bytes`.
"""

from __future__ import annotations

import os
import resource
import sys

from hiwater._os.kept_file import KeptFile
from hiwater._os.procfs import PAGE_BYTES, field_bytes, peak_error_bytes
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.watch import Watch

_WORDS_OF_STATM = 7
_REMEDY = "this meter needs Linux with /proc mounted"


class ResidentMeter(Meter):
    """Bytes of this process in RAM (VmRSS), and the most since the last reset.

    Whose peak: the whole process's, all threads included. Where the mark cannot be reset (sandboxes, /proc read-only), the peak
    is the highest of samples taken by a thread that needs no GIL, and `traits` says so.
    """

    name = "resident"

    def __init__(self, folder: str = "/proc/self") -> None:
        self._statm = KeptFile(f"{folder}/statm")
        self._status = KeptFile(f"{folder}/status")
        self._clear = KeptFile(f"{folder}/clear_refs", os.O_WRONLY)
        self._error_bytes = peak_error_bytes()
        self._seen = 0  # the most we saw since we started the mark anew: a lower mark was reset by somebody else
        # Lowest ru_maxrss ever seen. It is max(mark, what this process had before exec), so what came before exec is no higher.
        self._lowest_maximum = sys.maxsize
        self._refusal: str | None = None
        self._watch: Watch | None = None
        self._opened = False

    @property
    def traits(self) -> Traits:
        """Exact within `error_bytes` where the kernel's mark can be reset; else sampled."""
        if self._refusal is None:
            return Traits(
                self.name, "VmHWM, started anew through clear_refs", "process", error_bytes=self._error_bytes, cost_us=5
            )
        source = self._watch.source if self._watch is not None else "VmRSS at the ends of scopes"
        return Traits(
            self.name, source, "process", exact=False, reason=self._refusal, keeps_peak=False, resets_peak=False
        )

    def open(self) -> None:
        """Raises MeterUnavailable where there is no /proc."""
        if self._opened:
            if self._watch is not None:
                self._watch.start()
            return
        try:
            self.now()
        except (OSError, ValueError, IndexError) as error:
            raise MeterUnavailable(f"resident memory cannot be read ({error})", _REMEDY) from error
        self._refusal = self._try_reset()
        if self._refusal is not None:
            from hiwater.meters.watch import Watch

            self._watch = Watch(self.now)
            self._watch.start()
        self._opened = True

    def close(self) -> None:
        """Descriptors stay: they cost nothing. A sampling thread goes."""
        if self._watch is not None:
            self._watch.stop()

    def now(self) -> int:
        """Return resident bytes, page-exact on current kernels; raises OSError."""
        words = self._statm.read_quickly(96).split()
        if len(words) != _WORDS_OF_STATM:
            words = self._statm.read(96).split()
        return int(words[1]) * PAGE_BYTES

    def mark(self) -> int:
        """Return the kernel's mark (VmHWM) without starting it anew; raises OSError."""
        return field_bytes(self._status.read(2048), b"VmHWM:")

    def peak_so_far(self) -> int:
        """Return the highest since the last reset, and leave the mark alone: for whoever looks while scopes are open."""
        now = self.now()
        self._seen = max(self._seen, now)
        if self._refusal is not None:
            return max(now, self._watch.peak() if self._watch is not None else 0)
        return max(now, self.mark())

    def read_and_reset(self) -> Reading:
        """Return (resident now, its peak since the last reset, whether the mark is whole), and start the mark anew."""
        if self._refusal is not None:
            now = self.now()
            return now, max(now, self._watch.read_and_reset() if self._watch is not None else 0), True
        now, peak = self._read_and_reset_natively() or self._read_and_reset_in_python()
        intact = peak + self._error_bytes >= self._seen
        self._seen = now
        return now, max(peak, now), intact

    def _read_and_reset_natively(self) -> tuple[int, int] | None:
        core = sys.modules.get("hiwater._core")
        if core is None:
            return None
        clear = self._clear
        found = core.resident_read_and_reset(
            self._statm.number, self._status.number, clear.number, *clear.identity, self._lowest_maximum
        )
        if found is None:
            return None
        now, peak, self._lowest_maximum = found
        return now, peak

    def _read_and_reset_in_python(self) -> tuple[int, int]:
        clear = self._clear.descriptor()  # makes sure that the number is ours: this one is written to
        now = self.now()
        # getrusage costs a tenth of /proc/self/status, but its maximum survives exec: a small program started by a large one
        # reports the large one's. A figure above the lowest ever seen can only be the mark of now.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if now < peak <= self._lowest_maximum:
            self._lowest_maximum = peak
            peak = self.mark()
        os.write(clear, b"5")  # right behind the reading: a spike of another thread in between is in neither interval
        _tell_recorder(peak)
        return now, peak

    def _try_reset(self) -> str | None:
        """Start the mark anew once; return why that does not work here, or None."""
        try:
            before = self.mark()
            if before < 0:
                return "this kernel shows no peak mark (VmHWM)"
            _tell_recorder(before)
            self._clear.write(b"5")
            now = self.now()
            self._seen = now
        except OSError as error:
            return f"the kernel's peak mark cannot be started anew: {error.strerror or error} ({self._clear.path})"
        if self.mark() > max(now, self.now()) + self._error_bytes:
            return "the kernel's peak mark did not move when it was started anew"
        return None


def _tell_recorder(peak: int) -> None:
    # A recording in progress reads the same mark; it must hear of a peak that we are about to wipe out.
    core = sys.modules.get("hiwater._core")
    if core is not None:
        core.note_resident_peak(peak)


class _Rollup(Meter):
    """A figure of smaps_rollup. The kernel walks the page tables for it: 0.3 ms in a small process, 30 ms at 2 GB."""

    words = ""
    keys: tuple[bytes, ...] = ()

    def __init__(self, folder: str = "/proc/self") -> None:
        self._file = KeptFile(f"{folder}/smaps_rollup")

    @property
    def traits(self) -> Traits:
        """Read at the ends of scopes only, so the peak is a lower bound."""
        return Traits(
            self.name,
            f"smaps_rollup: {self.words}",
            "process",
            exact=False,
            reason="read when a scope begins or ends, not between",
            keeps_peak=False,
            resets_peak=False,
            cost_us=300,
        )

    def open(self) -> None:
        """Raises MeterUnavailable where the kernel has no smaps_rollup."""
        try:
            self.now()
        except OSError as error:
            raise MeterUnavailable(f"{self.name} cannot be read ({error})", _REMEDY) from error

    def now(self) -> int:
        """Return the bytes; raises OSError."""
        text = self._file.read()
        return sum(max(0, field_bytes(text, key)) for key in self.keys)


class Pss(_Rollup):
    """Resident bytes with each shared page divided by the number of processes that share it: what can be summed."""

    name = "pss"
    words = "private pages, and this process's share of shared ones"
    keys = (b"\nPss:",)


class Uss(_Rollup):
    """Resident bytes that would be free if this process ended."""

    name = "uss"
    words = "private pages"
    keys = (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:")


class Swap(_Rollup):
    """Bytes of this process in swap. Swapping out lowers resident memory without anybody having freed anything."""

    name = "swap"
    words = "swapped out"
    keys = (b"\nSwap:",)
