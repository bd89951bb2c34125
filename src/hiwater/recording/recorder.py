"""Recording a stretch of this process: `with hiwater.record("run.hiw") as recorder: ...`."""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater import _registry
from hiwater._os import native, unrecorded
from hiwater._os.sizes import parse_size
from hiwater.capture import destination
from hiwater.recording import facts
from hiwater.recording.accelerators import Accelerators
from hiwater.recording.window import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Any, Self, TypedDict

    class Summary(TypedDict):
        """What a recording came to. `top_line` is (file, line, function, bytes) of the user's own code, if any; `devices` has
        name, backend, exact and the peaks of each accelerator that was used, −1 where not measured; `shortcomings` are what this
        process did not let hiwater see; `file_fate` says what others did to the capture's file meanwhile, "" where nothing, `is_lost` whether
        nothing of it can be read."""

        path: str
        peak_bytes: int
        peak_blocks: int
        live_bytes: int
        resident_peak_bytes: int
        resident_exact: bool
        resident_error_bytes: int
        lost_events: int
        file_fate: str
        is_lost: bool
        shortcomings: dict[str, str]
        sample_bytes: int
        standard_error_bytes: int
        stop_reason: str | None
        top_line: tuple[str, int, str, int] | None
        devices: list[dict[str, Any]]
        device_trouble: str
        driver_trouble: str


LARGEST_SAMPLE = 1 << 40
_windows: list[Recorder] = []
PRIVATE = 0o600
"""The permissions of captures: they hold the program's arguments and the names of its files."""


