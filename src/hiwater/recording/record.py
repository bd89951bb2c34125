"""Records the process that calls it: `record()` for a block of code, `snapshot()` for what is recorded so far."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hiwater import errors
from hiwater.recording.recorder import PRIVATE, Recorder, outermost


def record(
    path: str | os.PathLike[str],
    *,
    sample: int | str | None = None,
    sample_seed: int | None = None,
    device_history: bool = True,
    mode: int = PRIVATE,
    last_words: str | os.PathLike[str] | None = None,
    children: bool = False,
    snapshot_every: float = 0,
    own: Sequence[str] = (),
    native: bool = False,
) -> Recorder:
    """Return a context manager that records every allocation inside its block into a capture at `path`. By default,
    only its owner may read the capture; `mode` changes that. `last_words` is the file for a line on what the process's
    memory was used for, if that nears its limit. With `children`, Python processes that this one starts inside the
    block are recorded, too, into the folder `PATH.d`: `hiwater.open_run()` reads all. With `snapshot_every`, `hiwater
    leaks` tests what grows from each so many seconds to the next. `own` names installed packages whose code is yours.
    With `native`, stacks have native frames, too, for `hiwater report --frames mixed`.

        with hiwater.record("load.hiw") as recorder:
            table = load()
            recorder.snapshot()
        print(recorder.summary()["peak_bytes"])

    Raises what `Recorder` and `Recorder.start` raise.
    """
    return Recorder(
        path,
        sample=sample,
        sample_seed=sample_seed,
        device_history=device_history,
        mode=mode,
        last_words=last_words,
        children=children,
        snapshot_every=snapshot_every,
        own=own,
        native=native,
    )


def snapshot(path: str | os.PathLike[str] | None = None) -> str:
    """Write what this process has recorded so far to `path` and return its absolute path; the recording continues.

        at_noon = hiwater.open(hiwater.snapshot("noon.hiw"))
        print(at_noon.end.stacks[:3])

    Without `path`, it goes to the folder of the capture: `run.1.hiw`, `run.2.hiw` … for `run.hiw`. Raises NotRecording
    if the process is not being recorded, CaptureUnwritable if the file cannot be written.
    """
    recorder = outermost()
    if recorder is None or not recorder.recording:
        raise errors.NotRecording(
            "a snapshot needs a recording, and none is running",
            "start the program with `hiwater run`, or use hiwater.record()",
        )
    return recorder.snapshot(path)
