"""Records the Python processes that a recorded program starts.

A forked child goes on recording by itself (native/session/children.h). Every program that is executed has an entry in
its environment, `HIWATER_RUN`, which `start()` reads when an interpreter starts. The processes of a run put their
captures into one folder beside the first capture.
"""

from __future__ import annotations

import os
import sys

from hiwater._os import destination, native, process_identity, trust
from hiwater._os.ownership import OwnCode
from hiwater.recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_running: list[Recorder] = []
_last_lines: list[tuple[Callable[[str], bool], str]] = []
"""What writes those of the run at the end, and the run's first capture, where this process was its first one and has
executed this program."""
_SET_BY_HIWATER = 0x9A7  # the last bits of a ceiling that hiwater has set: kOurs of native/base/own_limit.h


def start() -> None:
    """Record this process if a recorded program started it. `hiwater.pth` and `hiwater.start` in site-packages call
    this when an interpreter starts with the entry in its environment. The program does not see the entry: its
    children get it as it did."""
    entry = os.environ.pop("HIWATER_RUN", "")
    if entry and not process_identity.is_own_command():  # `hiwater run` records by itself
        _record_here(entry)


def _record_here(entry: str) -> None:
    """Record this process, a child of the run that `entry`, the value of `HIWATER_RUN`, describes. Nothing of this
    may disturb the program: if it cannot be recorded, it runs without. The run's index has the start of this
    process, so its report says so."""
    try:
        options, _, folder = entry.partition(";folder=")  # which may have any character
        fields = dict(field.split("=", 1) for field in options.split(";")) | {"folder": folder}
        if not _goes_on(fields):
            return
        recorder = Recorder(
            f"{_escaped(fields['folder'])}/%p-{_milliseconds()}.hiw",
            sample=int(fields["sample"]),
            sample_seed=int(fields["seed"]),
            device_history=fields["history"] == "1",
            native=fields["native"] == "1",
            mode=trust.mode_of(fields["mode"]),
            last_words=_escaped(bytes.fromhex(fields["words"]).decode()),
            snapshot_every=int(fields["every"]) / 1e9,
            notify=lambda _: None,
        )
        own_code = OwnCode.of_parent(bytes.fromhex(fields["own"]).decode())
        recorder.continue_run(fields["run"], fields["first"], fields["folder"], own_code)
        recorder.begin_process()
        limit = int(fields["limit"])
        if limit and (limit := _inherited(limit)):
            recorder.note("limit_bytes", str(limit))
        os.makedirs(fields["folder"], mode=0o700, exist_ok=True)
        if not trust.is_own_folder(fields["folder"]):
            return
        if limit:
            try:  # noqa: SIM105 - contextlib would be loaded into the recorded program
                native.load().limit_address_space(limit)  # before the recorder's sampler reads it
            except OSError:  # the program has lowered the hard limit: the inherited one stays
                pass
        recorder.show_last_lines(fields["lines"])
        if fields["argv"] == "0":
            recorder.omit_arguments()
        if fields["lines"] == process_identity.this_process():
            from hiwater.recording import last_lines  # of one process of the run

            _last_lines.append((last_lines.write, fields["folder"].removesuffix(destination.CHILDREN_SUFFIX)))
        recorder.start(own_code.arguments(sys.orig_argv))
        if _last_lines:
            last_lines.begin(_last_lines[0][1])
    except Exception:  # noqa: BLE001 - an error here would be shown as one of the interpreter's start
        return
    import atexit

    _running.append(recorder)
    atexit.register(_finish)
    native.load().on_exit(_finish)


def _goes_on(fields: dict[str, str]) -> bool:
    """Whether the run does: a program that it started keeps the entry, and may start an interpreter long after its
    end. It does not if both its first process and the one that added the entry have ended."""
    if int(fields["space"]) != process_identity.number_space():
        return True  # their numbers mean nothing here
    return any(map(process_identity.runs, (fields["by"], fields["first"])))


def _inherited(limit: int) -> int:
    """The ceiling of the run, `limit`, if it is still in force here: the inherited one has the parent's tables in
    it. 0 if the program has set another."""
    import resource

    return limit if resource.getrlimit(resource.RLIMIT_AS)[0] & 0xFFF == _SET_BY_HIWATER else 0


def _finish(exit_code: int | None = None) -> None:
    recorder = _running[0]
    if recorder.owned_here:
        recorder.stop(exit_code)
        for write, capture in _last_lines:
            write(capture)
    else:  # a forked child that ran to the interpreter's end
        native.load().stop(exit_code)


def _escaped(folder: str) -> str:
    return folder.replace("%", "%%")


def _milliseconds() -> int:
    import time

    return time.monotonic_ns() // 1_000_000
