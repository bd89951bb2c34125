"""Whether this process may do what its environment asks for, and whether a file or folder that is named there is the user's own.

An environment may come from another user: a helper that runs with more rights than its caller keeps it. Recording then would write files where the
caller says, with the helper's rights.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from hiwater._os.process_identity import owner_of

_AT_SECURE = 23
"""The entry of the auxiliary vector by which the kernel tells programs that have got rights from their file (`getauxval(3)`)."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
MODE_MOST, MODE_LEAST = 0o640, 0o600


def obeys_environment() -> bool:
    """Whether variables of this process are its user's wish: not those of an isolated interpreter (`-I`, `-E`), nor of a process with other rights
    than the one that started it."""
    if sys.flags.ignore_environment:
        return False
    user, effective, saved = os.getresuid()
    if user != effective or user != saved or len(set(os.getresgid())) != 1:
        return False
    parent = owner_of(os.getppid())  # None: it has ended, or is in another namespace
    return not _is_secure() and (parent is None or parent[0] in (0, user))


def _is_secure() -> bool:
    """Whether the kernel says so of this program; if it says nothing, yes."""
    try:
        with open("/proc/self/auxv", "rb") as file:
            entries = memoryview(file.read(4096)).cast("Q")
    except OSError:
        return True
    return any(entries[at] == _AT_SECURE and entries[at + 1] for at in range(0, len(entries) - 1, 2))


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor for reading a regular file. Raises OSError; a FIFO, a device or a link that somebody put there would block, do something, or lead
    elsewhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def is_own_folder(path: str) -> bool:
    """Whether a path is a folder of this user's that nobody else may write to, and no link."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_own = found.st_uid == os.geteuid() and not found.st_mode & _WRITABLE_BY_OTHERS
    return stat.S_ISDIR(found.st_mode) and is_own


def mode_of(text: str) -> int:
    """The mode that a variable asks for files: at least the owner may read and write, at most the group may read."""
    return int(text) & MODE_MOST | MODE_LEAST
