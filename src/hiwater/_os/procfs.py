"""Resident memory of any process, read from outside through descriptors that are opened once (proc(5), Linux).

A reading costs the watched process nothing: the kernel copies two counters. The descriptors belong to the process and
not to its number, so a number that is used again is never taken for it.
"""

from __future__ import annotations

import os

from hiwater._os import portable
from hiwater._os.process_identity import CHILDREN_FAULTS, FLAGS, PARENT, STATE, start_ticks_of, stat_fields
from hiwater.errors import HiwaterError, NoSuchProcess, ProcessNotReadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if portable.HAS_PROC else 0
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of include/linux/sched.h
_COUNTERS = 3  # file-backed, anonymous and shared pages


def peak_error_bytes() -> int:
    """Return the largest error of the kernel's high-water mark on this machine.

    Resident memory is the sum of three counters, and each CPU keeps back up to max(32, 2 × CPUs) pages of each
    (lib/percpu_counter.c of Linux 6.2 and later). 0 where the kernel keeps none.
    """
    if not portable.HAS_PROC:
        return 0
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    return _COUNTERS * cpus * max(32, 2 * cpus) * PAGE_BYTES


class ProcessMemory:
    """Reads the resident memory of one process. None from any reading means that the process has ended."""

    __slots__ = ("_statm", "_status", "pid", "start_ticks")

    def __init__(self, pid: int) -> None:
        """Raises NoSuchProcess or ProcessNotReadable."""
        self.pid = pid
        self._statm = self._status = -1
        self._statm = _open(pid, "statm")
        self._status = _open(pid, "status")
        self.start_ticks = start_ticks_of(pid) or 0

    def resident_bytes(self) -> int | None:
        """Resident bytes now; None when the process has ended, a zombie included."""
        text = self._read(self._statm, "statm", 96)
        if text is None:
            return None
        fields = text.split()
        # A process between two programs, or one that is gone and not yet waited for, has no memory at all: size 0.
        return int(fields[1]) * PAGE_BYTES if fields and fields[0] != b"0" else None

    def peak_and_resident(self) -> tuple[int, int] | None:
        """The high-water mark of resident memory (VmHWM) and resident bytes now; None when the process has ended."""
        text = self._read(self._status, "status", 4096)
        if text is None:
            return None
        peak, now = field_bytes(text, b"\nVmHWM:"), field_bytes(text, b"\nVmRSS:")
        if peak < 0 or now < 0:
            return None
        return max(peak, now), now  # the kernel updates the high-water mark later than the count

    def shares_memory_with(self, other: ProcessMemory) -> bool:
        """Whether both processes seem to share one address space, as a child does between vfork and exec."""
        mine = self._read(self._statm, "statm", 96)
        return mine is not None and mine == other._read(other._statm, "statm", 96)

    def close(self) -> None:
        for descriptor in (self._statm, self._status):
            if descriptor >= 0:
                os.close(descriptor)
        self._statm = self._status = -1

    def _read(self, descriptor: int, name: str, size: int) -> bytes | None:
        try:
            if descriptor >= 0:
                return os.pread(descriptor, size, 0)
            # Without a descriptor, each reading has to check that the number still belongs to the same process.
            with open(f"/proc/{self.pid}/{name}", "rb", buffering=0) as file:
                text = file.read(size)
            return text if start_ticks_of(self.pid) == self.start_ticks else None
        except OSError:
            return None


def _open(pid: int, name: str) -> int:
    import errno

    try:
        return os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return -1
        raise explained(pid, error) from None


def explained(pid: int, error: OSError) -> HiwaterError:
    """Return the error to raise when a file of the process in /proc cannot be opened or read."""
    if isinstance(error, (FileNotFoundError, ProcessLookupError)):
        return NoSuchProcess(f"there is no process {pid}", "check the id: the process may have ended")
    return ProcessNotReadable(f"process {pid} cannot be read ({error.strerror})", _how_to_read(pid))


def _how_to_read(pid: int) -> str:
    """The remedy for a user whom the kernel refuses to read a process."""
    if os.geteuid() == 0:
        return (
            "root needs the capability CAP_SYS_PTRACE for it, which containers lack by default (`--cap-add SYS_PTRACE`)"
        )
    if real_user_of(pid) != os.getuid():
        return "it belongs to another user: run hiwater as that user or as root"
    return "it has more rights than this user, or does not allow it (PR_SET_DUMPABLE): run hiwater as root"


def field_bytes(text: bytes, key: bytes) -> int:
    """Return the figure in kB after `key` of a file in /proc, in bytes, or -1."""
    at = text.find(key)
    return int(text[at + len(key) :].split(None, 1)[0]) * 1024 if at >= 0 else -1


