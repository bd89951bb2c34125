"""Records a part of this process: `with hiwater.record("run.hiw") as recorder: ...`.

Longer than 400 lines because each module more takes time of the start of every recorded program.
"""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater._os import code_overhead, destination, native, process_identity
from hiwater._os.native import unrecorded
from hiwater._os.ownership import OwnCode
from hiwater.recording import facts
from hiwater.recording.accelerators import Accelerators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Any, Self

    from hiwater.recording.figures import Summary
    from hiwater.recording.window import Window


LARGEST_SAMPLE = 1 << 40
_windows: list[Recorder] = []
_outermost: Recorder | None = None
PRIVATE = 0o600
"""The permissions of captures, which contain the program's arguments and the names of its files."""


def _warn(text: str) -> None:
    import warnings  # loaded only for a warning

    warnings.warn(text, RuntimeWarning, stacklevel=4)


class Recorder:
    """One recording of this process, from `start()` to `stop()`; a context manager that does both."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sample: int | str | None = None,
        sample_seed: int | None = None,
        device_history: bool = True,
        mode: int = PRIVATE,
        last_words: str | os.PathLike[str] | None = None,
        children: bool = False,
        snapshot_every: float = 0,
        residency_snapshots: bool = True,
        own: Sequence[str] = (),
        native: bool = False,
        notify: Callable[[str], None] = _warn,
    ) -> None:
        """Describe a recording; nothing happens before `start()`.

        `path` may contain `%p`, `%h` and `%r`. `sample` is the size (65536, "64KiB") below which blocks are sampled,
        with a probability that grows with their size; None or 0 records every block. `sample_seed`, a number above 0,
        makes the sampling repeatable. With `device_history`, torch's allocator records a history of GPU memory once the
        program uses a GPU. `mode` is the capture's permissions, independent of the umask. With `children`, Python
        processes that this one starts are recorded, too: their captures are in a folder beside this one, `run.hiw.d`
        for `run.hiw`. When the process comes near to what limits its memory, `last_words` gets a line that says so and
        names the line of code with most; by default, this is the file in HIWATER_LAST_WORDS or Kubernetes' termination
        log, and "" is none. Each `snapshot_every` seconds, what is live becomes a snapshot, for `hiwater leaks`; 0
        takes them at markers and phases only. Without `residency_snapshots`, the capture does not tell where resident
        pages were, and the recording ends faster. `own` names installed packages whose code is yours: a line of theirs
        can be the one to change. With `native`, stacks have the native frames between Python's and the allocator, for
        `hiwater report --frames mixed`. `notify` is called with what the user must know at the start. Raises
        CaptureUnwritable for an unknown `%`, BadSize for an invalid size, BadRequest for a seed of more than 64 bits.
        """
        # Made absolute now, because the program may change its folder before the stop.
        self._path = destination.absolute(destination.expand(os.fspath(path)))
        self._sample_bytes = 0 if sample in (None, 0) else unrecorded(_parsed_size, str(sample), None)
        if self._sample_bytes > LARGEST_SAMPLE:
            raise hiwater.errors.BadSize(
                f"with a sample size of {self._sample_bytes} bytes, nothing would be sampled",
                f"choose a size up to {LARGEST_SAMPLE}",
            )
        self._sample_seed = sample_seed or 0
        if not 0 <= self._sample_seed < 1 << 64:
            raise hiwater.errors.BadRequest(
                f"the seed {self._sample_seed} is not a number of 64 bits", "give a whole number above 0"
            )
        self._excluded_script = ""
        self._window: Window | None = None
        self._owner = 0
        self._begins_process = False
        self._snapshots = 0
        self._facts: dict[str, str] = {}
        self._wants_histories = device_history
        self._mode = mode
        self._last_words = destination.of_last_words(os.fspath(last_words) if last_words is not None else None)
        self._interval_ns = round(snapshot_every * 1e9)
        self._residency_snapshots = residency_snapshots
        self._notify = notify
        self._accelerators: Accelerators | None = None
        self._own = own
        self._native = native
        self._own_code: OwnCode | None = None
        self._omits_arguments = False
        self._run_id = os.urandom(8).hex() if children else ""
        self._first_process = ""
        self._run_folder = ""
        self._shows_last_lines = ""

    @property
    def path(self) -> str:
        """The absolute path of the capture. It changes at the start if the capture of a living process is at this
        path, and at the stop if the file was moved or deleted during the recording."""
        return self._path

    @property
    def owned_here(self) -> bool:
        """Whether this process started the recording and has not stopped it: false in a forked child."""
        return self._owner == os.getpid()

    @property
    def recording(self) -> bool:
        """Whether this recorder is recording this process now. The engine may have stopped by itself, on a fault."""
        return unrecorded(Recorder._is_recording, self, None)

    def _is_recording(self, _: None) -> bool:
        if self._window is not None and not self._window.is_open:
            return False
        return self.owned_here and bool(native.load().is_recording())

    def begin_process(self) -> None:
        """The recording begins with the program, in a process that hiwater has started: its code in memory is none
        of the program's."""
        self._begins_process = True

    def exclude_script(self, script: str) -> None:
        """Leave frames of the file `script` out of stacks, like those of hiwater's code. Call it before `start()`."""
        self._excluded_script = script

    def note(self, key: str, value: str) -> None:
        """Add a fact to the capture. Call it before `start()`."""
        self._facts[key] = value

    def show_last_lines(self, process: str) -> None:
        """Name the process at whose end the last lines of the run are shown, as `process_identity.this_process()`
        does: it may execute another program. Call it before `start()`."""
        self._shows_last_lines = process

    def omit_arguments(self) -> None:
        """Have no capture of the run contain arguments of its program. Call it before `start()`."""
        self._omits_arguments = True

    def continue_run(self, run_id: str, first_process: str, folder: str, own_code: OwnCode) -> None:
        """Make this the recording of a child process: one of the run `run_id` of `first_process` (see
        `process_identity.this_process`), whose captures are in `folder`. Call it before `start()`."""
        self._run_id, self._first_process, self._run_folder, self._own_code = run_id, first_process, folder, own_code
        self._facts["started_by"] = "exec"

    @property
    def kept_in_memory(self) -> bool:
        """Whether the file system cannot map the growing capture, so that hiwater copies it there about every second
        and at the stop.

        If the process is killed, what came after the last copy is lost. False when not recording.
        """
        return unrecorded(Recorder._is_kept_in_memory, self, None)

    def _is_kept_in_memory(self, _: None) -> bool:
        return self.recording and bool(native.load().is_kept_in_memory())

    def check(self) -> None:
        """Check that `start()` can work: raises EngineUnavailable, CaptureUnwritable or AlreadyRecording."""
        native.load()
        if self.recording:
            raise hiwater.errors.AlreadyRecording(
                f"this recorder is already recording into {self._path!r}", "stop it first, or create another one"
            )
        for path, option in ((self._path, "-o"), (self._last_words, "--last-words")):
            if not _is_utf8(path):
                raise hiwater.errors.CaptureUnwritable(
                    f"{path!r} is not UTF-8 in this locale", f"give {option} another path, or set LC_ALL=C.UTF-8"
                )
        destination.check(self._path)

    def start(self, argv: Sequence[str] | None = None) -> None:
        """Record from now on; `argv` goes into the capture, None omits it.

        If the capture of another living process is at the path, it stays, and this one gets another name: `run.hiw`
        becomes `run.PID.hiw`, and a warning says so.

        Inside another recording of this process, this one is a window of it: the outer recording continues, and
        `stop()` writes a capture with the peak of the window. The window includes what was live before, and has the
        `sample` of the outer recording.

        Raises EngineUnavailable, CaptureUnwritable, AlreadyRecording, or EngineFailed if the engine cannot work here.
        """
        native.load()  # so that the engine recognises what follows as hiwater's
        given = unrecorded(Recorder._start, self, argv)
        if given != self._path:
            wanted, self._path = self._path, given
            self._notify(
                f"{wanted!r} is the capture of another process that is still running: this recording goes into"
                f" {given!r}"
            )

    def _start(self, argv: Sequence[str] | None) -> str:
        self.check()
        core = native.load()
        self._window = None
        if core.is_recording():
            return self._begin_window(core)
        own_code = self._own_code = self._own_code or OwnCode.of_this_process(self._own)
        known = facts.process_facts(None if self._omits_arguments else argv, own_code.words()) | self._facts
        if own_code.command:
            known["command"] = own_code.command_name
        if self._run_id:
            known["run_id"] = self._run_id
            if not self._run_folder:
                destination.forget_children(self._path)
        group = facts.memory_group()
        if group is not None:
            known |= facts.group_facts(group)
        code_bytes = code_overhead.loaded_bytes() if self._begins_process else (0, 0)
        if any(code_bytes):
            known |= {"hiwater_code_bytes": str(sum(code_bytes)), "hiwater_code_file_bytes": str(code_bytes[0])}
        prefix = facts.internal_prefix()
        self._accelerators = Accelerators(core, histories=self._wants_histories, counts_code=self._begins_process)
        self._accelerators.prepare()
        try:
            # Last, so that the recording includes nothing of this preparation.
            self._owner = os.getpid()
            with _ScopesNoted():
                given: str = core.start(
                    self._path,
                    facts=known,
                    internal_prefix=prefix,
                    sample_bytes=self._sample_bytes,
                    sample_seed=self._sample_seed,
                    cgroup_usage=group.current if group is not None else "",
                    cgroup_limits=group.limits if group is not None else [],
                    own_script=self._excluded_script,
                    owner_rules=own_code.rules(),
                    last_words=self._last_words,
                    interval_ns=self._interval_ns,
                    mode=self._mode,
                    run_variable=self._run_variable(own_code) if self._run_id else "",
                    run_folder=self._run_folder,
                    residency_snapshots=self._residency_snapshots,
                    code_bytes=code_bytes,
                    native_frames=self._native,
                    check_each=_checked_walks(),
                )
        except OSError as error:
            self._forget()
            raise destination.explain(self._path, error) from error
        except core.EngineFault as error:
            self._forget()
            raise hiwater.errors.EngineFailed(str(error), "`hiwater doctor` shows what works here") from error
        self._accelerators.begin()
        global _outermost  # noqa: PLW0603 - there is one recording in a process
        _outermost = self
        return given

    def _run_variable(self, own_code: OwnCode) -> str:
        """The entry for the environment of children, without its name, the process that adds it, and the folder at
        its end (see `recording.children`)."""
        return (
            f"first={self._first_process or process_identity.this_process()};"
            f"space={process_identity.number_space()};sample={self._sample_bytes};seed={self._sample_seed};"
            f"history={int(self._wants_histories)};native={int(self._native)};every={self._interval_ns};"
            f"mode={self._mode};words={self._last_words.encode().hex()};own={own_code.as_text().encode().hex()};"
            f"limit={self._facts.get('limit_bytes', '0')};argv={int(not self._omits_arguments)};"
            f"lines={self._shows_last_lines};run={self._run_id};folder="
        )

    def _begin_window(self, core: Any) -> str:
        from hiwater.recording.window import Window  # most recordings are inside no other

        around = core.summary()
        if self._sample_bytes != around["sample_bytes"]:
            self._notify(
                f"this process is already being recorded into {around['path']!r}: the new recording is a window of that"
                " one, with the same sampling"
            )
        self._owner = os.getpid()
        self._window = Window(core, self._path)
        _windows.append(self)
        return self._path

    def _end_window(self, window: Window) -> None:
        _windows.remove(self)
        self._path = window.finish()

    def stop(self, exit_code: int | None = None) -> None:
        """Stop recording and close the capture; does nothing when not recording.

        A forked child inherits the recorder but not the recording, so `stop()` in the child does not affect the parent.
        """
        unrecorded(Recorder._stop, self, exit_code)

    def _stop(self, exit_code: int | None) -> None:
        if self.recording:
            self._note_cells()
            if self._window is not None:
                self._end_window(self._window)
            else:
                self._end_recording(exit_code)
        self._forget()

    def _end_recording(self, exit_code: int | None) -> None:
        for inside in tuple(reversed(_windows)):
            inside.stop()
        if self._accelerators is not None:
            self._accelerators.finish()
        with _ScopesNoted():
            native.load().stop(exit_code)
        self._path = str(native.load().summary()["path"])
        self._attach(self._path)

    def _attach(self, path: str) -> None:
        """Attach what others wrote about the program to the finished capture at `path`. If that fails, a warning says
        so; the capture stays valid."""
        found = self._accelerators.histories() if self._accelerators is not None else {}
        if self._native:
            from hiwater.recording.generated_code import perf_map

            found |= perf_map()
        if not found:
            return
        from hiwater.capture import attachments

        try:
            attachments.append(path, found)
        except hiwater.errors.CaptureUnwritable as error:
            import warnings

            warnings.warn(f"hiwater: {error}", RuntimeWarning, stacklevel=4)

    def _note_cells(self) -> None:
        """Name the cells of an IPython session: what their code has for a file is none."""
        if "IPython" in sys.modules:
            from hiwater.recording import cells  # most programs have none

            of, note_fact = self._whole, native.load().note_fact
            cells.note_late(note_fact, of._facts, of_many=bool(of._run_folder), with_text=not of._omits_arguments)

    @property
    def _whole(self) -> Recorder:
        """The recording whose capture this one's is a copy of: this one itself, unless it is a window."""
        return self if self._window is None or _outermost is None else _outermost

    def _forget(self) -> None:
        self._owner = 0
        if self._accelerators is not None:
            self._accelerators.end()

    def snapshot(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the capture so far to `path` and return its absolute path; the recording continues.

        Without `path`, it goes to the folder of the capture: `run.1.hiw`, `run.2.hiw` … for `run.hiw`. Raises
        NotRecording before the start and after the stop, CaptureUnwritable if the file cannot be written.
        """
        return unrecorded(Recorder._write_snapshot, self, path)

    def _write_snapshot(self, path: str | os.PathLike[str] | None) -> str:
        if not self.recording:
            raise hiwater.errors.NotRecording(
                "a snapshot needs a recording, and none is running", "call start(), or use `with hiwater.record(...)`"
            )
        target = self._next_snapshot() if path is None else destination.absolute(destination.expand(os.fspath(path)))
        destination.check(target)
        self._note_cells()
        try:
            native.load().snapshot(target)
        except OSError as error:
            raise destination.explain(target, error) from error
        self._attach(target)
        return target

    def summary(self) -> Summary:
        """Return the figures of the recording: those so far, or the final ones after the stop.

        Raises NotRecording if another recording of this process has begun since, or none was started.
        """
        return unrecorded(Recorder._summary, self, None)

    def _summary(self, _: None) -> Summary:
        if self._window is not None:
            of_window: Any = self._window.summary() | {"devices": [], "device_trouble": "", "driver_trouble": ""}
            return self._with_cells(of_window)
        summary: Summary = native.load().summary()
        if summary.get("path") != self._path:
            raise hiwater.errors.NotRecording(
                f"the figures of the recording into {self._path!r} are gone",
                "call summary() before the next recording starts",
            )
        if self._accelerators is not None:
            summary.update(self._accelerators.summary())  # type: ignore[typeddict-item] # three keys of Summary
        return self._with_cells(summary)

    def _with_cells(self, summary: Summary) -> Summary:
        if "IPython" in sys.modules:
            from hiwater.recording import cells

            for at in filter(None, (summary["top_line"], summary["refused"])):
                at["file"] = cells.shown(at["file"], self._whole._facts)
        return summary

    def __enter__(self) -> Self:
        self.start(sys.argv)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.note_ending(error)
        self.stop()

    def note_ending(self, error: BaseException | None) -> None:
        """If the program ended because GPU memory ran out, write what was live (see `hiwater.contrib.torch.guard`).
        Call it before `stop()`."""
        if error is None or "torch" not in sys.modules or not self.recording:
            return
        from hiwater import _registry

        if _registry.load(_registry.IS_DEVICE_REFUSAL)(error):
            _registry.load(_registry.REPORT_DEVICE_REFUSAL)(error, os.path.splitext(self._path)[0] + ".oom")

    def __repr__(self) -> str:
        return f"<hiwater.Recorder {self._path!r} {'recording' if self._owner else 'not recording'}>"

    def _next_snapshot(self) -> str:
        stem, suffix = os.path.splitext(self._path)
        self._snapshots += 1
        return f"{stem}.{self._snapshots}{suffix}"


def outermost() -> Recorder | None:
    """Return the recorder that began the recording of this process last."""
    return _outermost


def trouble(summary: Summary) -> str | None:
    """Return the warning about an incomplete recording, None for a complete one."""
    found = []
    if summary["stop_reason"]:
        found.append(f"recording stopped before the program did: {summary['stop_reason']}")
    if summary["lost_events"]:
        found.append(f"{summary['lost_events']:,} events were lost: the figures miss these allocations and frees")
    if summary["file_fate"]:
        found.append(summary["file_fate"])
    found += summary["shortcomings"].values()
    if summary["device_trouble"]:
        found.append(f"memory of devices was not measured to the end: {summary['device_trouble']}")
    if summary["driver_trouble"]:
        found.append(f"the GPU driver's figures are missing at the end: {summary['driver_trouble']}")
    return "warning: " + "; ".join(found) if found else None


def _parsed_size(text: str, _: None) -> int:
    from hiwater._os.sizes import parse_size  # most recordings are exact

    return parse_size(text)


def _is_utf8(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _ScopesNoted:
    """A start or stop resets the peaks of the kernel and of the engine. Open scopes read the same peaks: they note
    them before the reset, and are paused meanwhile."""

    def __init__(self) -> None:
        scopes = sys.modules.get("hiwater.scopes.manager")  # not loaded if the program has no scopes
        self._pause: AbstractContextManager[None] | None = scopes.SCOPE_MANAGER.paused() if scopes is not None else None

    def __enter__(self) -> None:
        if self._pause is not None:
            self._pause.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pause is not None:
            self._pause.__exit__(kind, error, traceback)


def _checked_walks() -> int:
    """Of how many walks of native stacks one is compared with the compiler's own unwinder; 0: none. For tests: that
    unwinder may wait for the dynamic linker's locks."""
    each = os.environ.get("HIWATER_CHECK_UNWIND", "")
    return int(each) if each.isdecimal() and len(each) < 10 else 0
