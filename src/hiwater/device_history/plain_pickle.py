"""Pickles that hold plain data: dicts, lists, tuples, texts, numbers. Anything else is refused before one object is made.

A pickle is a program for a small machine, and some of its instructions call what they name. So the instructions are looked at first:
only those that put plain data together are let through, and memory they may ask for is bounded by the size of the file. What is
left is run by the interpreter's own unpickler, which here finds no class, whatever happens.
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

# Instructions of a fixed length that need no further look. Possessive, so that nothing is kept to come back to.
_LONGS = b"|".join(b"\\x%02x.{%d}" % (length, length) for length in range(17))
_SIMPLE = re.compile(
    rb"(?:[hKq].|[Jj]....|[(\x94\x85\x86\x87ue}\])tsadlN\x88\x89012]|M..|\x8a(?:" + _LONGS + rb")|[G\x95].{8}|\x80.)*+",
    re.DOTALL,
)
# Those that are followed by their length, and the bytes which that takes.
_WITH_LENGTH = {ord("\x8c"): 1, ord("X"): 4, ord("\x8d"): 8, ord("C"): 1, ord("B"): 4, ord("\x8e"): 8}
_LONG_BINPUT = ord("r")


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins with `head` is a pickle of a binary protocol."""
    return len(head) >= 2 and head[0] == 0x80 and _FIRST_PROTOCOL <= head[1] <= _LAST_PROTOCOL


def load(content: bytes) -> object:
    """The plain data in a pickle.

    Raises ForeignFile for one that holds anything else, TruncatedCapture for one that ends too early, CorruptCapture for any other damage.
    """
    _look_through(content)
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


def _look_through(content: bytes) -> None:
    """Every instruction, from the first to the end. Raises ForeignFile, TruncatedCapture."""
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
            told = int.from_bytes(content[place + 1 : place + 1 + width], "little")
            place = min(length, place + 1 + width + told)
        elif instruction == _LONG_BINPUT:
            # The unpickler makes room for so many objects at once: there cannot be more of them than bytes so far.
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
    return TruncatedCapture("the pickle is cut short", "copy it again whole, or dump it again")


@contextmanager
def without_collection() -> Iterator[None]:
    """Millions of new objects, none of them garbage: the collector would look through them over and over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
