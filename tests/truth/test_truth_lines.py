"""The engine reads the interpreter's line tables itself: for every instruction it must say what the interpreter
says."""

import ctypes
import importlib.util
import itertools
import marshal
import sysconfig
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import compiled
from recording import SHARE

LONG_FORM = 14  # of an entry of the line table: the one for large steps and far columns
NO_LOCATION = 15


@cache
def engine() -> ctypes.PyDLL:
    """The engine's reader, compiled for this interpreter."""
    library = ctypes.PyDLL(str(compiled.library("lines")))
    library.code_bytes.argtypes = [ctypes.py_object]
    library.code_bytes.restype = ctypes.c_ssize_t
    library.lines_read.argtypes = [ctypes.py_object, ctypes.c_int]
    library.lines_told.argtypes = [ctypes.py_object]
    library.line_shown.argtypes = [ctypes.py_object, ctypes.c_ssize_t]
    for name in ("lines_read", "lines_told", "line_shown"):
        getattr(library, name).restype = ctypes.py_object
    return library


def with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_nested(constant)


def listed_lines(code: types.CodeType) -> list[int]:
    """What `co_lines()` says of each instruction; -1 where there is no line."""
    lines = [-1] * (len(code.co_code) // 2)
    for start, end, line in code.co_lines():
        lines[start // 2 : end // 2] = [-1 if line is None else line] * ((end - start) // 2)
    return lines


def forms(code: types.CodeType) -> set[int]:
    """The forms of the entries in the line table. The first byte of an entry has its top bit set."""
    return {byte >> 3 & 15 for byte in code.co_linetable if byte & 128}


def check(code: types.CodeType) -> None:
    told = engine().lines_told(code)
    name = f"{code.co_qualname}, {code.co_filename}:{code.co_firstlineno}"
    assert engine().code_bytes(code) == len(code.co_code), name
    assert told[:-1] == listed_lines(code), name
    for order in (1, -1, 0) if len(told) < 2000 else (1, -1):
        assert engine().lines_read(code, order) == told, f"{name}, order {order}"


def check_all(text: str, first_line: int = 1) -> list[types.CodeType]:
    codes = list(with_nested(compile("\n" * (first_line - 1) + text, "made.py", "exec")))
    for code in codes:
        check(code)
    return codes


def standard_library() -> Iterator[types.CodeType]:
    """The code of the library's modules: as cached beside them, or compiled."""
    folder = Path(sysconfig.get_path("stdlib"))
    outside = {"test", "tests", "idlelib", "lib2to3", "site-packages", "ensurepip", "turtledemo", "__pycache__"}
    for source in sorted(folder.rglob("*.py"))[::SHARE]:
        if outside & set(source.relative_to(folder).parts):
            continue
        cached = Path(importlib.util.cache_from_source(source))
        if cached.exists():
            yield marshal.loads(cached.read_bytes()[16:])
        elif source.stat().st_size < 40_000:
            yield compile(source.read_bytes(), str(source), "exec")


def test_every_instruction_of_the_standard_library() -> None:
    seen: set[int] = set()
    functions = backwards = 0
    for code in itertools.chain.from_iterable(map(with_nested, standard_library())):
        check(code)
        functions += 1
        seen |= forms(code)
        lines = [line for line in listed_lines(code) if line > 0]
        backwards += any(after < before for before, after in itertools.pairwise(lines))
    assert functions > 5000 // SHARE
    assert {LONG_FORM, NO_LOCATION} <= seen
    assert backwards > 500 // SHARE


def test_code_on_a_very_high_line() -> None:
    codes = check_all(
        "def f(a):\n    try:\n        return a.b(\n            a,\n            1)\n    finally:\n        a()\n", 70_001
    )
    assert codes[1].co_firstlineno == 70_001
    assert max(listed_lines(codes[1])) == 70_007


def test_steps_too_large_for_a_short_entry() -> None:
    gap = "\n" * 70_001
    (_, function) = check_all(f"def f(a):\n    a(1){gap}    a(2)\n    return [a,{gap}  a][{gap}   0]\n")
    assert LONG_FORM in forms(function)
    lines = [line for line in listed_lines(function) if line > 0]
    steps = {after - before for before, after in itertools.pairwise(lines)}
    assert max(steps) > 70_000
    assert min(steps) < -70_000


def test_far_columns() -> None:
    (code, *_) = check_all("x = (" + " " * 5000 + "len('a'" + " " * 300 + "))\n")
    assert LONG_FORM in forms(code)


@pytest.mark.parametrize("first_line", [0, 1, 127, 2**21, 2**31 - 20])
def test_first_lines_of_every_size(first_line) -> None:
    """A line number of a code object is what its maker says: `ast` and templates make strange ones."""
    for code in check_all("def f(a):\n    with a:\n        return (\n  a\n)\n"):
        check(code.replace(co_firstlineno=first_line))


def test_a_frame_without_a_line_shows_its_first_and_one_being_built_shows_none() -> None:
    text = "def f(a):\n    def g():\n        return a\n    with a as b:\n        for c in b:\n            yield c\n"
    shown_first = being_built = 0
    for code in check_all(text, 1000):
        for instruction, line in enumerate(listed_lines(code)):
            shown = engine().line_shown(code, instruction)
            if shown is None:
                being_built += 1
            elif line <= 0:
                assert shown == code.co_firstlineno
                shown_first += 1
            else:
                assert shown == line
    assert shown_first > 0
    assert being_built > 0
