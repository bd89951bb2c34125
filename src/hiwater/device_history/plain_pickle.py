"""Pickles that hold plain data: dicts, lists, tuples, texts, numbers. Anything else is refused before one object is
made.

A pickle is a program, and some of its instructions call functions by name. So the instructions are checked first. Only
those that make plain data are allowed, and the memory that they may allocate is bounded by the size of the file. Then
Python's unpickler runs the pickle. Here it can find no class.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from hiwater.errors import CorruptCapture, ForeignFile, TruncatedCapture

_REMEDY = "give a file that torch.cuda.memory._dump_snapshot() wrote"
_FIRST_PROTOCOL, _LAST_PROTOCOL = 2, 5
_STOP = ord(b".")

# Instructions of a fixed length that need no check. The pattern is possessive, so that it never backtracks.
_LONGS = b"|".join(b"\\x%02x.{%d}" % (length, length) for length in range(17))
_SIMPLE = re.compile(
    rb"(?:[hKq].|[Jj]....|[(\x94\x85\x86\x87ue}\])tsadlN\x88\x89012]|M..|\x8a(?:" + _LONGS + rb")|[G\x95].{8}|\x80.)*+",
    re.DOTALL,
)
# Instructions that a length follows, and the number of bytes of the length.
_WITH_LENGTH = {ord("\x8c"): 1, ord("X"): 4, ord("\x8d"): 8, ord("C"): 1, ord("B"): 4, ord("\x8e"): 8}
_LONG_BINPUT = ord("r")


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins with `head` is a pickle of a binary protocol."""
    return len(head) >= 2 and head[0] == 0x80 and _FIRST_PROTOCOL <= head[1] <= _LAST_PROTOCOL


def load(content: bytes) -> object:
    """The plain data in a pickle.

    Raises ForeignFile for one that holds anything else, TruncatedCapture for one that ends too early, CorruptCapture
    for any other damage.
    """
    _check_instructions(content)
    try:
        return _NoClasses(io.BytesIO(content)).load()
    except ForeignFile:
        raise
    except EOFError as error:
        raise _truncated() from error
    except Exception as error:
        raise CorruptCapture(f"the pickle is damaged ({type(error).__name__}: {error})", "dump it again") from error


class _NoClasses(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise _refusal(f"it names {module_name}.{global_name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise _refusal(f"it refers to an object outside ({type(pid).__name__})")


def _check_instructions(content: bytes) -> None:
    """Check every instruction. Raises ForeignFile, TruncatedCapture or CorruptCapture."""
    place, length = 0, len(content)
    while True:
        found = _SIMPLE.match(content, place)
        place = found.end() if found is not None else place
        if place >= length:
            raise _truncated()
        instruction = content[place]
        if instruction == _STOP:
            return
        width = _WITH_LENGTH.get(instruction)
        if width is not None:
            size = int.from_bytes(content[place + 1 : place + 1 + width], "little")
            place = min(length, place + 1 + width + size)
        elif instruction == _LONG_BINPUT:
            # The unpickler allocates a table up to this number: the bytes so far cannot have made more objects.
            if int.from_bytes(content[place + 1 : place + 5], "little") > place:
                raise CorruptCapture("the pickle is damaged: it numbers an object beyond its end", "dump it again")
            place += 5
        elif _SIMPLE.match(content[place : place + 20] + bytes(20)).end():  # type: ignore[union-attr]  # it matches nothing, too
            raise _truncated()
        else:
            raise _refusal(f"instruction {bytes([instruction])!r} at byte {place} makes more than plain data")


def _refusal(why: str) -> ForeignFile:
    return ForeignFile(f"the pickle is no memory snapshot, and nothing of it was run: {why}", _REMEDY)


def _truncated() -> TruncatedCapture:
    return TruncatedCapture("the pickle is truncated", "copy it again whole, or dump it again")


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the collector: it would traverse millions of new objects again and again, none of them garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
