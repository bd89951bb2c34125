"""A program recurses as deep under hiwater as under python, to the frame, and is told the same when it is at the
end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recording import needs_engine

pytestmark = needs_engine

# Each way down counts its levels in `level`, and stops where the interpreter says so. On 3.11 calls in C and in Python
# count together, from 3.12 to 3.13 apart, and from 3.14 on C goes by the bytes of the stack.
WAYS = """
import re, sys, threading, runpy, atexit

level = 0

def calls():
    global level
    level += 1
    calls()

def through_c():
    global level
    level += 1
    list(map(lambda _: through_c(), [0]))

def through_sort():
    global level
    level += 1
    sorted([1], key=lambda _: through_sort())

class Equal:
    def __eq__(self, other):
        global level
        level += 1
        return self == other
    def __repr__(self):
        global level
        level += 1
        return repr([self])
    def __getattr__(self, name):
        global level
        level += 1
        return getattr(self, name + "x"[:0])

def compares(): Equal() == Equal()
def shows(): repr(Equal())
def asks(): Equal().missing

def deep_list():
    nested = []
    for _ in range(100_000): nested = [nested]
    repr(nested)

def go(way):
    global level
    level = 0
    try:
        way()
    except RecursionError as error:
        # Where the stack begins changes from run to run, and with it the bytes that the message counts.
        message = re.sub("used [0-9]+ kB", "used it", str(error))
        print(way.__name__, level if sys.version_info < (3, 14) or way is calls else "", message, flush=True)

def all_ways():
    print(sys.getrecursionlimit())
    for way in WAYS: go(way)

WAYS = [calls, through_c, through_sort, compares, shows, asks, deep_list]
"""

PROGRAMS = {
    "as it is": "all_ways()",
    "a low limit": "sys.setrecursionlimit(120)\nall_ways()",
    "a high limit": "sys.setrecursionlimit(2500)\nall_ways()",
    "set and set back": (
        "before = sys.getrecursionlimit()\nsys.setrecursionlimit(5000)\nsys.setrecursionlimit(before)\nall_ways()"
    ),
    "set where it is deep": """
def down(n):
    if n: return down(n - 1)
    sys.setrecursionlimit(300)
    go(calls)
down(50)
all_ways()
""",
    "the lowest that can be set": """
for limit in range(1, 12):
    try:
        sys.setrecursionlimit(limit)
    except RecursionError as error:
        print(error)
    else:
        sys.setrecursionlimit(1000)
        print("can be", limit)
""",
    "threads": """
def in_a_thread(limit):
    if limit: sys.setrecursionlimit(limit)
    thread = threading.Thread(target=all_ways)
    thread.start()
    thread.join()
threading.stack_size(64 << 20)
for limit in (0, 200, 1500): in_a_thread(limit)
all_ways()
""",
    "a limit set by a thread": """
thread = threading.Thread(target=sys.setrecursionlimit, args=(200,))
thread.start()
thread.join()
all_ways()
""",
    "exec and runpy": """
exec("all_ways()")
import tempfile
with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
    file.write("share[0]()")
    file.flush()
    runpy.run_path(file.name, {"share": [all_ways]})
""",
    "callbacks at the end": "atexit.register(all_ways)",
    "the hook of an exception": "sys.excepthook = lambda *_: all_ways()\n1 / 0",
    "a generator and a class": """
def walk(n):
    global level
    level += 1
    yield from walk(n + 1)
def walks(): list(walk(0))
class Body:
    all_ways()
go(walks)
""",
    "uncaught": "calls()",
}
# The depths at which a call in a loop takes a fresh page each time: there the interpreter maps a chunk for its frames,
# and unmaps it.
COSTLY_DEPTHS = """
import resource

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

def called():
    return 0
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = p = q = r = s = t = 0

def at(depth):
    if depth: return at(depth - 1)
    before = faults()
    for _ in range(300): called()
    return faults() - before

at(400)
print([depth for depth in range(400) if at(depth) > 150])
"""
FORMS = {
    "script": ["program.py"],
    "module": ["-m", "program"],
    "command": ["-c", "import runpy, sys; sys.path.insert(0, '.'); exec(open('program.py').read())"],
    "folder": ["folder"],
}
DOORS = {
    # Not by `python -m hiwater`: it has been through runpy once, whose calls the interpreter of 3.12 and 3.13 then
    # counts otherwise.
    "run": [str(Path(sys.executable).with_name("hiwater")), "run", "-q", "-o", "{out}"],
    "python -m": ["-m", "hiwater", "run", "-q", "-o", "{out}"],
    "sampled": ["-m", "hiwater", "run", "-q", "--sample", "64KiB", "-o", "{out}"],
}


def ending(folder: Path, words: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def write(folder: Path, name: str) -> None:
    put(folder, WAYS + PROGRAMS[name])


def put(folder: Path, text: str) -> None:
    (folder / "folder").mkdir()
    for path in (folder / "program.py", folder / "folder" / "__main__.py"):
        path.write_text(text)


def through(folder: Path, door: str, words: list[str]) -> list[str]:
    return [word.replace("{out}", str(folder / "out.hiw")) for word in DOORS[door]] + words


@pytest.mark.grid
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("form", FORMS)
def test_a_recorded_program_is_as_deep_as_a_plain_one(tmp_path: Path, form: str, name: str) -> None:
    write(tmp_path, name)
    plain = ending(tmp_path, FORMS[form])
    assert plain[1] or plain[2]
    assert ending(tmp_path, through(tmp_path, "run", FORMS[form])) == plain


@pytest.mark.parametrize("door", [door for door in DOORS if door != "run"])
@pytest.mark.parametrize("name", ["as it is", "a low limit", "threads", "the lowest that can be set"])
def test_whatever_began_it(tmp_path: Path, door: str, name: str) -> None:
    write(tmp_path, name)
    assert ending(tmp_path, through(tmp_path, door, FORMS["script"])) == ending(tmp_path, FORMS["script"])


@pytest.mark.parametrize("form", FORMS)
def test_calls_are_costly_at_the_same_depths(tmp_path: Path, form: str) -> None:
    put(tmp_path, COSTLY_DEPTHS)
    plain = ending(tmp_path, FORMS[form])
    assert plain[1] != "[]\n" or sys.version_info >= (3, 13)  # one with gh-142183 keeps a chunk
    for door in DOORS:
        assert ending(tmp_path, through(tmp_path, door, FORMS[form])) == plain
    assert ending(tmp_path, ["-m", "hiwater", "lines", *FORMS[form]])[1].startswith(plain[1])


@pytest.mark.parametrize("form", ["script", "module"])
@pytest.mark.parametrize("name", ["as it is", "a low limit", "the lowest that can be set"])
def test_under_lines_too(tmp_path: Path, form: str, name: str) -> None:
    """Where nothing is marked, nothing of hiwater's is called; its table comes after the program's output."""
    write(tmp_path, name)
    plain = ending(tmp_path, FORMS[form])
    status, out, _ = ending(tmp_path, ["-m", "hiwater", "lines", *FORMS[form]])
    assert status == plain[0]
    assert out.startswith(plain[1])
