"""Lends this program's device memory to another process (`hiwater courtesy PID`), at moments that the program calls safe.

A daemon thread listens for requests. The program's own thread moves the memory inside `safe_point()`, between two steps, when no tensor is
in use. Alternatively the daemon thread moves it while it holds a lock that the program holds whenever it computes.
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
_PATIENCE_SECONDS = 600.0  # for a card that stays full after the borrower has gone
_WAIT_STEP_SECONDS = 0.2


_open: weakref.WeakSet[Lending] = weakref.WeakSet()


def courtesy_listen(device: Any = None, *, lock: Any = None, driver: bool = False) -> Lending:
    """Allow `hiwater courtesy PID`, run by the same user or root, to borrow the memory of this program.

    Without `lock`, memory is lent inside `safe_point()`. The program calls it between its steps; it costs next to nothing without a
    request. With `lock` (a context manager), the listening thread lends the memory while it holds the lock. The program must then hold
    the lock whenever it uses a tensor. `device` and `driver` are as in `Courtesy`.

    Raises CourtesyUnavailable if no socket can be made, or if the program listens already.
    """
    return Lending(Courtesy(device, driver=driver), lock)


class Lending:
    """The result of `courtesy_listen()`. Closed at exit, by `close()`, or at the end of a `with` block; not inherited by a fork."""

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
        """If there is a request, lend the memory, and return when it is back. True if it was lent.

        Call it when no thread uses a tensor, for example after `optimizer.step()`. An exception (Ctrl-C) first takes the memory back.
        Raises CourtesyFailed if the device has no room for it; before that, it waits while others use the device.
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
        """Stop listening."""
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
                os.unlink(self._path)  # of an earlier process with this id
            server.bind(self._path)
            server.listen(4)
        except OSError as error:
            server.close()
            raise CourtesyUnavailable(
                f"{self._path} cannot be made: {error}", "set XDG_RUNTIME_DIR to a folder of yours"
            ) from error
        return server

    def let_go_of_socket(self) -> None:
        """Close the socket in a child after a fork, which has no listening thread."""
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
            except Exception as error:  # noqa: BLE001 - no message may end the listening
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
        """Wait until the program accepts the request (False) or the other process disconnects (True)."""
        while True:
            with self._turn:
                if self._asked is not line:
                    return False
                if _has_gone(line):
                    self._asked = None
                    return True
            time.sleep(_WAIT_STEP_SECONDS)

    # On the thread that lends

    def _lend(self, line: Connection) -> bool:
        try:
            yielded = self._courtesy.yield_memory()
        except HiwaterError as error:
            line.send(state="failed", reason=str(error))
            return False
        try:
            line.send(state="yielded", words=str(yielded), report=yielded.to_dict())
            line.receive()  # any message, or the end of the connection, ends the lease
        finally:
            self._take_back(line)
        line.send(state="restored")
        return True

    def _take_back(self, line: Connection) -> None:
        """Restore the memory; try again until it works, or until the borrower has been gone for long."""
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
