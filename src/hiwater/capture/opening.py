"""From a path to decoded tables: one capture, or all that a file holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hiwater.capture import container, histories, process, run_folder, run_index
from hiwater.capture.reader import Contents
from hiwater.capture.run_folder import Places
from hiwater.capture.run_index import Row
from hiwater.capture.tables import Tables
from hiwater.errors import CaptureError, CorruptCapture, ForeignFile, MissingCapture

_LIVE_TRIES = 5


def read(path: str | os.PathLike[str]) -> Tables:
    """Read a capture; one that is still being written is read again if it changed meanwhile. `all.hiw/NAME` is one of a merged capture.

    Raises BadRequest for a merged capture of more than one, MissingCapture, ForeignFile, NewerCapture, TruncatedCapture or
    CorruptCapture.
    """
    if os.path.isdir(path):
        raise ForeignFile(
            f"{os.fspath(path)!r} is a folder", "name one of the captures in it, or use `hiwater.open_run()`"
        )
    for _ in range(_LIVE_TRIES - 1):
        try:
            return _decoded(container.read_contents(path))
        except CorruptCapture:
            continue
    return _decoded(container.read_contents(path))


@dataclass(frozen=True, slots=True)
class Files:
    """What the files of one run say: decoded captures, rows of the index, and for each capture that cannot be read, its path and why."""

    tables: list[Tables]
    rows: list[Row]
    unreadable: list[str]


def read_files(path: str | os.PathLike[str]) -> Files:
    """Read all captures at `path`: those of a run of several processes, given by the main capture or by the folder beside it; those of a
    merged capture, in its order; those in the folder of a job; or the only one. Raises what `read` raises."""
    if members_of_job := run_folder.of_job(path):
        return _read_job(members_of_job)
    if histories.is_history(path):
        return Files([_decoded(contents) for contents in histories.read_all(path)], [], [])
    if container.is_container(path):
        rows = container.rows(path)
        tables = [_decoded(contents) for contents in container.read_all(path)]
        return Files(tables, rows, run_index.unreadable(rows))
    places = run_folder.places(path)
    if places is None:
        return Files([read(path)], [], [])
    return _read_folder(places)


def _read_job(members: list[Path]) -> Files:
    """A process of a job may have been killed at any moment, so its capture may be truncated."""
    whole = Files([], [], [])
    for member in members:
        try:
            files = read_files(member)
        except CaptureError as error:
            whole.unreadable.append(f"{member}: {error.problem}")
            continue
        whole.tables.extend(files.tables)
        whole.rows.extend(files.rows)
        whole.unreadable.extend(files.unreadable)
    if not whole.tables:
        raise MissingCapture(f"no capture in {str(members[0].parent)!r} can be read", whole.unreadable[0])
    return whole


def _read_folder(places: Places) -> Files:
    """The main capture must be readable. A child may have been killed at any moment, so its capture may be truncated."""
    main = None if places.main is None else read(places.main)
    run = "" if main is None else main.facts.get("run_id", "")
    if main is not None and not run:
        return Files([main], [], [])
    children, unreadable = list[Tables](), list[str]()
    for place in places.children:
        try:
            child = read(place)
        except CaptureError as error:
            unreadable.append(f"{place}: {error.problem}")
            continue
        run = run or child.facts.get("run_id", "")
        if run and child.facts.get("run_id") == run:
            children.append(child)
    children.sort(key=lambda one: (one.header["started_unix_ns"], one.header["pid"]))
    tables = children if main is None else [main, *children]
    if not tables:
        raise MissingCapture(f"there is no capture in {str(places.folder)!r}", "give the main capture of the run")
    return Files(tables, run_index.read_folder(places.folder, run) if run else [], unreadable)


def _decoded(contents: Contents) -> Tables:
    return Tables(contents, is_alive=process.is_being_written(contents.header))
