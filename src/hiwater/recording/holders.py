"""`hiwater.holders()`: what holds the objects of this process."""

from __future__ import annotations

import hiwater
from hiwater import _registry
from hiwater._os import native
from hiwater._os.native import unrecorded
from hiwater.recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from hiwater.analysis.holders import Holders

SECONDS = 120.0
"""A search that takes longer is ended."""


def holders(what: object = None, *, limit: int = 10, name: str = "") -> Holders:
    """Search for what holds the objects of this process, and return the groups of objects that retain most.

        for group in hiwater.holders().groups:
            print(group.count, group.type_name, group.retained_bytes, group.held_by, group.allocated_at)

    `what` chooses: a class, or the name of a type ("app.models.Row", "Row"); the line that allocated the objects
    ("db.py:41"); or any other object: then the only group is that of the objects that are held as it is. `limit` is the
    most groups. The search is kept in the capture under `name`, so `hiwater holders CAPTURE` shows it later. Without a
    recording, who allocated the objects is not known. No object is changed, no finalizer runs: a copy of the process is
    searched, while other threads go on.

    Raises EngineUnavailable where there is no engine, and EngineFailed if the search fails.
    """
    return unrecorded(_search, what, (limit, name))


def search(name: str) -> None:
    """Search, and keep what was found in the capture of this process. Raises NotRecording or EngineFailed."""
    unrecorded(_keep, None, name)


def _keep(target: object, name: str, of_type: type | None = None) -> None:
    core = native.load()
    if not core.is_recording():
        raise hiwater.errors.NotRecording(
            "a search for holders needs a recording, and none is running",
            "start the program with `hiwater run`, or use hiwater.record()",
        )
    try:
        core.search_holders(name, target, SECONDS, of_type)
    except core.EngineFault as error:
        raise hiwater.errors.EngineFailed(str(error), "see docs/holders.md") from error
    except OSError as error:
        raise hiwater.errors.EngineFailed(
            f"the process cannot be copied ({error.strerror})", "see that there is memory and room for a process"
        ) from error


def _search(what: object, chosen: tuple[int, str]) -> Holders:
    # Imported here, where hiwater does not record itself: `hiwater run --holders` loads this module inside the
    # recording.
    import shutil
    import tempfile

    limit, name = chosen
    is_text = what is None or isinstance(what, (str, type))
    folder = tempfile.mkdtemp(prefix="hiwater-holders-")
    path = f"{folder}/holders.hiw"
    try:
        with _recording(f"{folder}/recording.hiw"):
            _keep(None if is_text else what, name, what if isinstance(what, type) else None)
            native.load().snapshot(path)
        found: Any = _registry.load(_registry.HOLDERS)(path, _text(what) if is_text else "", limit)
    finally:
        shutil.rmtree(folder)
    holders: Holders = found
    return holders


def _recording(path: str) -> AbstractContextManager[object]:
    """The recording that runs, or one for this search alone."""
    if native.load().is_recording():
        from contextlib import nullcontext

        return nullcontext()
    return Recorder(path, device_history=False, notify=lambda _: None)


def _text(what: object) -> str:
    if isinstance(what, type):
        return what.__qualname__ if what.__module__ == "builtins" else f"{what.__module__}.{what.__qualname__}"
    return str(what or "")
