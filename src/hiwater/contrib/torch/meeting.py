"""The connection between a program that lends memory and the borrower: a socket of the program, in a folder of its user.

Messages are lines of JSON. The lease is the connection: when the borrower closes it or dies, the program takes its memory back.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import tempfile

from hiwater.errors import CourtesyUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LONGEST_MESSAGE = 1 << 20
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


def folder() -> str:
    """This user's folder for sockets, made when it is not there.

    Raises CourtesyUnavailable when others could write to it.
    """
    path = _folders(os.getuid())[0]
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise CourtesyUnavailable(
            f"{path} cannot be used: {error.strerror}", "set XDG_RUNTIME_DIR to a folder of yours"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CourtesyUnavailable(f"{path} is open to others", f"remove it, or chmod 700 {path}")
    return path


def socket_path(pid: int) -> str:
    """Where a process of this user listens."""
    return os.path.join(folder(), f"courtesy-{pid}.sock")


def candidates(pid: int) -> list[str]:
    """Where the process may listen, whoever's it is. Raises FileNotFoundError when there is no such process."""
    owner = os.stat(f"/proc/{pid}").st_uid
    return [os.path.join(path, f"courtesy-{pid}.sock") for path in _folders(owner)]


def _folders(user: int) -> list[str]:
    own = os.environ.get("XDG_RUNTIME_DIR") if user == os.getuid() else None
    places = [*([own] if own else []), f"/run/user/{user}"]
    found = [os.path.join(place, "hiwater") for place in places if os.path.isdir(place)]
    return [*found, os.path.join(tempfile.gettempdir(), f"hiwater-{user}")]


def is_welcome(connection: socket.socket) -> bool:
    """Whether the other end is this user, or root: the kernel says, not the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return user in {os.getuid(), 0}


class Connection:
    """A connection that carries messages."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._read = b""

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, **message: Any) -> bool:
        """Send one message; False when nobody is there any more."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None when the other end has closed, or says what is no message. Raises TimeoutError."""
        self._connection.settimeout(seconds)
        while b"\n" not in self._read:
            try:
                part = self._connection.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not part or len(self._read) > _LONGEST_MESSAGE:
                return None
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        self._connection.close()
