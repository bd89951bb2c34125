"""Names of a program that a terminal would obey, or that look like a line of hiwater's, are shown escaped by every
verb."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

HOSTILE = "\x1b]0;owned\x07\u202e\x9b31m\r\nhiwater: all is well"
PROGRAM = """
import hiwater, sys, threading
hostile = sys.argv[1]
exec(compile("def f():\\n    global held\\n    held = [bytes(5000) for _ in range(1000)]\\nf()", f"/tmp/{hostile}.py", "exec"))
class Ordinary: pass
kind = type(f"C{hostile}", (), {})
objects = []
def work():
    for number in range(20):
        objects.extend(kind() for _ in range(500))
        hiwater.mark(f"m{number}{hostile}")
thread = threading.Thread(target=work, name=f"T{hostile}")
thread.start()
thread.join()
with hiwater.phase(f"p{hostile}"):
    pass
"""
SHOWN = [
    *(("report", "--format", name) for name in ("text", "tree", "table", "lines", "markdown", "collapsed", "csv")),
    ("report", "--full"), ("report", "--kept", "--at", "end"), ("diff", "--fail-on-increase", "0.1%", "hostile.hiw"), ("leaks",), ("holders",), ("live", "--once"),
    ("live", "--once", "--view", "threads"), ("check", "--peak", "1KiB"), ("merge", "-o", f"m{HOSTILE}.hiw"),
    ("snapshot", "-o", f"s{HOSTILE}.hiw"), ("report", f"x{HOSTILE}"), ("report", "--at", HOSTILE), ("report", f"--{HOSTILE}"), (HOSTILE,),
]  # fmt: skip


def assert_is_harmless(text: str) -> None:
    odd = {one for one in text if not one.isprintable() and one != "\n"}
    assert odd == set(), ascii(text)
    assert not any(line.startswith("hiwater: all is well") for line in text.splitlines())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hostile")
    (made / f"a{HOSTILE}.py").write_text(PROGRAM)
    environment = {"LC_ALL": "C.UTF-8"}
    done = run_hiwater(
        "run", "--holders", "-o", "hostile.hiw", f"a{HOSTILE}.py", HOSTILE, folder=made, environment=environment
    )
    assert done.returncode == 0
    assert_is_harmless(done.stderr)
    return made


@pytest.mark.parametrize("words", SHOWN, ids=range(len(SHOWN)))
def test_it_is_escaped(words: tuple[str, ...], folder: Path) -> None:
    environment = {"LC_ALL": "C.UTF-8"}
    done = run_hiwater(*words, "hostile.hiw", folder=folder, environment=environment)
    assert done.stdout + done.stderr != "" and "Traceback" not in done.stderr
    assert_is_harmless(done.stdout)
    assert_is_harmless(done.stderr)
    assert os.path.exists(folder / "hostile.hiw")
