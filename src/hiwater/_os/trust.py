"""Whether this process may do what its environment asks for, and whether a file or folder that is named there is the
user's own.

An environment may come from another user: a helper that runs with more rights than its caller keeps it. Recording then
would write files where the caller says, with the helper's rights.
"""

from __future__ import annotations

import os
import stat
import sys

from hiwater._os.process_identity import owner_of

_AT_SECURE = 23
"""The entry of the auxiliary vector by which the kernel tells programs that have got rights from their file
(`getauxval(3)`)."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
MODE_MOST, MODE_LEAST = 0o640, 0o600
_NO_FOLLOWING = getattr(os, "O_NOFOLLOW", 0)
OPEN_FLAGS = 0
"""For what others may have put somewhere: not waited for, and bytes as they are. `os.open()` never has it inherited."""
for _name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"):
    OPEN_FLAGS |= getattr(os, _name, 0)


def obeys_environment() -> bool:
    """Whether variables of this process are its user's wish: not those of an isolated interpreter (`-I`, `-E`), nor
    of a process with other rights than the one that started it."""
    if sys.flags.ignore_environment:
        return False
    # On macOS interpreters do not get rights from their file, and on Windows no program does.
    if not hasattr(os, "getresuid"):
        return not hasattr(os, "getuid") or (os.getuid(), os.getgid()) == (os.geteuid(), os.getegid())
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


def user_id() -> int | None:
    """The effective user, by the number that owns files; None where the owners of files have no numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, *, follows: bool = False) -> int:
    """A descriptor of a regular file. Raises OSError; a FIFO or a device that somebody put there would block, or do
    something, some as soon as they are open. A link would lead elsewhere: only one that the user names `follows`."""
    if not stat.S_ISREG(os.stat(path, follow_symlinks=follows).st_mode):
        raise _not_regular(path)
    descriptor = os.open(path, flags | OPEN_FLAGS | (0 if follows else _NO_FOLLOWING))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _not_regular(path)


def _not_regular(path: str | os.PathLike[str]) -> OSError:
    import errno  # python has not loaded it, and few need it

    return OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))


def is_own_folder(path: str) -> bool:
    """Whether a path is a folder of this user's that nobody else may write to, and no link.
    native/session/own_folder.h is the same in the engine."""
    # On Windows lists of rights decide, which a folder has from the one around it.
    if not hasattr(os, "O_DIRECTORY"):
        return os.path.isdir(path) and os.path.realpath(path) == os.path.abspath(path)
    try:
        folder = os.open(path, getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(folder)
        if found.st_mode & _WRITABLE_BY_OTHERS:
            return False
        return found.st_uid == os.geteuid() or found.st_uid == _owner_of_new_file(folder)
    finally:
        os.close(folder)


def is_safe_way(path: str) -> bool:
    """Whether only this user and root can change what a path to a folder leads to: no folder on the way belongs to
    others, who may at most add files to it (sticky, as /tmp)."""
    way = os.path.realpath(path)
    try:
        trusted = {0, os.geteuid(), os.lstat("/").st_uid}  # whoever owns all of it is root somewhere
        while True:
            found = os.lstat(way)
            if found.st_uid not in trusted or (
                found.st_mode & _WRITABLE_BY_OTHERS and not found.st_mode & stat.S_ISVTX
            ):
                return False
            if way == os.path.dirname(way):
                return True
            way = os.path.dirname(way)
    except OSError:
        return False


def _owner_of_new_file(folder: int) -> int | None:
    """As whom this process makes files in a folder: the file system of another machine may give root's to somebody
    else (root_squash of NFS)."""
    name = f".hiwater-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        owner = os.fstat(file).st_uid
        os.close(file)
        os.unlink(name, dir_fd=folder)
    except OSError:
        return None
    return owner


def mode_of(text: str) -> int:
    """The mode that a variable asks for files: at least the owner may read and write, at most the group may read."""
    return int(text) & MODE_MOST | MODE_LEAST
