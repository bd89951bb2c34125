"""Goes up and down a deep stack by calls of every kind, as a seed says, and takes a block now and then, after a while
in which C code makes many objects or at once.

`before()` goes the whole way with the interpreter asked for the stack at each block; `main()` goes it again and takes
the blocks, with nobody looking at a frame. The seed is the first line of the file `seed`.
"""

import contextlib
import functools
import json
import random
import sys
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path

import signatures

KINDS = 31
BASE_DEPTH, MOST_DEPTH, MOST_BLOCKS = 16, 70, 1500


class Walk:
    script: Iterator[int]
    sizes: Iterator[int]
    expected: list[tuple[int, list[tuple[str, int]]]]
    take: Callable[[int], object]
    stay: Callable[[], object]
    last: object
    level: int
    kept: list[Generator[None, None, None] | Coroutine[None, None, None]]


walk = Walk()


class Raised(Exception):
    pass


RAISED = Raised()


def note(size: int) -> None:
    stack = []
    frame = sys._getframe(1)
    while frame.f_code.co_name != "go_the_way":
        stack.append((frame.f_code.co_qualname, frame.f_lineno))
        frame = frame.f_back
    walk.expected.append((size, stack[::-1]))


class Made:
    def __init__(self, depth: int) -> None:
        go(depth)


class Full:
    def __init__(self) -> None:
        walk.take(next(walk.sizes))
        if next(walk.script, 0) % 2:
            raise RAISED


class Odd:
    """Whatever is done with it, it goes on with the walk."""

    def __init__(self) -> None:
        self.depth = 0

    @property
    def onwards(self) -> int:
        go(self.depth)
        return 0

    def __getattr__(self, name: str) -> int:
        go(self.depth)
        return 0

    def __getitem__(self, depth: int) -> int:
        go(depth)
        return 0

    def __call__(self, depth: int) -> None:
        go(depth)

    def __enter__(self) -> None:
        go(self.depth)

    def __exit__(self, *ignored: object) -> bool:
        go(self.depth)
        return False

    def __lt__(self, other: "Odd") -> bool:
        go(self.depth)
        return False

    def __add__(self, depth: int) -> int:
        go(depth)
        return 0

    def __iter__(self) -> Iterator[int]:
        go(self.depth)
        yield 1
        go(self.depth)


def numbers(depth: int) -> Iterator[int]:
    for number in range(2):
        go(depth)
        yield number


def takes() -> Iterator[int]:
    for number in range(2):
        walk.take(next(walk.sizes))
        yield number
    walk.take(next(walk.sizes))


def delegating(depth: int) -> Iterator[int]:
    yield from numbers(depth)
    go(depth)


async def awaited(depth: int) -> None:
    go(depth)


async def awaiting(depth: int) -> None:
    await awaited(depth)
    await awaited(depth)


def resumable() -> Generator[None, None, None]:
    """Goes on with the walk at each resumption, from where it is resumed."""
    while True:
        if next(walk.script, 0) % 3:
            walk.take(next(walk.sizes))
        else:
            go(walk.level)
        yield


def resumable_through() -> Generator[None, None, None]:
    for _ in range(3):
        yield from resumable()


@types.coroutine
def pause() -> Generator[None, None, None]:
    yield


async def pausing() -> None:
    while True:
        await pause()
        walk.take(next(walk.sizes))
        await awaited(walk.level)


async def pausing_through() -> None:
    await pausing()


async def pausing_far_through() -> None:
    await pausing_through()


RESUMABLE = (resumable, resumable_through, pausing_far_through)


def resume(number: int, depth: int) -> None:
    walk.level = depth
    try:
        walk.kept[number].send(None)
    except (StopIteration, ValueError, RuntimeError):  # it has ended, or it is running
        walk.kept[number] = RESUMABLE[number]()
        walk.kept[number].send(None)


def with_keywords(*, depth: int, **ignored: int) -> None:
    go(depth)


@functools.wraps(with_keywords)
def wrapped(*arguments: int, **named: int) -> None:
    return with_keywords(*arguments, **named)


def odd(depth: int) -> Odd:
    made = Odd()
    made.depth = depth
    return made


def drained(source: Iterator[int]) -> None:
    for _ in source:
        pass
    for _ in source:
        pass


def far_down(levels: int) -> None:
    """Frames of which no block is taken: they lie where the last ones lay."""
    far_down(levels - 1) if levels else go(walk.level)


