"""A program in standby: nothing is hooked, and no engine is loaded, until `hiwater attach` asks through the control
file.

A thread of `_standby` reads the mapped control file twice a second, and takes the GIL for a request alone. Unlike a
futex, this works on shared volumes. The thread ends before each fork, because CPython warns who forks with a second
thread, and because it would not be in the child.
"""

from __future__ import annotations

import os

from hiwater import _standby
from hiwater._os import control_file
from hiwater._os.native import unrecorded
from hiwater._os.process_identity import is_own_command
from hiwater.recording.imports_under_way import may_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_program: Standby | None = None


def begin() -> None:
    """Put this process, and its children by fork, into standby. Raises OSError if there is no place for the control
    file."""
    global _program  # noqa: PLW0603 - there is one in a process
    if _program is not None:
        return
    import atexit

    _program = Standby()
    atexit.register(_program.end)
    os.register_at_fork(before=_standby.end, after_in_parent=_program.resume, after_in_child=_program.begin_in_child)


def begin_at_start() -> None:
    """The same where the environment asks for it, `HIWATER=standby`. Without a place for the control file, the
    program runs without standby."""
    if is_own_command():
        return
    try:
        begin()
    except OSError:
        return


class Standby:
    """The control file of this process, and what answers its requests."""

    def __init__(self) -> None:
        self._map()
        self.resume()

    def _map(self) -> None:
        self._path, descriptor = control_file.create()
        self._pid = os.getpid()
        try:
            self._content = _standby.map_shared(descriptor, control_file.BYTES)
        finally:
            os.close(descriptor)

    def resume(self) -> None:
        """Begin the thread."""
        _standby.begin(self._content[control_file.ASKED : control_file.ANSWERED + 4], self._answer)

    def begin_in_child(self) -> None:
        """After a fork: standby with a control file of its own. A child that can have none has its parent's mapping
        and no thread."""
        try:
            self._map()
        except OSError:
            return
        self.resume()

    def end(self) -> None:
        """At the end of the program."""
        _standby.end()
        if self._pid == os.getpid():
            try:  # noqa: SIM105 - contextlib would be loaded into the program
                os.unlink(self._path)
            except OSError:  # it is gone
                pass

    def _answer(self) -> None:
        unrecorded(_answer, self._content, None)


def _answer(content: memoryview, _: None) -> None:
    if not may_import():  # in half a second, the request will still be pending
        return
    request = control_file.pending(content)
    if request is not None:
        control_file.answer(content, _answered(request))


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    from hiwater.recording import attached

    return attached.answer(request)