def _warn(text: str) -> None:
    import warnings  # only where there is something to say

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
        tell: Callable[[str], None] = _warn,
    ) -> None:
        """Describe a recording; nothing happens before `start()`.

        `path` may hold `%p`, `%h` and `%r`. `sample` is the size (65536, "64KiB") below which blocks are sampled, with
        a probability that grows with their size; None or 0 records every block. `sample_seed`, a number above 0, makes the draw
        repeatable. `device_history` has torch's allocator keep a history of GPU memory, once the program uses a GPU. `mode` is the
        capture's permissions, exactly, whatever the umask is. `tell` is called with what the user must know at the start. Raises
        CaptureUnwritable for an unknown `%`, BadSize for a size that is none.
        """
        # Absolute from the start: the program may change its folder before it stops.
        self._path = destination.absolute(destination.expand(os.fspath(path)))
        self._sample_bytes = parse_size(str(sample)) if sample is not None else 0
        if self._sample_bytes > LARGEST_SAMPLE:
            raise hiwater.errors.BadSize(
                f"sampling at {self._sample_bytes} bytes would see nothing", f"stay below {LARGEST_SAMPLE}"
            )
        self._sample_seed = sample_seed or 0
        self._own_script = ""
        self._window: Window | None = None
        self._owner = 0
        self._snapshots = 0
        self._facts: dict[str, str] = {}
        self._wants_histories = device_history
        self._mode = mode
        self._tell = tell
        self._accelerators: Accelerators | None = None

    @property
    def path(self) -> str:
        """The capture, as an absolute path. It is another from the start on where a living process has a capture at the one given,
        and from the stop on where somebody moved or deleted the file meanwhile."""
        return self._path

    @property
    def owned_here(self) -> bool:
        """Whether this process started the recording and has not stopped it: false in a forked child."""
        return self._owner == os.getpid()

    @property
    def recording(self) -> bool:
        """Whether this recorder is recording this process now. The engine may have stopped by itself, on a fault."""
        return unrecorded.do(Recorder._is_recording, self, None)

    def _is_recording(self, _: None) -> bool:
        if self._window is not None and not self._window.is_open:
            return False
        return self.owned_here and bool(native.load().is_recording())

    def leave_out(self, script: str) -> None:
        """Have no frame of the file `script` in a stack, as none of hiwater's own; before `start()`."""
        self._own_script = script

    def note(self, key: str, value: str) -> None:
        """Have a fact in the capture; before `start()`."""
        self._facts[key] = value

    @property
    def kept_in_memory(self) -> bool:
        """Whether the file system cannot hold the growing capture: copies go there about every second and at the stop.

        What came after the last copy is lost when the process is killed. False when not recording.
        """
        return unrecorded.do(Recorder._is_kept_in_memory, self, None)

    def _is_kept_in_memory(self, _: None) -> bool:
        return self.recording and bool(native.load().is_kept_in_memory())

    def check(self) -> None:
        """Make sure that `start()` has what it needs.

        Raises EngineUnavailable, CaptureUnwritable or AlreadyRecording.
        """
        native.load()
        if self.recording:
            raise hiwater.errors.AlreadyRecording(
                f"this recorder is recording into {self._path!r} already", "stop it first, or make another"
            )
        destination.check(self._path)

    def start(self, argv: Sequence[str] | None = None) -> None:
        """Record from now on; `argv` goes into the capture, None leaves it out.

        Where a living process other than this one has a capture at the path, that one stays, and this one is beside it: `run.hiw`
        becomes `run.PID.hiw`, and a warning says so.

        Inside another recording of this process this one is a window of it: that one goes on, and `stop()` writes a capture whose
        peak is the window's. What was live before is part of it, and `sample` is that of the recording around.

        Raises EngineUnavailable, CaptureUnwritable, AlreadyRecording, or EngineFailed when the engine cannot work here.
        """
        native.load()  # for what follows to be known as our own
        given = unrecorded.do(Recorder._start, self, argv)
        if given != self._path:
            wanted, self._path = self._path, given
            self._tell(
                f"{wanted!r} is the capture of another process that is still running: this recording goes into {given!r}"
            )

    def _start(self, argv: Sequence[str] | None) -> str:
        self.check()
        core = native.load()
        self._window = None
        if core.is_recording():
            return self._begin_window(core)
        known = facts.process_facts(argv) | self._facts
        group = facts.memory_group()
        if group is not None:
            known |= facts.group_facts(group)
        prefix = facts.internal_prefix()
        libraries = facts.library_prefixes()
        self._accelerators = Accelerators(core, histories=self._wants_histories)
        self._accelerators.prepare()
        try:
            # Last, so that nothing of what it took to get here is in the recording.
            self._owner = os.getpid()
            with _ScopesNoted():
                given: str = core.start(
                    self._path,
                    facts=known,
                    internal_prefix=prefix,
                    library_prefixes=libraries,
                    sample_bytes=self._sample_bytes,
                    sample_seed=self._sample_seed,
                    cgroup_usage=group.current if group is not None else "",
                    cgroup_limits=group.limits if group is not None else [],
                    own_script=self._own_script,
                    mode=self._mode,
                )
        except OSError as error:
            self._forget()
            raise destination.explain(self._path, error) from error
        except core.EngineFault as error:
            self._forget()
            raise hiwater.errors.EngineFailed(str(error), "`hiwater doctor` says what works here") from error
        self._accelerators.begin()
        return given

    def _begin_window(self, core: Any) -> str:
        around = core.summary()
        if self._sample_bytes != around["sample_bytes"]:
            self._tell(
                f"this process is being recorded into {around['path']!r}: the recording inside is a window of that one, "
                "and has its sampling"
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

        A forked child inherits the recorder but not the recording, so stopping there leaves the parent's alone.
        """
        unrecorded.do(Recorder._stop, self, exit_code)

    def _stop(self, exit_code: int | None) -> None:
        if self.recording and self._window is not None:
            self._end_window(self._window)
        elif self.recording:
            for inside in tuple(reversed(_windows)):
                inside.stop()
            if self._accelerators is not None:
                self._accelerators.finish()
            with _ScopesNoted():
                native.load().stop(exit_code)
            self._path = str(native.load().summary()["path"])
            if self._accelerators is not None:
                self._accelerators.attach(self._path)
        self._forget()

    def _forget(self) -> None:
        self._owner = 0
        if self._accelerators is not None:
            self._accelerators.end()

    def snapshot(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the capture as of now to `path` and return its absolute path; recording goes on.

        Without `path` it goes beside the capture: `run.hiw` has `run.1.hiw`, `run.2.hiw` …
        Raises NotRecording before the start and after the stop, CaptureUnwritable when the file cannot be made.
        """
        return unrecorded.do(Recorder._write_snapshot, self, path)

    def _write_snapshot(self, path: str | os.PathLike[str] | None) -> str:
        if not self.recording:
            raise hiwater.errors.NotRecording(
                "there is nothing to take a snapshot of", "call start(), or use `with hiwater.record(...)`"
            )
        target = self._next_snapshot() if path is None else destination.absolute(destination.expand(os.fspath(path)))
        destination.check(target)
        try:
            native.load().snapshot(target)
        except OSError as error:
            raise destination.explain(target, error) from error
        if self._accelerators is not None:
            self._accelerators.attach(target)
        return target

    def summary(self) -> Summary:
        """Return what the recording has come to: so far, or in all once it is stopped.

        Raises NotRecording when another recording of this process has begun since, or none was started.
        """
        return unrecorded.do(Recorder._summary, self, None)

    def _summary(self, _: None) -> Summary:
        if self._window is not None:
            return self._window.summary() | {"devices": [], "device_trouble": "", "driver_trouble": ""}  # type: ignore[return-value] # has them all
        summary: Summary = native.load().summary()
        if summary.get("path") != self._path:
            raise hiwater.errors.NotRecording(
                f"nothing is known of a recording into {self._path!r}", "ask before the next one starts"
            )
        if self._accelerators is not None:
            summary.update(self._accelerators.summary())  # type: ignore[typeddict-item] # those two keys, as it says
        return summary

    def __enter__(self) -> Self:
        self.start(sys.argv)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.note_ending(error)
        self.stop()

    def note_ending(self, error: BaseException | None) -> None:
        """Where the program ended for want of GPU memory, write what was live (see `hiwater.contrib.torch.guard`); before `stop()`."""
        if error is None or "torch" not in sys.modules or not self.recording:
            return
        if _registry.load(_registry.IS_DEVICE_REFUSAL)(error):
            _registry.load(_registry.REPORT_DEVICE_REFUSAL)(error, os.path.splitext(self._path)[0] + ".oom")

    def __repr__(self) -> str:
        return f"<hiwater.Recorder {self._path!r} {'recording' if self._owner else 'not recording'}>"

    def _next_snapshot(self) -> str:
        stem, suffix = os.path.splitext(self._path)
        self._snapshots += 1
        return f"{stem}.{self._snapshots}{suffix}"


class _ScopesNoted:
    """Starting and stopping begins the kernel's mark and the engine's anew: scopes that are open, and read the same marks, note
    what they say before, and stand still meanwhile."""

    def __init__(self) -> None:
        scopes = sys.modules.get("hiwater.scopes.manager")  # without scopes there is nothing to load here
        self._held: AbstractContextManager[None] | None = (
            scopes.SCOPE_MANAGER.standing_still() if scopes is not None else None
        )

    def __enter__(self) -> None:
        if self._held is not None:
            self._held.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._held is not None:
            self._held.__exit__(kind, error, traceback)


def record(
    path: str | os.PathLike[str],
    *,
    sample: int | str | None = None,
    sample_seed: int | None = None,
    device_history: bool = True,
    mode: int = PRIVATE,
) -> Recorder:
    """Return a context manager that records every allocation inside its block into a capture at `path`, which its owner alone may read
    unless `mode` says otherwise.

        with hiwater.record("load.hiw") as recorder:
            table = load()
            recorder.snapshot()
        print(recorder.summary()["peak_bytes"])

    Raises what `Recorder` and `Recorder.start` raise.
    """
    return Recorder(path, sample=sample, sample_seed=sample_seed, device_history=device_history, mode=mode)
