"""Begins and ends a recording of this process for `hiwater attach` and `hiwater detach`."""

from __future__ import annotations

import sys

import hiwater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.recording.recorder import Recorder

_recorder: Recorder | None = None


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks, and say what came of it. Never raises: the program must not notice."""
    try:
        return _begin(request) if request.get("do") == "attach" else _end()
    except hiwater.errors.HiwaterError as error:
        return {"problem": error.problem, "remedy": error.remedy}
    except Exception as error:  # noqa: BLE001 - whatever went wrong here is said there
        return {"problem": f"{type(error).__name__}: {error}"[:500], "remedy": "report this as a bug of hiwater"}


def _begin(request: dict[str, Any]) -> dict[str, Any]:
    import atexit

    from hiwater._os import native
    from hiwater.recording.recorder import Recorder

    global _recorder  # noqa: PLW0603 - there is one in a process
    if native.load().is_recording():
        raise hiwater.errors.AlreadyRecording(
            "the process is being recorded already", "read its capture, or end the recording with `hiwater detach`"
        )
    recorder = Recorder(
        request["output"],
        sample=request.get("sample"),
        snapshot_every=request.get("snapshot_every", 0),
        own=request.get("own", ()),
        notify=lambda _: None,
    )
    recorder.note("attached", "1")
    recorder.start(sys.argv)
    _recorder = recorder
    atexit.register(recorder.stop)
    return {"path": recorder.path}


def _end() -> dict[str, Any]:
    import atexit

    global _recorder
    if _recorder is None or not _recorder.recording:
        raise hiwater.errors.NotRecording(
            "the process has no recording that `hiwater attach` began",
            "only a recording that `hiwater attach` began can be ended in this way",
        )
    recorder, _recorder = _recorder, None
    recorder.stop()
    atexit.unregister(recorder.stop)
    return {"path": recorder.path, "peak_bytes": recorder.summary()["peak_bytes"]}