def go(depth: int) -> None:
    act = next(walk.script, 0)
    deeper = depth + 1
    if act == 0 or depth > MOST_DEPTH:
        size = next(walk.sizes)
        if size % 64 == 0:
            walk.stay()
        walk.take(size)
    elif act == 1:
        go(deeper)
        go(deeper)
    elif act == 2:
        go(deeper), go(deeper)
    elif act == 3:
        for _ in range(3):
            go(deeper)
    elif act == 4:
        for _ in numbers(deeper):
            walk.take(next(walk.sizes))
    elif act == 5:
        for _ in delegating(deeper):
            go(deeper)
    elif act == 6:
        with contextlib.suppress(Raised):
            go(deeper)
        go(deeper)
    elif act == 7:
        for _ in range(2):
            try:
                go(deeper)
            except Raised:
                go(deeper)
    elif act == 8:
        raise RAISED
    elif act == 9:
        list(map(go, (deeper, deeper)))
    elif act == 10:
        Made(deeper)
        Made(deeper)
    elif act == 11:
        for _ in range(2):
            try:
                Made(deeper)
            except Raised:
                walk.take(next(walk.sizes))
    elif act == 12:
        it = odd(deeper)
        walk.last = it.onwards, it.onwards
        walk.last = it.missing
    elif act == 13:
        it = odd(deeper)
        it[deeper]
        it + deeper
    elif act == 14:
        with odd(deeper):
            go(deeper)
    elif act == 15:
        sorted((odd(deeper), odd(deeper)))
    elif act == 16:
        for _ in odd(deeper):
            go(deeper)
    elif act == 17:
        coroutine = awaiting(deeper)
        with contextlib.suppress(StopIteration):
            coroutine.send(None)
    elif act == 18:
        wrapped(depth=deeper, other=1)
        named = {"depth": deeper}
        with_keywords(**named)
    elif act == 19:
        [go(at) for at in (deeper, deeper)]
        sum(go(at) is None for at in (deeper, deeper))
    elif act == 20:
        functools.partial(go, deeper)()
    elif act == 21:
        first, second = numbers(deeper), numbers(deeper)
        drained(first)
        next(second)
        drained(second)
        drained(second)
    elif act == 22:
        odd(deeper)(deeper)
        odd(0)(deeper), odd(0)(deeper)
    elif act == 23:
        with contextlib.suppress(Raised):
            Full()
        with contextlib.suppress(Raised):
            Full()
        with contextlib.suppress(Raised):
            Full(), Full()
    elif act == 24:
        for _ in range(2):
            try:
                Full()
            except Raised:
                Full()
    elif act == 25:
        drained(takes())
        first, second = takes(), takes()
        for source in (first, second):
            for _ in source:
                pass
        drained(takes())
        drained(takes())
        drained(takes()), drained(takes())
    elif act == 26:
        resume(next(walk.script, 0) % 3, deeper)
        resume(next(walk.script, 0) % 3, deeper)
    elif act == 27:
        for _ in range(4):
            resume(0, deeper), resume(1, deeper)
    elif act == 28:
        for _ in range(3):
            resume(2, deeper)
            walk.take(next(walk.sizes))
    elif act == 29:
        walk.level, levels = deeper, 10 * next(walk.script, 0)
        far_down(levels)
        walk.level = deeper
        far_down(levels)
    else:
        walk.take(next(walk.sizes))
        walk.take(next(walk.sizes))


def through(depth: int) -> None:
    if depth < BASE_DEPTH:
        through(depth + 1)
    else:
        while True:
            with contextlib.suppress(Raised):
                go(depth)


def go_the_way() -> None:
    seed = int(Path("seed").read_text())
    draw = random.Random(seed)
    # Calls that branch are held back by walks that end: a path is some tens of frames long.
    walk.script = iter([draw.randrange(KINDS) if draw.random() < 0.62 else 0 for _ in range(60_000)])
    walk.kept = [made() for made in RESUMABLE]
    walk.sizes = iter(range(4096, 4096 + 16 * MOST_BLOCKS, 16))
    with contextlib.suppress(StopIteration, RuntimeError):
        through(0)


def before() -> None:
    walk.expected, walk.take, walk.stay = [], note, tuple
    go_the_way()
    paths: dict[str, int] = {}
    for size, stack in walk.expected:
        path = json.dumps(stack)
        paths[path] = paths.get(path, 0) + size
    Path("expected.json").write_text(json.dumps([[json.loads(path), size] for path, size in paths.items()]))


def main() -> None:
    walk.take = signatures.load("heap").take_malloc
    walk.stay = functools.partial(list, range(1_000, 1_200))
    go_the_way()
