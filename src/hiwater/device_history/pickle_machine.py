"""The instructions that Python's picklers write for plain data, done one after the other as they come from a file.

For pickles that are far larger than what one wants to know of them: a subclass says what becomes of each list, dict and memo entry, and
keeps what it needs. This machine knows fewer instructions than the unpickler, and none that calls or finds something; it takes them only in
the order in which picklers write them. For all else it raises `Unusual`, and whoever reads then loads the whole with `plain_pickle`, which has
the last word on what a file means and what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, BinaryIO, Final

_WINDOW_BYTES = 1 << 20
_LONGEST_FIXED = 32  # bytes of an instruction whose length is known without a look, and of the one after it
_LONGEST_NUMBER = 16
_STOP = ord(".")
_NO_FRAME = 1 << 62
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError, RecursionError, struct.error)

FORGOTTEN: Final = object()  # stands in the memo for what was let go


class Unusual(Exception):
    """Not written as picklers write plain data, or damaged: only the whole file can tell."""


class PickleMachine:
    """The stack, the memo, and the part of the file that is looked at. `above` has the stacks that open marks put aside.

    A list or dict that came from the memo may be part of what was taken in already, so it must not change any more; nor may a dict that is filled.
    """

    def __init__(self, stream: BinaryIO, length: int) -> None:
        """`length` is that of the pickle, in bytes."""
        self._stream, self._unread = stream, length
        self.buffer, self.place, self.enough = b"", 0, 0  # instructions that begin before `enough` are whole
        self.frame_end = _NO_FRAME  # protocol 4: an instruction ends there
        self.stack: list[Any] = []
        self.above: list[list[Any]] = []
        self.memo: list[Any] = []
        self._fetched: set[int] = set()

    def run(self) -> object:
        """The object that the pickle makes. Raises Unusual, OSError."""
        try:
            return self._run()
        except _DAMAGE as error:
            raise Unusual(f"{type(error).__name__}: {error}") from error

    def _run(self) -> object:
        do = self._instructions()  # not kept: it has this machine in it, and would keep its memory until a collection
        while True:
            if self.place >= self.enough:
                self._refill(_LONGEST_FIXED)
            if self.place >= self.frame_end:
                if self.place > self.frame_end:
                    raise Unusual("an instruction across the end of a frame")
                self.frame_end = _NO_FRAME
            instruction = self.buffer[self.place]
            if instruction == _STOP:
                break
            do[instruction]()
        if self.above or len(self.stack) != 1:
            raise Unusual("more than one object")
        return self.stack[0]

    # What a subclass may change

    def new_dict(self) -> None:
        """EMPTY_DICT."""
        self.push({}, 1)

    def new_list(self) -> None:
        """EMPTY_LIST."""
        self.push([], 1)

    def remember(self, value: Any) -> None:
        """The object at the top gets the next number in the memo."""
        self.memo.append(value)

    def text(self, text: str) -> str:
        """What stands for a text."""
        return text

    def filled(self, target: dict[Any, Any]) -> None:
        """The dict at the top has got all its pairs."""

    def append(self, target: Any, item: Any) -> None:
        """APPEND: what should be a list gets one more element."""
        self.extend(target, [item])

    def extend(self, target: Any, items: list[Any]) -> None:
        """APPENDS: what should be a list gets some more elements."""
        if type(target) is not list:
            raise Unusual("elements for what is no list")
        target.extend(items)

    # For subclasses

    def push(self, value: object, length: int) -> None:
        """Put an object on the stack that took so many bytes of the file."""
        self.stack.append(value)
        self.place += length

    def fetch(self, number: int) -> Any:
        """An object of the memo."""
        value = self.memo[number]
        if value is FORGOTTEN:
            raise Unusual("what was let go is fetched again")
        if type(value) in (list, dict):
            self._fetched.add(id(value))
        return value

    # The file

    def _refill(self, least: int) -> None:
        """Have `least` bytes in the buffer from `place` on, or all that there are."""
        self.frame_end -= self.place if self.frame_end != _NO_FRAME else 0
        self.buffer, self.place = self.buffer[self.place :], 0
        while self._unread and len(self.buffer) < least:
            more = self._stream.read(min(self._unread, max(_WINDOW_BYTES, least)))
            if not more:
                raise Unusual("the file is shorter than it was")
            self._unread -= len(more)
            self.buffer += more
        self.enough = len(self.buffer) - (_LONGEST_FIXED if self._unread else 0)

    def _unsigned(self, width: int) -> int:
        """The number behind the instruction at `place`."""
        return int.from_bytes(self.buffer[self.place + 1 : self.place + 1 + width], "little")

    # Instructions

    def _instructions(self) -> dict[int, Callable[[], None]]:
        values: dict[bytes, Callable[[], None]] = {
            b"K": lambda: self.push(self._unsigned(1), 2), b"M": lambda: self.push(self._unsigned(2), 3),
            b"J": lambda: self.push(struct.unpack_from("<i", self.buffer, self.place + 1)[0], 5),
            b"G": lambda: self.push(struct.unpack_from(">d", self.buffer, self.place + 1)[0], 9),
            b"N": lambda: self.push(None, 1), b"\x88": lambda: self.push(True, 1), b"\x89": lambda: self.push(False, 1),
            b")": lambda: self.push((), 1), b"\x8a": self._long,
            b"\x8c": lambda: self._text(1), b"X": lambda: self._text(4), b"\x8d": lambda: self._text(8),
        }  # fmt: skip
        others: dict[bytes, Callable[[], None]] = {
            b"(": self._mark, b"}": self.new_dict, b"]": self.new_list, b"a": self._append, b"e": self._appends,
            b"s": self._set_item, b"u": self._set_items, b"t": self._tuple, b"\x94": self._memoize,
            b"\x85": lambda: self._short_tuple(1), b"\x86": lambda: self._short_tuple(2), b"\x87": lambda: self._short_tuple(3),
            b"h": lambda: self._get(1), b"j": lambda: self._get(4), b"q": lambda: self._put(1), b"r": lambda: self._put(4),
            b"\x80": self._protocol, b"\x95": self._frame,
        }  # fmt: skip
        return {code[0]: action for code, action in (values | others).items()}

    def _long(self) -> None:
        width, begin = self.buffer[self.place + 1], self.place + 2
        if width > _LONGEST_NUMBER:
            raise Unusual("a very long number")
        self.push(int.from_bytes(self.buffer[begin : begin + width], "little", signed=True), 2 + width)

    def _text(self, width: int) -> None:
        length, begin = self._unsigned(width), 1 + width
        if self.place + begin + length > len(self.buffer):
            if length > len(self.buffer) + self._unread:
                raise Unusual("a text that is cut")
            self._refill(begin + length + _LONGEST_FIXED)
        encoded = self.buffer[self.place + begin : self.place + begin + length]
        if len(encoded) < length:
            raise Unusual("a text that is cut")
        self.push(self.text(str(encoded, "utf-8", "surrogatepass")), begin + length)

    def _protocol(self) -> None:
        if not 2 <= self.buffer[self.place + 1] <= 5:
            raise Unusual("another protocol")
        self.place += 2

    def _frame(self) -> None:
        length = self._unsigned(8)
        if length > len(self.buffer) - self.place - 9 + self._unread or self.frame_end != _NO_FRAME:
            raise Unusual("a frame that is cut, or within another")
        self.place += 9
        self.frame_end = self.place + length

    def _mark(self) -> None:
        self.above.append(self.stack)
        self.stack = []
        self.place += 1

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.above.pop()
        self.place += 1
        return items

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise Unusual("fewer objects than an instruction takes")
        items = self.stack[-count:]
        del self.stack[-count:]
        self.place += 1
        return items

    def _tuple(self) -> None:
        items = self._since_mark()
        self.stack.append(tuple(items))

    def _short_tuple(self, length: int) -> None:
        items = self._last(length)
        self.stack.append(tuple(items))

    def _append(self) -> None:
        (item,) = self._last(1)
        self.append(self._growing(), item)

    def _appends(self) -> None:
        items = self._since_mark()
        self.extend(self._growing(), items)

    def _growing(self) -> Any:
        if id(self.stack[-1]) in self._fetched:
            raise Unusual("a list that was used grows")
        return self.stack[-1]

    def _set_item(self) -> None:
        items = self._last(2)
        self._fill(items)

    def _set_items(self) -> None:
        items = self._since_mark()
        self._fill(items)

    def _fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or target or id(target) in self._fetched:
            raise Unusual("pairs for what is no new dict")
        target.update(zip(items[::2], items[1::2], strict=True))
        self.filled(target)

    def _memoize(self) -> None:
        self.remember(self.stack[-1])
        self.place += 1

    def _put(self, width: int) -> None:
        if self._unsigned(width) != len(self.memo):
            raise Unusual("a number in the memo that is not the next")
        self.remember(self.stack[-1])
        self.place += 1 + width

    def _get(self, width: int) -> None:
        number = self._unsigned(width)
        self.push(self.fetch(number), 1 + width)
