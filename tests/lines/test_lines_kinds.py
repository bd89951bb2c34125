"""`@profile` above and below other decorators: the program does what it does without it, and the lines are measured."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from children import run_hiwater
from hiwater.contrib.compat.memory_profiler.profiler import profile as memory_profile
from recording import child_environment, needs_engine

PROGRAM = """
import asyncio, functools, inspect, types
class Labelled(property):
    pass
class Held:
    '''A decorator that keeps its function where nobody looks for it.'''
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self._function = function
        self.held = True
    def __call__(self, *words):
        return self._function(*words)
class C:
    @profile
    def method(self): return len(bytearray(10_001))
    @profile
    @classmethod
    def above_class(cls): return len(bytearray(10_002))
    @staticmethod
    @profile
    def below_static(): return len(bytearray(10_003))
    @profile
    @property
    def prop(self):
        "its text"
        return len(bytearray(10_004))
    @prop.setter
    def prop(self, value): self.value = value
    @profile
    @Labelled
    def labelled(self): return len(bytearray(10_005))
    @profile
    @functools.cached_property
    def cached(self): return len(bytearray(10_006))
    @profile
    @functools.singledispatchmethod
    def dispatched(self, value): return len(bytearray(10_007))
    @dispatched.register
    def _(self, value: int): return value
    def base(self, a, b): return len(bytearray(10_008)) + a + b
    half = profile(functools.partialmethod(base, 1))
@profile
@functools.lru_cache(maxsize=7, typed=True)
def cached(n): return len(bytearray(10_009))
@profile
@functools.singledispatch
def dispatched(value): return len(bytearray(10_010))
@dispatched.register
def _(value: int): return value
@profile
@Held
def held(): return len(bytearray(10_011))
part = profile(functools.partial(lambda a, b: len(bytearray(10_012)) + a + b, 1))
def undecorated(): return len(bytearray(10_016))
profile(undecorated)()
@profile
async def coroutine(): return len(bytearray(10_013))
@profile
def generator():
    got = yield len(bytearray(10_014))
    return got
@profile
async def asynchronous(): yield len(bytearray(10_015))
c = C()
c.prop = 3
print(c.method(), C.above_class(), c.above_class(), C.below_static(), c.prop, c.value, C.prop.__doc__, c.labelled,
    type(C.__dict__["labelled"]))
print(c.cached, c.cached, vars(c), type(C.cached), c.dispatched("x"), c.dispatched(5), c.half(2),
    type(C.__dict__["half"]))
print(cached(1), cached(1), cached(1.0), cached.cache_info(), cached.cache_parameters(), type(cached), cached.__name__)
print(dispatched("x"), dispatched(4), dispatched.registry.keys(), held(), held.held, type(held), part(2), part.args)
g = generator()
print(next(g), inspect.isgeneratorfunction(generator), inspect.iscoroutinefunction(coroutine),
    inspect.isasyncgenfunction(asynchronous))
try: g.send("sent")
except StopIteration as end: print(end.value)
async def collect(): return [item async for item in asynchronous()]
print(asyncio.run(coroutine()), asyncio.run(collect()))
"""
SIZES = range(10_001, 10_017)


def plain() -> str:
    return _output(lambda function: function)


def _output(profile: Callable[[Any], Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(PROGRAM, {"profile": profile, "__builtins__": builtins, "__name__": "program"})
    return out.getvalue()


def test_the_program_prints_the_same_and_all_are_measured(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"__name__ = 'program'\n{PROGRAM}")
    done = run_hiwater("lines", "--format", "json", "-o", "lines.json", "program.py", folder=tmp_path)
    assert done.stdout == plain()
    found = [
        line["line"] for f in json.loads((tmp_path / "lines.json").read_text())["functions"] for line in f["lines"]
    ]
    source = (tmp_path / "program.py").read_text().splitlines()
    ran = "\n".join(source[number - 1] for number in found)
    assert [size for size in SIZES if f"{size:_}" not in ran] == []


def test_the_memory_profilers_decorator_keeps_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    silent = io.StringIO()

    def profile(
        thing: Any,
    ) -> Any:  # what it makes of an object that hides its function is a function, as with memory_profiler
        return thing if type(thing).__name__ == "Held" else memory_profile(thing, stream=silent)

    assert _output(profile) == plain()
    assert capsys.readouterr() == ("", "")


@needs_engine
def test_an_object_that_hides_its_function_is_measured_on_every_version(tmp_path: Path) -> None:
    code = (
        "from hiwater.lines import LineProfiler\nimport functools\n"
        "class Held:\n def __init__(self, f): functools.update_wrapper(self, f); self._f = f\n"
        " def __call__(self): return self._f()\n"
        "def f():\n return len(bytearray(50_000))\n"
        "held = Held(f)\nprofiler = LineProfiler(resident=False)\nassert profiler.wrap(held) is held\nheld(); held()\n"
        "print([(line.line, line.calls) for line in profiler.results()[0].lines if line.allocated_bytes > 50_000])"
    )
    path = tmp_path / "program.py"
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, path], env=child_environment(), check=True, capture_output=True, text=True
    )  # fmt: skip
    assert done.stdout == "[(7, 2)]\n"
