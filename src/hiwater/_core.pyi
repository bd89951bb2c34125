"""The native engine's door. Everything here is thin; meanings live in `hiwater.recording`."""

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType

DEVICE_LIBRARIES: tuple[str, ...]
"""The libraries that `on_device_library` waits for."""

BUILT_FOR: str
PAGE_BYTES: int
"""The version and the build of CPython whose structs the engine reads: `3.14 release`, `3.11 debug` …"""
MISSES: str
"""What this kind of engine does not see, in words; "" of the whole one."""

def compile_source(source: str | bytes, file: str) -> CodeType:
    """Compile a program's source, without null bytes, for `exec` under the name `file`, as the interpreter does with
    a script it is told to run. Raises SyntaxError as `compile` does."""

class EngineFault(RuntimeError):
    """The engine cannot start or has stopped by itself; the message says why and what to do."""

def start(
    path: str,
    *,
    facts: Mapping[str, str],
    internal_prefix: str,
    sample_bytes: int = 0,
    sample_seed: int = 0,
    cgroup_usage: str = "",
    cgroup_limits: Sequence[str] = (),
    own_script: str = "",
    owner_rules: Sequence[tuple[str, int]] = (),
    last_words: str = "",
    interval_ns: int = 0,
    mode: int = 0o600,
    run_variable: str = "",
    run_folder: str = "",
    residency_snapshots: bool = True,
    code_bytes: tuple[int, int] = (0, 0),
    native_frames: bool = False,
    check_each: int = 0,
) -> str:
    """Record every allocation of this process into a new capture at `path`, with the permissions `mode`; return its
    path, which is another where a capture of a living process is there.

    `internal_prefix` is the folder whose frames are hiwater's own: they never appear in a stack, and what they allocate
    is not recorded; `own_script` is a file elsewhere of which the same holds. A frame of the function named
    `_hiwater_launch_` there is a root: frames below it are left out; one of `_hiwater_own_` makes all that it calls
    hiwater's own. `owner_rules` say whose code a file is (`hiwater._os.ownership.rules()`).
    `sample_bytes`: blocks below it are sampled; 0 records every block. `sample_seed` makes the sample
    repeatable; 0 does not. `cgroup_usage` and `cgroup_limits` are files whose numbers go on the timeline. `last_words`
    is the file for a line about the process once it is near to what limits it. Each time `interval_ns` has passed, a
    snapshot of what is live is due; 0: never. `run_variable`, "NAME=value": Python processes that this one starts are
    recorded; it is the entry for their environment, to which the folder of the run is added. `run_folder` is that
    folder in a process that was started so, "" in the first one. `code_bytes` is resident memory of hiwater's own code,
    pages of files and others: it counts as overhead. Without `residency_snapshots`, the capture does not tell where
    resident pages were, and the recording ends faster. With `native_frames`, stacks have them, too; of each
    `check_each` walks one is compared with the compiler's own unwinder. Raises EngineFault when recording already, or
    where native frames cannot be had, OSError (with errno) when the capture cannot be made.
    """

def limit_address_space(bytes: int) -> None:  # noqa: A002
    """Give the program this much address space (RLIMIT_AS), the engine's own pages not counted. Raises OSError when
    refused."""

def set_last_lines(command: Sequence[str]) -> None:
    """Have this command write the last lines of the run if a signal ends this process, as `write_last_lines()` does;
    an empty one: no lines."""

def write_last_lines() -> bool:
    """Run the command of `set_last_lines()`, with the number of a descriptor as one more argument, in a process that
    is no child of this one. Return whether it wrote a byte there, which says that it has written the lines."""

def call_at_the_bottom(callable: Callable[..., object], arguments: tuple[object, ...]) -> object:  # noqa: A002
    """Return `callable(*arguments)`, which finds a thread without a frame as far as limits of recursion go, whatever
    lies below it.

    The limits themselves stay as they are.
    """

def enter_own_work() -> None:
    """Begin work of hiwater's own on this thread: sampled recordings leave it out of their exact totals until
    `leave_own_work()`.

    Calls nest.
    """

def leave_own_work() -> None: ...
def stop(exit_code: int | None = None) -> None:
    """Stop recording, put every patched slot back, close the capture. Does nothing when not recording."""

def is_complete() -> bool:
    """Whether this process is being recorded or counted, and nothing of it has been lost so far."""

def is_recording() -> bool: ...
def is_kept_in_memory() -> bool:
    """Whether the file system cannot hold the capture while it grows, so that copies go there."""

def end_intervals() -> None:
    """Take no more snapshots at intervals."""

def search_holders(name: str, target: object = None, seconds: float = 60.0, of_type: type | None = None) -> None: ...
def snapshot(path: str) -> None:
    """Write a complete, consistent copy of the capture as of now to `path`. Raises OSError: EBUSY where a living
    process's capture is."""

def read_ending(path: str) -> tuple[int, int, int, int, int, bool, bool, int] | None:
    """How the process that wrote the capture at `path` ended: pid, last sign of life (wall clock, ns), resident
    peak, used bytes and bytes of the nearest limit (0: none), whether it ended in an orderly way, whether the
    machine has run since, the signal that ended it (0: none, or not known). None if it lives, or this is no capture."""

