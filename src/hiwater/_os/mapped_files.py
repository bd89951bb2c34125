"""The files that another process has mapped, found from outside, whatever mount namespace it lives in."""

from __future__ import annotations

import os
import stat

from hiwater._os.procfs import explained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_DELETED = " (deleted)"


def places(pid: int) -> Iterator[str]:
    """Yield a path that leads from here to each regular file which the process has mapped shared and readable from its
    first byte on.

    This user may be refused when opening it. Raises NoSuchProcess or ProcessNotReadable.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(None, 5) for line in file]
    except OSError as error:
        raise explained(pid, error) from None
    for addresses, permissions, offset, _, inode, *path in rows:
        if path and permissions[0] == "r" and permissions[3] == "s" and not int(offset, 16):
            place = _place(pid, addresses, int(inode), path[0])
            if place is not None:
                yield place


def _place(pid: int, addresses: str, inode: int, name: str) -> str | None:
    """The path by which the file is found here: its own, the one inside the process's root, or one of the kernel's
    links to a deleted file."""
    path = name.removesuffix(_DELETED).replace("\\012", "\n")  # the only character that the kernel escapes
    refused = None
    for place in (path, f"/proc/{pid}/root{path}"):
        try:
            if _is(place, inode):
                return place
        except PermissionError:
            refused = place
        except OSError:
            continue
    for place in (f"/proc/{pid}/map_files/{addresses}", *_descriptors(pid, name)):
        try:
            if _is(place, inode):
                return place
        except OSError:  # only root may follow the links in map_files; a descriptor may be closed meanwhile
            continue
    return refused


def _is(place: str, inode: int) -> bool:
    status = os.stat(place)
    return status.st_ino == inode and stat.S_ISREG(status.st_mode)


def _descriptors(pid: int, name: str) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") == name:
                yield f"{folder}/{number}"
        except OSError:
            continue  # closed meanwhile
