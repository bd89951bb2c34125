"""The last run of the same program, if it was killed: one line says so at the start of the next. Only headers of
captures are read."""

from __future__ import annotations

import os
import time

from hiwater._os import destination, native

_ANY_PID = 10**15  # no process has this number
_MOST_NAMES, _MOST_HEADERS = 10_000, 24
_NEAR = 0.9  # Limits::kNear of native/session/limits.h


def tell(pattern: str, path: str) -> str | None:
    """Return the line, None if the last run ended in an orderly way, or there was none.

    `pattern` is that of the captures and `path` the one about to be made. If the killed run's capture is there, it gets
    another name.
    """
    read = native.load().read_ending
    found = []
    for name in _names(destination.absolute(destination.expand(pattern, _ANY_PID)), path):
        ending = read(name)
        if ending is not None:
            found.append((ending[1], name, ending))
    if not found:
        return None
    _, name, (pid, ended_ns, resident, used, limit, is_orderly, is_of_this_boot, number) = max(found)
    if is_orderly:
        return None
    if name == path:
        name = _kept(path)
    from hiwater._os.signals import signal_name  # few runs are killed
    from hiwater._os.sizes import format_size

    at = time.strftime("%H:%M", time.localtime(ended_ns // 1_000_000_000))
    how = "was killed" if is_of_this_boot or number else "was killed, or the machine stopped,"
    how += f" ({signal_name(number)})" if number else ""
    if used >= _NEAR * limit > 0:
        size = f"at {format_size(used, 1)} of {format_size(limit, 1)}"
    else:
        size = f"with a resident peak of {format_size(resident, 1)}"
    return f"the run before (pid {pid}, {at}) {how} {size}: hiwater report {name}"


def _names(pattern: str, path: str) -> list[str]:
    """Return the captures that `pattern` names, the newest files, or only `path` if it is not the process id that
    varies."""
    folder, last = os.path.split(pattern)
    start, varies, end = last.partition(str(_ANY_PID))
    if not varies or str(_ANY_PID) in folder + end:
        return [path]
    found = []
    with os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST_NAMES), entries, strict=False):
            name = entry.name
            if name.startswith(start) and name.endswith(end) and name[len(start) : len(name) - len(end)].isdecimal():
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    return [path for _, path in sorted(found)[-_MOST_HEADERS:]]


def _kept(path: str) -> str:
    """Give the capture at `path` another name, because the next one takes its place: `run.hiw` becomes
    `run.before.hiw`, and `run.hiw.d`, the folder of its children, `run.before.hiw.d`."""
    stem, suffix = os.path.splitext(path)
    kept = f"{stem}.before{suffix}"
    os.replace(path, kept)
    destination.forget_children(kept)
    try:  # noqa: SIM105 - contextlib would be loaded into the recorded program
        os.rename(destination.folder_of_children(path), destination.folder_of_children(kept))
    except OSError:
        pass  # there is no folder of children, or something is left of an earlier one, and stays
    return kept