class ProportionalMemory(ProcessMemory):
    """Reads PSS or USS instead of resident memory; the kernel has no high-water mark of those."""

    __slots__ = ("_field",)

    def __init__(self, pid: int, field: str) -> None:
        super().__init__(pid)
        self._field = field

    def resident_bytes(self) -> int | None:
        return proportional_bytes(self.pid, self._field) if super().resident_bytes() is not None else None

    def peak_and_resident(self) -> None:
        return None


def open_target(pid: int, reader: Callable[[int], ProcessMemory] = ProcessMemory) -> ProcessMemory:
    """Open the process that the user gave by number. Raises NoSuchProcess or ProcessNotReadable where it has no
    memory to read."""
    if pid <= 0:
        raise NoSuchProcess(f"{pid} is not a process id", "give one above 0, as `ps` shows it")
    memory = reader(pid)
    if memory.resident_bytes() is None:
        is_kernel_thread = _flags_of(pid) & _KERNEL_THREAD
        memory.close()
        if is_kernel_thread:
            raise ProcessNotReadable(f"process {pid} has no memory", "it is a kernel thread: give another process")
        # A process that ends gives its memory back before its state says that it has ended.
        raise NoSuchProcess(f"process {pid} has ended already", "start sampling earlier, or with `-- COMMAND`")
    return memory


def _flags_of(pid: int) -> int:
    """The kernel's flags of the process (PF_…); 0 when there is none."""
    fields = stat_fields(pid)
    return int(fields[FLAGS]) if fields else 0


def state_of(pid: int) -> str:
    """The letter of the process's state, such as R, S or Z; "" when there is none."""
    fields = stat_fields(pid)
    return fields[STATE].decode("ascii") if fields else ""


def has_waited_for_children(pid: int) -> bool:
    """Whether the process, which may have ended, has waited for a child: the kernel adds that child's page faults to
    it."""
    fields = stat_fields(pid)
    return any(int(fields[index]) for index in CHILDREN_FAULTS) if fields else False


def parent_of(pid: int) -> int:
    """The parent's number; 0 when there is none."""
    fields = stat_fields(pid)
    return int(fields[PARENT]) if fields else 0


def name_of(pid: int) -> str:
    """The kernel's name of its main thread; "" when it is gone."""
    return _content(f"/proc/{pid}/comm").rstrip(b"\n").decode("utf-8", "replace")


def real_user_of(pid: int) -> int | None:
    """The number of the user who started it; None when it is gone."""
    _, _, users = _content(f"/proc/{pid}/status").partition(b"\nUid:")
    return int(users.split(None, 1)[0]) if users else None


def command_of(pid: int) -> list[str]:
    """The arguments of its command line; empty for a process that has ended or has none."""
    text = _content(f"/proc/{pid}/cmdline")
    return [argument.decode("utf-8", "replace") for argument in text.removesuffix(b"\0").split(b"\0")] if text else []


def resident_bytes_of(pid: int) -> int | None:
    """Resident bytes; None when the process is gone."""
    text = _content(f"/proc/{pid}/statm")
    return int(text.split()[1]) * PAGE_BYTES if text else None


def children_of(pid: int) -> list[int]:
    """The child processes that the threads of this process have started and not yet waited for."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found = [int(child) for thread in threads for child in _content(f"/proc/{pid}/task/{thread}/children").split()]
    if not found and not _has_children_files():
        return [child for child in all_processes() if parent_of(child) == pid]
    return found


def descendants_of(pid: int) -> list[int]:
    """All processes below this one, parents before their children."""
    found: list[int] = []
    pending = [pid]
    while pending:
        children = [child for child in children_of(pending.pop()) if child not in found]
        found += children
        pending += children
    return found


def all_processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _has_children_files() -> bool:
    """Whether this kernel has the files that list a thread's children (CONFIG_PROC_CHILDREN)."""
    me = os.getpid()
    return os.path.exists(f"/proc/{me}/task/{me}/children")


def proportional_bytes(pid: int, field: str) -> int | None:
    """PSS ("pss") or USS ("uss") of a process from smaps_rollup; None when it has ended.

    Costs from 0.25 ms for a small process to tens of ms for one of gigabytes, because the kernel walks all of its
    pages. Raises ProcessNotReadable for a process of another user.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise explained(pid, error) from None
    keys = (b"\nPss:",) if field == "pss" else (b"\nPrivate_Clean:", b"\nPrivate_Dirty:")
    return sum(max(0, field_bytes(text, key)) for key in keys)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
