"""Standard output of a verb. It may be closed, on a full disk, or a pipe whose reader has gone: whoever writes, one
line says so.

It belongs to the program where a verb runs one. So nothing of it is changed but while hiwater itself writes.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from hiwater.cli.messages import say
from hiwater.errors import HiwaterError, OutputFailed

_OF_A_BROKEN_PIPE = 128 + 13  # as if by SIGPIPE, which Python ignores


class _Descriptor(io.RawIOBase):
    """The descriptor, whose errors are hiwater's own. After the first one nothing is written any more: the error has
    been told."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._has_failed = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: memoryview) -> int:  # type: ignore[override] # what BufferedWriter gives
        if self._has_failed:
            return len(data)
        try:
            return os.write(self._number, data)
        except BrokenPipeError:
            self._has_failed = True
            raise
        except OSError as error:
            self._has_failed = True
            is_closed = error.errno == errno.EBADF
            problem = (
                "standard output is closed" if is_closed else f"standard output cannot be written ({error.strerror})"
            )
            remedy = "make room or write elsewhere" if error.errno == errno.ENOSPC else "write elsewhere"
            raise OutputFailed(problem, remedy) from error


@contextmanager
def opened() -> Iterator[TextIO]:
    """Standard output, which is also `sys.stdout` meanwhile. Raises OutputFailed, or BrokenPipeError if its reader
    has gone."""
    before = sys.stdout
    if before is not sys.__stdout__:  # a program's, or a test's
        yield before
        return
    number, encoding, errors = -1, "utf-8", "backslashreplace"  # where it is closed, 1 may be another file's by now
    if before is not None and not before.closed:
        number, encoding, errors = 1, before.encoding, before.errors or errors
        with suppress(OSError):  # of a program that has ended: the interpreter tells at its end, as without hiwater
            before.flush()
    stream = io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number)),  # type: ignore[type-var] # typeshed asks for all of RawIOBase's own attributes
        encoding=encoding, errors=errors, line_buffering=os.isatty(number),
    )  # fmt: skip
    sys.stdout = stream
    try:
        yield stream
    finally:
        sys.stdout = before
        stream.close()


def exit_code_of(work: Callable[[], int]) -> int:
    """Do the work of a verb that may write to standard output, and return its exit code. An error of hiwater's is
    one line."""
    try:
        with opened():
            return work()
    except BrokenPipeError:
        return _OF_A_BROKEN_PIPE
    except HiwaterError as error:
        say(str(error))
        return error.exit_code
    except MemoryError:
        say(
            "there is not enough memory for this: a reader takes about 10 times what a capture does; use a larger"
            " machine"
        )
        return HiwaterError.exit_code


def write(text: str) -> int:
    """Write a text that is all that a verb has to say, and return its exit code."""
    return exit_code_of(lambda: _write(text))


def _write(text: str) -> int:
    sys.stdout.write(text)
    return 0
