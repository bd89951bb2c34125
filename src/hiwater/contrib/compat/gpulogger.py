"""ipygpulogger's class, made from the cell logger: its names, its units (whole MiB), its layout."""

from __future__ import annotations

from typing import NamedTuple

from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.errors import MeterUnavailable
from hiwater.notebook.logger import CellLogger, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.notebook.figures import Cell
    from hiwater.scopes.usage import Level


class IPyGPULoggerMemory(NamedTuple):
    """Whole MiB. `used_delta` is end − start. `peaked_delta` is the peak above the higher of the two, so a cell
    needed their sum, as in that package. `used_total` is the memory at the end."""

    used_delta: int
    peaked_delta: int
    used_total: int


class IPyGPULoggerTime(NamedTuple):
    """Seconds."""

    time_delta: float


class IPyGPULoggerData(NamedTuple):
    """A cell's figures: unpacks into the seven values that the package documents; `cpu`, `gpu` and `time` have them
    as its code has. Those of the GPU are the first device's, 0 where none is in use."""

    gen_mem_used_delta: int
    gen_mem_peaked: int
    gen_mem_used: int
    gpu_mem_used_delta: int
    gpu_mem_peaked: int
    gpu_mem_used: int
    time_delta: float

    def __repr__(self) -> str:
        """As that package's manual shows it: `Data(gen_mem_used_delta=0, …)`."""
        return f"Data({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self, strict=True))})"

    @property
    def cpu(self) -> IPyGPULoggerMemory:
        """Resident memory of the process."""
        return IPyGPULoggerMemory(*self[:3])

    @property
    def gpu(self) -> IPyGPULoggerMemory:
        """Memory of the first GPU in use, as the library that uses it counts."""
        return IPyGPULoggerMemory(*self[3:6])

    @property
    def time(self) -> IPyGPULoggerTime:
        """How long the cell took."""
        return IPyGPULoggerTime(self.time_delta)


class IPyGPULogger:
    """Prints a small table after every cell: `IPyGPULogger(compact=False, gc_collect=True).start()`."""

    def __init__(self, compact: bool = False, gc_collect: bool = True) -> None:
        """`compact` prints one line. `gc_collect` collects garbage before figures are read: see CellLogger."""
        self.compact = compact
        self._cells = _Cells(self, gc_collect=gc_collect)

    @property
    def gc_collect(self) -> bool:
        """Whether garbage is collected before and after each cell."""
        return self._cells.gc_collect

    @property
    def running(self) -> bool:
        """Whether cells are being measured."""
        return self._cells.running

    @property
    def data(self) -> IPyGPULoggerData | None:
        """The figures of the last cell; None before the first."""
        try:
            return _data(self._cells.last)
        except MeterUnavailable:
            return None

    def start(self) -> IPyGPULogger:
        """Measure cells, from the next one on."""
        self._cells.start()
        return self

    def stop(self) -> None:
        """Stop measuring."""
        self._cells.stop()


class _Cells(CellLogger):
    def __init__(self, owner: IPyGPULogger, *, gc_collect: bool) -> None:
        super().__init__(gc_collect=gc_collect)
        self._owner = owner

    def _tell(self, cell: Cell) -> None:
        data = _data(cell)
        words = _short(data) if self._owner.compact else _table(data, cell)
        show(self._shell, words)


def load_ipython_extension(_: Any) -> None:
    """Called by `%load_ext ipygpulogger`: measures from the next cell on."""
    IPyGPULogger().start()


def _data(cell: Cell) -> IPyGPULoggerData:
    gpu = _figures(cell.devices[0].chief) if cell.devices else (0, 0, 0)
    return IPyGPULoggerData(*_figures(cell.resident), *gpu, cell.seconds)


def _figures(level: Level) -> tuple[int, int, int]:
    return _whole(level.kept_bytes), _whole(level.transient_bytes), _whole(level.end_bytes)


def _whole(count: int) -> int:
    return round(count / BYTES_PER_MIB)


def _table(data: IPyGPULoggerData, cell: Cell) -> str:
    others = [(device.name, _figures(device.chief)) for device in cell.devices[1:]]
    return "\n".join(
        [
            f"RAM: Consumed Peaked  Used Total  in {data.time_delta:.3f}s (In [{cell.number}])",
            f"Gen: {data.gen_mem_used_delta:8,} {data.gen_mem_peaked:6,} {data.gen_mem_used:6,} MB",
            f"GPU: {data.gpu_mem_used_delta:8,} {data.gpu_mem_peaked:6,} {data.gpu_mem_used:6,} MB",
            *(f"GPU: {used:8,} {peaked:6,} {total:6,} MB  ({name})" for name, (used, peaked, total) in others),
        ]
    )


def _short(data: IPyGPULoggerData) -> str:
    cpu = f"{data.gen_mem_used_delta:,}/{data.gen_mem_peaked:,}/{data.gen_mem_used:,}"
    gpu = f"{data.gpu_mem_used_delta:,}/{data.gpu_mem_peaked:,}/{data.gpu_mem_used:,}"
    return f"CPU: {cpu} MB | GPU: {gpu} MB | Time {data.time_delta:.3f}s | (Consumed/Peaked/Used Total)"
