"""From a path to the captures of all processes there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hiwater.capture import container, histories, opening, run_folder, run_index
from hiwater.capture.in_memory import TablesInMemory
from hiwater.capture.model import Capture
from hiwater.capture.reader import Contents
from hiwater.capture.run_folder import Places
from hiwater.capture.run_index import Row
from hiwater.capture.tables import Tables
from hiwater.errors import CaptureError, MissingCapture


@dataclass(frozen=True, slots=True)
class Files:
    """What the files of one run say: captures, rows of the index, and for each capture that cannot be read, its path
    and why."""

    captures: list[Capture]
    rows: list[Row]
    unreadable: list[str]


def read_files(path: str | os.PathLike[str], in_memory: TablesInMemory) -> Files:
    """Read all captures at `path`: those of a run of several processes, given by the main capture or by the folder
    beside it; those of a merged capture, in its order; those in the folder of a job; or the only one. Raises what
    `opening.read` raises."""
    if members_of_job := run_folder.of_job(path):
        return _read_job(members_of_job, in_memory)
    if histories.is_history(path):
        return Files([Capture(opening.decoded(contents)) for contents in histories.read_all(path)], [], [])
    if container.is_container(path):
        rows = container.rows(path)
        captures = [_capture(partial(_decoded, read), in_memory) for read in container.readers(path)]
        return Files(captures, rows, run_index.unreadable(rows))
    places = run_folder.places(path)
    if places is None:
        return Files([_of_file(path, in_memory)], [], [])
    return _read_folder(places, in_memory)


def _capture(read: Callable[[], Tables], in_memory: TablesInMemory) -> Capture:
    """What a process still writes is another thing when it is read again, so it stays in memory."""
    tables = read()
    return Capture(tables) if tables.is_alive else Capture(tables, read, in_memory)


def _decoded(read: Callable[[], Contents]) -> Tables:
    return opening.decoded(read())


def _of_file(path: str | os.PathLike[str], in_memory: TablesInMemory) -> Capture:
    return _capture(partial(opening.read, path), in_memory)


def _read_job(members: list[Path], in_memory: TablesInMemory) -> Files:
    """A process of a job may have been killed at any moment, so its capture may be truncated."""
    whole = Files([], [], [])
    for member in members:
        try:
            files = read_files(member, in_memory)
        except CaptureError as error:
            whole.unreadable.append(f"{member}: {error.problem}")
            continue
        whole.captures.extend(files.captures)
        whole.rows.extend(files.rows)
        whole.unreadable.extend(files.unreadable)
    if not whole.captures:
        raise MissingCapture(f"no capture in {str(members[0].parent)!r} can be read", whole.unreadable[0])
    return whole


def _read_folder(places: Places, in_memory: TablesInMemory) -> Files:
    """The main capture must be readable. A child may have been killed at any moment, so its capture may be
    truncated."""
    main = None if places.main is None else _of_file(places.main, in_memory)
    run = "" if main is None else main.facts.get("run_id", "")
    if main is not None and not run:
        return Files([main], [], [])
    children, unreadable = list[Capture](), list[str]()
    for place in places.children:
        try:
            run_folder.refuse_link(place)
            child = _of_file(place, in_memory)
        except CaptureError as error:
            unreadable.append(f"{place}: {error.problem}")
            continue
        run = run or child.facts.get("run_id", "")
        if run and child.facts.get("run_id") == run:
            children.append(child)
    children.sort(key=lambda one: (one.header["started_unix_ns"], one.header["pid"]))
    captures = children if main is None else [main, *children]
    if not captures:
        raise MissingCapture(f"there is no capture in {str(places.folder)!r}", "give the main capture of the run")
    return Files(captures, run_index.read_folder(places.folder, run)[0] if run else [], unreadable)
