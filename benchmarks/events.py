"""The loops whose instructions `instructions.py` counts: `python events.py EVENT COUNT [CAPTURE]` does COUNT events.

With CAPTURE the loop is recorded, through the engine's own door: the launcher is another matter.
"""

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat, starmap

Loop = Callable[[int], object]
DEPTHS = (10, 50, 128)
FOUR = (None,) * 4


def objects(count: int) -> None:
    for _ in repeat(None, count):
        object()


def two_lines(count: int) -> None:
    for _ in repeat(None, count // 2):
        object()
        object()


def make() -> object:
    return object()


def two_callers(count: int) -> None:
    for _ in repeat(None, count // 2):
        make()
        make()


def make_through() -> object:
    return make()


def calling(count: int) -> None:
    for _ in repeat(None, count // 3):
        object()
        make()
        make_through()


def two_made() -> Iterator[object]:
    yield object()
    yield object()


def resume(generator: Iterator[object]) -> object:
    return next(generator)


def generators(count: int) -> None:
    for _ in repeat(None, count):
        generator = two_made()
        next(generator)
        resume(generator)


def in_calls(depth: int, count: int) -> None:
    if depth:
        in_calls(depth - 1, count)
    else:
        deque(starmap(object, repeat((), count)), maxlen=0)


def runs(count: int) -> None:
    for _ in repeat(None, count // 1000):
        object()
        in_calls(4, 1000)


def large_objects(count: int) -> None:
    for _ in repeat(None, count):
        bytes(1000)


def lists(count: int) -> None:
    for _ in repeat(None, count):
        made: list[None] = []
        made.append(None)
        made += FOUR


def at_depth(depth: int, count: int) -> None:
    if depth:
        at_depth(depth - 1, count)
    else:
        objects(count)


async def made_at_each_step() -> None:
    return None


async def awaiting(depth: int, count: int) -> None:
    if depth:
        await awaiting(depth - 1, count)
        return
    for _ in repeat(None, count):
        await made_at_each_step()


def awaits(depth: int) -> Loop:
    def loop(count: int) -> object:
        with suppress(StopIteration):
            awaiting(depth, count).send(None)
        return None

    return loop


def native(name: str) -> Loop:
    def loop(count: int) -> object:
        function = getattr(ctypes.CDLL(os.environ["HIWATER_CHURN"]), name)
        function.argtypes = [ctypes.c_size_t]
        return function(count)

    return loop


def deep(depth: int) -> Loop:
    return lambda count: at_depth(depth, count)


EVENTS: dict[str, tuple[str, Loop]] = {
    "object": ("a Python object is made and freed", objects),
    "two-lines": ("the same, on two lines in turn", two_lines),
    "two-callers": ("the same, in a function called from two lines in turn", two_callers),
    "calling": ("the same here, in a function, and in a function of a function, in turn", calling),
    "generator": ("a generator is made, and resumed from two functions in turn to make objects", generators),
    "runs": ("a Python object made by C code, a thousand of them in five calls again and again", runs),
    "large-object": ("an object of 1,000 bytes is made and freed", large_objects),
    "list": ("a list gets one item, and then four more", lists),
    "malloc": ("malloc and free", native("malloc_free")),
    "realloc": ("realloc(NULL), realloc, free", native("realloc_free")),
    **{f"await-{depth}": (f"a coroutine made and awaited under {depth} others", awaits(depth)) for depth in (1, 100)},
    **{f"depth-{depth}": (f"an object under {depth} frames", deep(depth)) for depth in DEPTHS},
}


def main(event: str, count: str, capture: str = "") -> None:
    loop = EVENTS[event][1]
    if capture:
        from hiwater import _core  # here, so that the plain loop runs where hiwater is not installed

        _core.start(
            capture,
            facts={},
            internal_prefix=os.path.dirname(_core.__file__ or ""),
            sample_bytes=int(os.environ.get("HIWATER_SAMPLE", "0")),
            sample_seed=1,
        )
        loop(int(count))
        _core.stop(0)
    else:
        loop(int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
