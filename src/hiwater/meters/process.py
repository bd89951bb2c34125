"""The kernel's figures of this process's memory: resident memory and its peak, and, on demand, PSS, USS and swap.

The peak is the kernel's high-water mark, VmHWM. The kernel updates it with every page, so it misses nothing between two
readings, even inside one call that holds the GIL. Writing "5" to clear_refs resets it. Its error, `error_bytes`: since
Linux 6.2, each CPU keeps back up to max(32, 2 x CPUs) pages of each counter, and resident memory is the sum of three
counters.
"""

from __future__ import annotations

import os
import sys

from hiwater._os import native
from hiwater._os.kept_file import KeptFile
from hiwater._os.procfs import PAGE_BYTES, field_bytes, peak_error_bytes
from hiwater.meters.base import Meter, MeterUnavailable, Reading, Traits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.meters.watch import Watch

_STATM_FIELDS = 7
_REMEDY = "this meter needs Linux with /proc mounted"


class ResidentMeter(Meter):
    """Resident bytes of this process (VmRSS), and their peak since the last reset.

    The peak covers the whole process, all threads included. Where the high-water mark cannot be reset (sandboxes, a
    read-only /proc), the peak is the highest sample of a thread that does not need the GIL, and `traits` says so.
    """

    name = "resident"

    def __init__(self, folder: str = "/proc/self") -> None:
        self._statm = KeptFile(f"{folder}/statm")
        self._status = KeptFile(f"{folder}/status")
        self._clear = KeptFile(f"{folder}/clear_refs", os.O_WRONLY)
        self._error_bytes = peak_error_bytes()
        self._seen = 0  # the highest value since our last reset: if VmHWM is lower, something else has reset it
        # The lowest ru_maxrss so far. ru_maxrss is max(VmHWM, the peak before exec), so the peak before exec is no
        # higher.
        self._lowest_maximum = sys.maxsize
        self._refusal: str | None = None
        self._watch: Watch | None = None
        self._opened = False

    @property
    def traits(self) -> Traits:
        """Exact within `error_bytes` where the kernel's high-water mark can be reset; else sampled."""
        if self._refusal is None:
            return Traits(
                self.name, "VmHWM, reset through clear_refs", "process", error_bytes=self._error_bytes, cost_us=5
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
        """Stop the sampling thread, if any. Descriptors stay open: they cost nothing."""
        if self._watch is not None:
            self._watch.stop()

    def now(self) -> int:
        """Return resident bytes, page-exact on current kernels; raises OSError."""
        fields = self._statm.read_quickly(96).split()
        if len(fields) != _STATM_FIELDS:
            fields = self._statm.read(96).split()
        return int(fields[1]) * PAGE_BYTES

    def high_water_mark(self) -> int:
        """Return the kernel's high-water mark (VmHWM) without a reset; raises OSError."""
        return field_bytes(self._status.read(2048), b"VmHWM:")

    def read_and_reset(self) -> Reading:
        """Return (resident bytes now, their peak since the last reset, whether nothing else reset the peak), and
        reset the peak."""
        if self._refusal is not None:
            now = self.now()
            return now, max(now, self._watch.read_and_reset() if self._watch is not None else 0), True
        now, peak = self._read_and_reset_natively() or self._read_and_reset_in_python()
        intact = peak + self._error_bytes >= self._seen
        self._seen = now
        return now, max(peak, now), intact

    def _read_and_reset_natively(self) -> tuple[int, int] | None:
        core = native.loaded()
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
        clear = self._clear.descriptor()  # checked, because we write to this one
        now = self.now()
        import resource  # where the high-water mark can be reset, it is there

        # getrusage costs a tenth of /proc/self/status, but its maximum survives exec: a small program that a large one
        # started reports the peak of the large one. Only a value above the lowest so far must be the current VmHWM.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if now < peak <= self._lowest_maximum:
            self._lowest_maximum = peak
            peak = self.high_water_mark()
        os.write(clear, b"5")  # directly after the reading: a peak of another thread in between is in neither interval
        _notify_recorder(peak)
        return now, peak

    def _try_reset(self) -> str | None:
        """Reset the high-water mark once; return why that does not work here, or None."""
        try:
            before = self.high_water_mark()
            if before < 0:
                return "this kernel has no high-water mark (VmHWM)"
            _notify_recorder(before)
            self._clear.write(b"5")
            now = self.now()
            self._seen = now
        except OSError as error:
            return f"the kernel's high-water mark cannot be reset: {error.strerror or error} ({self._clear.path})"
        if self.high_water_mark() > max(now, self.now()) + self._error_bytes:
            return "the kernel's high-water mark did not change when it was reset"
        return None


def _notify_recorder(peak: int) -> None:
    # A recording in progress reads the same high-water mark, so it must be told each peak before we reset it.
    core = native.loaded()
    if core is not None:
        core.note_resident_peak(peak)


class _Rollup(Meter):
    """A figure of smaps_rollup. The kernel walks the page tables for it: 0.3 ms in a small process, 30 ms at 2 GB."""

    description = ""
    keys: tuple[bytes, ...] = ()

    def __init__(self, folder: str = "/proc/self") -> None:
        self._file = KeptFile(f"{folder}/smaps_rollup")

    @property
    def traits(self) -> Traits:
        """Read only when scopes begin and end, so the peak is a lower bound."""
        return Traits(
            self.name,
            f"smaps_rollup: {self.description}",
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
    """Resident bytes, with each shared page divided by the number of processes that share it. Can be summed over
    processes."""

    name = "pss"
    description = "private pages, and this process's share of shared ones"
    keys = (b"\nPss:",)


class Uss(_Rollup):
    """Resident bytes that would be free if this process ended."""

    name = "uss"
    description = "private pages"
    keys = (b"Private_Clean:", b"Private_Dirty:", b"Private_Hugetlb:")


class Swap(_Rollup):
    """Bytes of this process in swap. When the kernel swaps pages out, resident memory falls although nothing was
    freed."""

    name = "swap"
    description = "swapped out"
    keys = (b"\nSwap:",)
