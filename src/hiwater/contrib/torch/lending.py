"""Lends this program's memory to whoever asks from outside (`hiwater courtesy PID`), at moments that the program names as safe.

A daemon thread only listens. What moves memory is the program's own thread, inside `safe_point()`, between two steps: nothing of its is then in
use. Or the thread itself, while it holds a lock that the program holds whenever it computes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import threading
import time
import weakref

from hiwater.contrib.torch import meeting
from hiwater.contrib.torch.courtesy import Courtesy
from hiwater.contrib.torch.meeting import Connection
from hiwater.errors import CourtesyFailed, CourtesyUnavailable, HiwaterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

_FIRST_WORD_SECONDS = 5.0
_RETRY_SECONDS = 2.0
_PATIENCE_SECONDS = 600.0  # for a card that stays full after whoever had it has gone
_WAIT_STEP_SECONDS = 0.2


_open: weakref.WeakSet[Lending] = weakref.WeakSet()


def courtesy_listen(device: Any = None, *, lock: Any = None, driver: bool = False) -> Lending:
    """Let `hiwater courtesy PID`, run by the same user or root, have the memory of this program for a while.

    Without `lock`, memory is lent inside `safe_point()`, which the program calls between its steps and which costs next to nothing
    while nobody asks. With `lock` (anything that `with` takes), the listening thread lends on its own while it holds the lock: the
    program must hold it whenever it uses a tensor. `device` and `driver` are those of `Courtesy`.

    Raises CourtesyUnavailable where no socket can be made, or the program listens already.
    """
    return Lending(Courtesy(device, driver=driver), lock)


class Lending:
    """What `courtesy_listen()` returns. Closed at exit, by `close()`, or at the end of a `with` block; not inherited by a fork."""

    def __init__(self, courtesy: Courtesy, lock: Any = None) -> None:
        self._courtesy = courtesy
        self._lock = lock
        self._asked: Connection | None = None
        self._turn = threading.Lock()  # held for a few instructions only, around `_asked`
        self._pid = os.getpid()
        if any(other.is_listening for other in _open):
            raise CourtesyUnavailable("this program lends its memory already", "use that Lending, or close() it first")
        self._path = meeting.socket_path(self._pid)
        self._server = self._listening()
        _open.add(self)
        atexit.register(self.close)
        threading.Thread(target=self._serve, name="hiwater-courtesy", daemon=True).start()

    def safe_point(self) -> bool:
        """Lend if somebody asks, and return when the memory is back; True if it was away.

        Call it where no tensor is in use, on any thread or device: after `optimizer.step()`, say. An exception (Ctrl-C) takes the memory
        back first. Raises CourtesyFailed when there is no room to take it back to, after waiting for as long as somebody else has it.
        """
        if self._asked is None:
            return False
        with self._turn:
            line, self._asked = self._asked, None
        if line is None:
            return False
        try:
            return not _has_gone(line) and self._lend(line)
        finally:
            line.close()

    @property
    def is_listening(self) -> bool:
        """Whether this process listens here."""
        return self._pid == os.getpid() and self._server.fileno() >= 0

    def close(self) -> None:
        """Listen no longer."""
        if not self.is_listening:
            return
        self._server.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _listening(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # of a process that had this number before
            server.bind(self._path)
            server.listen(4)
        except OSError as error:
            server.close()
            raise CourtesyUnavailable(
                f"{self._path} cannot be made: {error}", "set XDG_RUNTIME_DIR to a folder of yours"
            ) from error
        return server

    def let_go_of_socket(self) -> None:
        """In a child after a fork: it has no listening thread, and must not hold the socket either."""
        self._server.close()

    # The listening thread

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            line = Connection(connection)
            try:
                is_kept = meeting.is_welcome(connection) and self._answer(line)
            except Exception as error:  # noqa: BLE001 - nothing that somebody sends may end the listening
                line.send(state="failed", reason=f"{type(error).__name__}: {error}")
                is_kept = False
            if not is_kept:
                line.close()

    def _answer(self, line: Connection) -> bool:
        """Take a request; True when `safe_point()` has the connection now."""
        try:
            message = line.receive(_FIRST_WORD_SECONDS)
        except TimeoutError:
            return False
        if message is None or message.get("ask") != "memory":
            line.send(state="refused", reason="that is no request this version knows")
            return False
        if not line.send(state="waiting", pid=self._pid):
            return False
        if self._lock is not None:
            with self._lock:
                if not _has_gone(line):
                    self._lend(line)
            return False
        with self._turn:
            self._asked = line
        return not self._withdrawn(line)

    def _withdrawn(self, line: Connection) -> bool:
        """Wait until the program takes the request up, or whoever asked goes away; True for the latter."""
        while True:
            with self._turn:
                if self._asked is not line:
                    return False
                if _has_gone(line):
                    self._asked = None
                    return True
            time.sleep(_WAIT_STEP_SECONDS)

    # Whichever thread lends

    def _lend(self, line: Connection) -> bool:
        try:
            yielded = self._courtesy.yield_memory()
        except HiwaterError as error:
            line.send(state="failed", reason=str(error))
            return False
        try:
            line.send(state="yielded", words=str(yielded), report=yielded.to_dict())
            line.receive()  # whatever comes, or the end: the lease is over
        finally:
            self._take_back(line)
        line.send(state="restored")
        return True

    def _take_back(self, line: Connection) -> None:
        """Until it works, or nobody has been there for long who could make room."""
        gone_since: float | None = None
        while True:
            try:
                self._courtesy.restore()
            except CourtesyFailed as error:
                now = time.monotonic()
                if line.send(state="no room yet", reason=str(error)):
                    gone_since = None
                elif gone_since is None:
                    gone_since = now
                elif now - gone_since > _PATIENCE_SECONDS:
                    raise
                time.sleep(_RETRY_SECONDS)
            else:
                return


def _has_gone(line: Connection) -> bool:
    try:
        return line.receive(0.001) is None
    except TimeoutError:
        return False


def _after_fork_in_child() -> None:
    for one in list(_open):
        one.let_go_of_socket()


os.register_at_fork(after_in_child=_after_fork_in_child)
