"""What `procfs` tells of other processes, for systems without /proc: psutil asks those. No figure of a peak covers
the time between two readings."""

from __future__ import annotations

from contextlib import suppress

from hiwater.errors import ExtraMissing, NoSuchProcess, ProcessNotReadable

try:
    import psutil
except ImportError as error:
    raise ExtraMissing(
        f"without /proc, processes are read by psutil, which cannot be used ({error})",
        "pip install psutil; on Linux, mount /proc",
    ) from error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Value = TypeVar("Value")

_STATES = {psutil.STATUS_ZOMBIE: "Z", psutil.STATUS_DEAD: "X"}


class PsutilMemory:
    """Reads the resident memory of one process. None from any reading means that the process has ended."""

    def __init__(self, pid: int) -> None:
        """Raises NoSuchProcess or ProcessNotReadable."""
        self.pid = pid
        try:
            self._process = psutil.Process(pid)
            self._read()
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            raise NoSuchProcess(f"there is no process {pid}", "check the id: the process may have ended") from None
        except psutil.AccessDenied:
            raise ProcessNotReadable(
                f"process {pid} cannot be read", "run hiwater as its user or as an administrator"
            ) from None
        self.start_ticks = start_ticks_of(pid) or 0

    def resident_bytes(self) -> int | None:
        return _of(self.pid, lambda _: self._read() or None, None)

    def peak_and_resident(self) -> tuple[int, int] | None:
        return None

    def shares_memory_with(self, other: PsutilMemory) -> bool:  # noqa: ARG002 - nothing tells
        return False

    def close(self) -> None:
        """Nothing is open."""

    def _read(self) -> int:
        return int(self._process.memory_info().rss)


class PsutilProportionalMemory(PsutilMemory):
    """PSS or USS, where the system counts it."""

    def __init__(self, pid: int, field: str) -> None:
        self._field = field
        super().__init__(pid)

    def _read(self) -> int:
        try:
            return int(getattr(self._process.memory_full_info(), self._field))
        except AttributeError:
            raise ProcessNotReadable(
                f"this system does not count the {self._field.upper()} of a process", "choose another backend"
            ) from None


def open_target(pid: int, reader: Callable[[int], PsutilMemory] = PsutilMemory) -> PsutilMemory:
    """Open the process that the user gave by number. Raises NoSuchProcess or ProcessNotReadable."""
    if pid <= 0:
        raise NoSuchProcess(f"{pid} is not a process id", "give one above 0")
    memory = reader(pid)
    if state_of(pid) in {"", "Z", "X"}:
        raise NoSuchProcess(f"process {pid} has ended already", "start sampling earlier, or with `-- COMMAND`")
    return memory


def start_ticks_of(pid: int) -> int | None:
    """When it started; None when there is no such process."""
    return _of(pid, lambda process: int(process.create_time() * 100), None)


def state_of(pid: int) -> str:
    return _of(pid, lambda process: _STATES.get(process.status(), "R"), "")


def parent_of(pid: int) -> int:
    return _of(pid, lambda process: int(process.ppid()), 0)


def name_of(pid: int) -> str:
    return _of(pid, lambda process: str(process.name()), "")


def command_of(pid: int) -> list[str]:
    return _of(pid, lambda process: list(process.cmdline()), [])


def resident_bytes_of(pid: int) -> int | None:
    return _of(pid, lambda process: int(process.memory_info().rss), None)


def children_of(pid: int) -> list[int]:
    return _of(pid, lambda process: [child.pid for child in process.children()], [])


def descendants_of(pid: int) -> list[int]:
    return _of(pid, lambda process: [child.pid for child in process.children(recursive=True)], [])


def proportional_bytes(pid: int, field: str) -> int | None:
    """Raises ProcessNotReadable where the system does not count it."""
    with suppress(NoSuchProcess):
        return PsutilProportionalMemory(pid, field).resident_bytes()
    return None


def _of(pid: int, read: Callable[[psutil.Process], Value], otherwise: Value) -> Value:
    """What `read` says of a process; `otherwise` if it has ended or may not be asked."""
    try:
        return read(psutil.Process(pid))
    except (psutil.Error, ValueError, OverflowError):
        return otherwise
