"""Where the files of a run of several processes are: `run.hiw` is the main capture, `run.hiw.d` the folder with the
rest.

The folder has a capture for each recorded child, `PID-MILLISECONDS.hiw`, and the index (`run_index`). Each capture of
the run has the fact `run_id`; captures with another one are left from an earlier run.

Any other folder with captures is that of a job: each file in it is a capture, a merged one, or the main capture of a
run.

Names come from a command line: what the system refuses to look up, such as a name that is too long, is no folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hiwater._os.destination import CHILDREN_INDEX, CHILDREN_SUFFIX, folder_of_children
from hiwater.errors import ForeignFile


@dataclass(frozen=True, slots=True)
class Places:
    """The files of a run. `main` is None if the main capture is not beside the folder."""

    main: Path | None
    folder: Path
    children: list[Path]


def folder_of(path: str | os.PathLike[str]) -> Path:
    """The folder of the run whose main capture or whose folder is at `path`. Without children, there is none yet."""
    given = Path(path)
    return given if os.path.isdir(given) else Path(folder_of_children(os.fspath(path)))


def places(path: str | os.PathLike[str]) -> Places | None:
    """The files of the run whose main capture or whose folder is at `path`; None if there is no such folder."""
    folder = folder_of(path)
    if not os.path.isdir(folder) or (folder != Path(path) and folder.is_symlink()):
        return None
    main = Path(os.fspath(folder).removesuffix(CHILDREN_SUFFIX))
    has_main = folder.name.endswith(CHILDREN_SUFFIX) and os.path.isfile(main)
    return Places(main if has_main else None, folder, sorted(folder.glob("*.hiw")))


def refuse_link(child: Path) -> None:
    """Raise ForeignFile for a link in the folder of a run, where hiwater makes none: who put it there chose what it
    leads to."""
    if child.is_symlink():
        raise ForeignFile(
            "it is a symbolic link, which hiwater makes none of", "remove it, or give the file that it leads to"
        )


def of_job(path: str | os.PathLike[str]) -> list[Path]:
    """The files with captures in the folder of a job at `path`; none if there is no such folder."""
    folder = Path(path)
    is_job = os.path.isdir(folder) and not folder.name.endswith(CHILDREN_SUFFIX)
    if not is_job or os.path.exists(folder / CHILDREN_INDEX):
        return []
    return sorted(folder.glob("*.hiw"))