def begin_window() -> int:
    """Begin a window of the recording in progress: return where in its time that is, in nanoseconds."""

def add_marker(name: str) -> None:
    """Put a named marker into the capture; does nothing when not recording."""

def begin_scope(name: str) -> int:
    """Begin a phase; the result, 0 when not recording, is for `end_scope()`."""

def end_scope(scope: int) -> None: ...
def note_fact(name: str, value: str) -> None:
    """Add a fact to the capture; of several facts of one name, the last counts. Does nothing when not recording."""

def note_loaded_code(resident_bytes: int) -> None:
    """Modules of hiwater that were loaded during the recording take `resident_bytes`, which are none of the
    program's. Does nothing when not recording."""

def window_peak(start_ns: int) -> tuple[int, int]:
    """Bytes and blocks that were live at most since `start_ns`, which `begin_window()` returned."""

def write_window(path: str, start_ns: int) -> None:
    """Write a copy of the capture to `path` that says what part of it the window from `start_ns` to now is. Raises
    OSError."""

def summary() -> dict[str, object]:
    """Of the recording in progress or the last one: `path`, `peak_bytes`, `peak_blocks`, `live_bytes`,
    `program_peak_bytes` (of resident memory without the overhead), `resident_exact`, `resident_error_bytes`,
    `overhead_bytes` (hiwater's own memory at that moment), `lost_events`, `file_fate` (what became of the capture's
    file meanwhile, in words), `is_lost` (whether nothing of it can be read), `shortcomings` (what could not be seen
    from the start on, by the name of its fact, in words), `sample_bytes`, `standard_error_bytes` (of the peak, at
    most), `stop_reason` (str or None), `top_line` and `refused`: None, or a dict as `TopLine` and `Refusal` in
    recording/recorder.py describe it."""

def counters() -> dict[str, int]:
    """Live and total figures now: live_bytes, live_blocks, peak_bytes, total_bytes, total_blocks, lost_events,
    nodes, accounts …"""

def self_check() -> None:
    """Walk every structure of the core and raise EngineFault at the first inconsistency. O(everything): for tests."""

def on_exit(callback: Callable[[int], object] | None) -> None:
    """Have `callback(exit code)` called when this process ends through os._exit() while it is recorded; None takes
    it back."""

def on_device_library(callback: Callable[[], bool | None] | None) -> None:
    """Have `callback()` called in the main thread, five times a second at most, once a library of accelerators
    (torch, jax) is loaded while this process is recorded, until it returns true. If it returns None, it is called
    again after 20 ms. A callback of None ends that. Nothing of Python's runs for it before."""

def add_device(name: str, backend: str, source: str, limit_bytes: int) -> int:
    """Make a device's record in the capture, and return its number; −1 when not recording, or there is no room."""

def sample_device(
    device: int,
    allocated: int,
    allocated_peak: int,
    reserved: int,
    reserved_peak: int,
    used: int,
    exact: bool,
    note: str,
) -> None:
    """Figures of a device in bytes, −1 for those not measured; peaks are since the sample before. `exact` and `note`
    are about all of its peaks so far."""

def note_device_terms(device: int, terms: Sequence[tuple[str, int]]) -> None:
    """What the device's memory consists of now."""

def heap_open() -> None:
    """Begin to count live heap bytes; calls nest. Without a recording the engine counts without stacks and without a
    capture. A recording that starts or ends meanwhile does not disturb the figures. Raises OSError when there is no
    memory for it."""

def heap_is_sampled() -> bool:
    """Whether the recording in progress draws blocks at random, so that the figures below are estimates."""

def heap_continue_in_child() -> None:
    """In the child of a fork: counts again, if its parent did."""

def heap_close() -> None:
    """End what one heap_open() began. Raises EngineFault when there was none."""

def heap_now() -> tuple[int, int, int, int, int, int, int]:
    """(live bytes, live blocks, bytes of Python's allocators, of malloc's, of anonymous mappings, of shared memory;
    the calling thread's balance): allocated since counting began and not freed; exact."""

def heap_totals() -> tuple[int, int, int, int]:
    """(bytes and allocations of the process, of the calling thread), counted while heap_open() is in force and never
    set back: of use as differences. A reallocation is one allocation of its new size."""

def heap_read_and_reset(which: int) -> tuple[int, int, bool]:
    """(live bytes, their highest since this one was last asked for or heap_open(), whether exact), as
    `Meter.read_and_reset` gives it; the mark then starts anew. `which` is 0 for everything, 1 for Python's
    allocators; raises IndexError for another."""

def thread_heap_read_and_reset() -> tuple[int, int, bool]:
    """(bytes that the calling thread allocated less those it freed, their highest since its last call, whether
    exact), counted while heap_open() is in force. Of use as differences: a thread that frees what others made goes
    below zero."""

def note_resident_peak(bytes: int) -> None:  # noqa: A002
    """Tell the recording in progress, if any, of a mark that is about to be started anew through clear_refs."""

