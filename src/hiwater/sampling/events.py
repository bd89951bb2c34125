"""The kernel's events for every fork, exec and exit (connector(7), CONFIG_PROC_EVENTS). They include the shortest-lived children.

Root can subscribe to them, and since Linux 6.6 every user, except in containers with their own process numbers. Elsewhere `listen()`
returns None, and a watcher has to search for children at intervals.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Event(NamedTuple):
        """`kind` is FORK, EXEC or EXIT; `parent` is the process that called fork; `status` is the wait status of an EXIT."""

        kind: int
        pid: int
        parent: int
        status: int
        at_ns: int
else:
    from collections import namedtuple

    Event = namedtuple("Event", "kind pid parent status at_ns")  # noqa: PYI024 - typing takes longer to load than all of this

FORK, EXEC, EXIT = 0x1, 0x2, 0x80000000
_NETLINK_CONNECTOR = 11
_CN_IDX_PROC = _CN_VAL_PROC = 1
_LISTEN, _IGNORE = 1, 2
_EVENT_OFFSET = 16 + 20  # after struct nlmsghdr and struct cn_msg
_EVENT = struct.Struct("=IIQ")  # what, cpu, timestamp on CLOCK_MONOTONIC
_FOUR = struct.Struct("=IIII")
_ROOM = 4 << 20  # the size of the socket's buffer for events while we are busy


class ProcessEvents:
    """A subscription. `lost` becomes true when the kernel has dropped events because the buffer was full."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.lost = False

    def fileno(self) -> int:
        return self._stream.fileno()

    def read(self) -> list[Event]:
        """All events since the last call, of every process on the machine."""
        found: list[Event] = []
        while True:
            try:
                message = self._stream.recv(1024)
            except BlockingIOError:
                return found
            except OSError:  # ENOBUFS: some were dropped
                self.lost = True
                continue
            event = _parse(message)
            if event is not None:
                found.append(event)

    def close(self) -> None:
        with suppress(OSError):
            self._stream.send(_request(_IGNORE))
        self._stream.close()


def listen() -> ProcessEvents | None:
    """Subscribe; None if the kernel does not allow it."""
    try:
        stream = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, _NETLINK_CONNECTOR)
    except OSError:
        return None
    try:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
        stream.bind((0, _CN_IDX_PROC))
        stream.send(_request(_LISTEN))
        events = ProcessEvents(stream)
        if _delivers(stream):
            return events
    except OSError:
        pass
    stream.close()
    return None


def _delivers(stream: socket.socket) -> bool:
    """Whether events arrive: the reply to the request says so, and a kernel that ignores the request sends none."""
    import select

    poll = select.poll()  # select() refuses descriptors from 1024 on
    poll.register(stream, select.POLLIN)
    if not poll.poll(20):
        return False
    message = stream.recv(1024)
    what = _EVENT.unpack_from(message, _EVENT_OFFSET)[0] if len(message) >= _EVENT_OFFSET + _EVENT.size else 1
    # Kind 0 is the reply; it begins with an errno. Anything else is an event.
    return what != 0 or _FOUR.unpack_from(message.ljust(_EVENT_OFFSET + 32, b"\0"), _EVENT_OFFSET + 16)[0] == 0


def _request(operation: int) -> bytes:
    body = struct.pack("=IIIIHHI", _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0, operation)
    return struct.pack("=IHHII", 16 + len(body), 3, 0, 0, os.getpid()) + body  # 3: NLMSG_DONE


def _parse(message: bytes) -> Event | None:
    """The event in a message; None for events other than fork, exec and exit of processes (threads, names, users)."""
    if len(message) < _EVENT_OFFSET + _EVENT.size + _FOUR.size:
        return None
    kind, _, at_ns = _EVENT.unpack_from(message, _EVENT_OFFSET)
    a, b, c, d = _FOUR.unpack_from(message, _EVENT_OFFSET + _EVENT.size)
    if kind == FORK and c == d:  # parent thread, parent, child thread, child: equal for a new process
        return Event(FORK, c, b, 0, at_ns)
    if kind == EXEC:
        return Event(EXEC, b, 0, 0, at_ns)
    if kind == EXIT and a == b:
        return Event(EXIT, a, 0, c, at_ns)
    return None
