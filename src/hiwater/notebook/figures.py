"""The figures of a cell, as data and as one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hiwater._os.sizes import BYTES_PER_MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.scopes.device_usage import DeviceUsage
    from hiwater.scopes.usage import Level

_SOURCE_SHOWN = 80


class Memory(NamedTuple):
    """One quantity over a cell, in bytes. `consumed` is end − start, `peaked` is peak − start, `used` is the memory
    at the end."""

    consumed: int
    peaked: int
    used: int


class CellData(NamedTuple):
    """A cell's figures. `ram` is resident memory of the whole process. `gpu` has one entry for each device that the
    session uses: the bytes that the library handed out. `time` is in seconds. `allocated` is the live bytes, counted
    since the logger started; None without the engine."""

    ram: Memory
    gpu: tuple[Memory, ...]
    time: float
    allocated: Memory | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that ran: its execution number, first line, start (seconds since the epoch), duration and figures, and
    the class of the exception that ended it, or ""."""

    number: int
    source: str
    started_at: float
    seconds: float
    resident: Level
    allocated: Level | None
    error: str
    devices: tuple[DeviceUsage, ...] = ()

    @property
    def data(self) -> CellData:
        """The figures as a named tuple."""
        allocated = _memory(self.allocated) if self.allocated is not None else None
        gpu = tuple(_memory(device.chief) for device in self.devices)
        return CellData(_memory(self.resident), gpu, self.seconds, allocated)

    def row(self) -> dict[str, object]:
        """The figures as a row of a table; units are in the names."""
        row: dict[str, object] = {"cell": self.number, "source": self.source}
        row |= {"started_at": self.started_at, "seconds": self.seconds}
        figures = ("start_bytes", "peak_above_start_bytes", "kept_bytes")
        for name, level in (("resident", self.resident), ("allocated", self.allocated)):
            row |= {f"{name}_{figure}": getattr(level, figure, None) for figure in figures}
        row["resident_exact"] = self.resident.exact
        for device in self.devices:
            row |= {f"{device.name}_{figure}": getattr(device, figure) for figure in (*figures, "exact")}
        return row | {"error": self.error}

    def line(self, *, compact: bool = False) -> str:
        """The line that is printed after the cell."""
        head = f"[{self.number}] {self.seconds:.2f} s"
        if compact:
            best = self.allocated or self.resident
            words = f"{best.name if best is self.resident else 'allocated'} {_changes(best)}"
            gpu = "".join(f" · {device.name} {_changes(device.chief)}" for device in self.devices)
            return f"{head} · {words} · {mib(self.resident.end_bytes)} resident{gpu}"
        words = f"{head} · resident: {_changes(self.resident)}, now {mib(self.resident.end_bytes)}"
        if self.allocated is not None:
            words += f" · allocated: {_changes(self.allocated)}"
        for device in self.devices:
            words += f" · {device.name}: {_changes(device.chief)}, now {mib(device.end_bytes)}"
        return words + (f" · {self.error}" if self.error else "")


def first_line(source: str) -> str:
    """The first line of a cell that is not empty, shortened."""
    line = next((line.strip() for line in source.splitlines() if line.strip()), "")
    return line if len(line) <= _SOURCE_SHOWN else line[: _SOURCE_SHOWN - 1] + "…"


def mib(count: int) -> str:
    """Bytes in MiB, such as 229.0 MiB. The unit is always the same, so that lines can be compared."""
    return f"{count / BYTES_PER_MIB:,.1f} MiB"


def signed_mib(count: int) -> str:
    """A change in MiB with its sign; 0.0 has none."""
    text = mib(abs(count))
    return text if text == mib(0) else ("+" if count > 0 else "−") + text


def _changes(level: Level) -> str:
    least = "" if level.exact else "at least "
    return f"peak {least}{signed_mib(level.peak_above_start_bytes)}, kept {signed_mib(level.kept_bytes)}"


def _memory(level: Level) -> Memory:
    return Memory(level.kept_bytes, level.peak_above_start_bytes, level.end_bytes)