def resident_read_and_reset(
    statm: int, status: int, clear_refs: int, clear_refs_inode: int, clear_refs_device: int, lowest_maximum: int
) -> tuple[int, int, int] | None:
    """(resident now, its mark, lowest ru_maxrss ever seen) from kept descriptors; starts the mark anew. None when
    one was lost."""

def resident_watch_start(interval_ns: int) -> None:
    """Begin to sample resident memory from a thread that needs no GIL; calls nest. Raises EngineFault when there can
    be none."""

def resident_watch_stop() -> None:
    """End what one resident_watch_start() began."""

def resident_watch_pause() -> None:
    """End the thread for the length of a fork by the interpreter."""

def resident_watch_resume() -> None:
    """Begin it again, in the parent and in the child, if it is in use."""

def resident_watch_peak() -> int:
    """Highest sample in bytes since the last reset."""

def resident_watch_read_and_reset() -> int:
    """The same; then begins anew from what is resident now."""

class LineRecorder:
    """Figures of lines, kept while it is active. Events come from `lines_attach_…` (3.11) or `lines_callbacks` (3.12
    and later)."""

    def __init__(
        self,
        *,
        resident: bool,
        meter: Callable[[], int] | None = None,
        recursion_apart: bool = False,
        listener: Callable[[int, int, CodeType, int], object] | None = None,
    ) -> None:
        """`meter` says what resident figures are of, in place of the kernel's figure for this process: it is called
        before each event. `recursion_apart`: a line's resident figures leave out what a recursive call of its
        function changed. `listener` is called before each event is booked, with what happens (0 a line begins, 1 a
        generator or coroutine goes on, 2 a frame ends, 3 it is suspended, or on 3.11 a generator's ends), the
        frame's address, its code and the line (0 at an end). What it allocates is in no figure."""
    def add_group(self, first_line: int, last_line: int, label: bytes = b"") -> int:
        """Make room for the lines of one function; return its number. The label stands in the file of `keep_in()`."""
    def keep_in(self, path: str) -> int:
        """Clear, and have the figures in a new file from now on. Returns 0 or an errno value."""
    def watch(self, code: CodeType, group: int, *, nested: bool = False) -> None:
        """Book the lines of `code` in a group. The caller keeps the code object alive as long as the recorder.
        `nested`: its events on a line that is open already (a comprehension's) are no calls of that line."""
    def set_active(self, active: bool, *, here: bool = False) -> None:
        """`here`: in the calling thread alone. Switched off, it closes the lines that the calling thread has open;
        what others have open is not counted."""
    def clear(self) -> None: ...
    def figures(self, group: int) -> list[tuple[int, int, int, int, int, int, int, int, int]]:
        """For each line that ran: line, calls, kept, allocated and peak bytes, resident bytes: change, at the start
        and at the end of its last stretch, highest at an end."""
    def begun(self, group: int) -> tuple[int, int]:
        """The number of calls, with those that already ran, and the resident bytes at the first of them."""

def residency_snapshot() -> tuple[int, list[tuple[str, int, int]], list[tuple[bool, int, int, int]], bool, bool, int]:
    """Where resident memory is: (resident bytes, rows of (name, resident bytes, untouched bytes), large blocks of
    (whether malloc mapped it, address, bytes, touched bytes), whether memory could not be read, whether the limit of
    pages was reached, bytes of malloc's large blocks that were not found). Raises EngineFault if the kernel shows no
    mappings."""

def touched_bytes(address: int, bytes: int) -> int:  # noqa: A002
    """Bytes in RAM of [address, address + bytes)."""

def lines_on_line(frame: FrameType, code: CodeType, line: int) -> None:
    """An event from a trace function in Python. Do not mix with the sources below for the same frame."""

def lines_on_resume(frame: FrameType, code: CodeType, line: int) -> None: ...
def lines_on_exit(frame: FrameType, code: CodeType, suspends: bool) -> None: ...
def lines_functions_in(
    contents: bytes,
) -> list[tuple[bytes, int, int, int, int, list[tuple[int, int, int, int, int, int, int, int, int]]]]:
    """What the file of `LineRecorder.keep_in()` has: label, first and last line, calls, resident bytes at the first
    of them, and the lines, of each function."""

def lines_self_check() -> None:
    """Raise RuntimeError when the structures behind the lines contradict themselves. For when no watched code runs."""

def lines_callbacks() -> dict[str, Callable[..., None]]:
    """From 3.12 on: a callback for each event of sys.monitoring that lines need."""

def lines_attach_here() -> None:
    """On 3.11: trace the calling thread; calls count. A tracer found there goes on to be called and comes back at
    the end."""

def lines_detach_here() -> None: ...
def lines_attach_all() -> None:
    """On 3.11: trace all threads there are, until `lines_detach_all`; `lines_join` adds the calling thread to them."""

def lines_join() -> None: ...
def lines_detach_all() -> None: ...
def lines_displaced() -> int:
    """On 3.11: how often a thread's tracing had been taken over by somebody else when it was to end."""
