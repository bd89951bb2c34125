"""A file of /proc that stays open, because opening it costs five times as much as reading it.

The program may close all descriptors, as daemons do. Afterwards the number can belong to a file of the program. To read
that file would give wrong figures, and to write to it would damage it. So each use first checks that the number still
belongs to our file.
"""

from __future__ import annotations

import os

from hiwater._os import trust

_OUT_OF_THE_WAY = 200
"""Lowest descriptor that we use: programs rely on small numbers."""


class KeptFile:
    """A kept descriptor on `path`; opens it again when it was lost, reused, or inherited by a forked child."""

    __slots__ = ("_descriptor", "_device", "_flags", "_inode", "_owner", "path")

    def __init__(self, path: str, flags: int = os.O_RDONLY) -> None:
        self.path = path
        self._flags = flags
        self._descriptor = self._device = self._inode = -1
        self._owner = 0

    def read(self, size: int = 4096) -> bytes:
        """Return the file's first `size` bytes; raises OSError."""
        descriptor = self.descriptor()
        return os.pread(descriptor, size, 0)

    def read_quickly(self, size: int) -> bytes:
        """Like `read`, in half the time, without the check that the number still belongs to our file. For files
        whose contents show which file it is: the caller checks the text and falls back on `read`."""
        if self._owner == os.getpid():
            try:
                return os.pread(self._descriptor, size, 0)
            except OSError:
                pass
        return self.read(size)

    def write(self, data: bytes) -> None:
        """Write `data`; raises OSError."""
        os.write(self.descriptor(), data)

    def descriptor(self) -> int:
        """Return a descriptor of our file, opened again if necessary; raises OSError when it cannot be opened."""
        # A child's copy still reads the parent: /proc/self was resolved when the file was opened.
        if self._owner == os.getpid() and self._is_ours():
            return self._descriptor
        self.close()
        self._open()
        return self._descriptor

    @property
    def number(self) -> int:
        """The descriptor as last opened; a caller that uses it unchecked compares `identity`."""
        return self._descriptor if self._owner == os.getpid() else -1

    @property
    def identity(self) -> tuple[int, int]:
        """(inode, device) of the file behind `number`."""
        return self._inode, self._device

    def close(self) -> None:
        """Close the descriptor if it is still ours; a number that was reused belongs to the program."""
        if self._descriptor >= 0 and self._is_ours():
            os.close(self._descriptor)
        self._descriptor = -1

    def _is_ours(self) -> bool:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        return status.st_ino == self._inode and status.st_dev == self._device

    def _open(self) -> None:
        low = os.open(self.path, self._flags | trust.OPEN_FLAGS)
        import fcntl  # not before: without /proc nothing is opened, and Windows has no such module

        try:
            self._descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
        except OSError:
            self._descriptor = low  # the limit on open files is low here
        else:
            os.close(low)
        status = os.fstat(self._descriptor)
        self._inode, self._device, self._owner = status.st_ino, status.st_dev, os.getpid()
