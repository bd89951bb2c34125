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
exec(compile("def f():\\n    global held\\n    held = [bytes(5000) for _ in range(1000)]\\nf()", f"/tmp/{hostile}.py",
    "exec"))
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
    ("report", "--full"), ("report", "--kept", "--at", "end"), ("diff", "--fail-on-increase", "0.1%", "hostile.hiw"),
    ("leaks",), ("holders",), ("live", "--once"),
    ("live", "--once", "--view", "threads"), ("check", "--peak", "1KiB"), ("merge", "-o", f"m{HOSTILE}.hiw"),
    ("snapshot", "-o", f"s{HOSTILE}.hiw"), ("report", f"x{HOSTILE}"), ("report", "--at", HOSTILE),
    ("report", f"--{HOSTILE}"), (HOSTILE,),
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


SETTINGS = (
    "OUTPUT",
    "FORMAT",
    "MODE",
    "SAMPLE",
    "SAMPLE_SEED",
    "LIMIT",
    "SNAPSHOT_EVERY",
    "QUIET",
    "OWN",
    "LAST_WORDS",
    "HOLDERS",
)
VALUES = {"no UTF-8": os.fsdecode(b"caf\xe9" + HOSTILE.encode()), "long": "x" * 100_000}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_shown_escaped_and_short(name: str, value: str, tmp_path: Path) -> None:
    environment = {f"HIWATER_{name}": VALUES[value], "LC_ALL": "C.UTF-8"}
    done = run_hiwater("run", "-c", "print(7)", folder=tmp_path, environment=environment)
    assert (done.returncode, done.stdout) in ((0, "7\n"), (2, ""), (125, ""))
    assert "Traceback" not in done.stderr and "internal" not in done.stderr
    assert_is_harmless(done.stderr)
    assert len(done.stderr) < 6000


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "words", [("run", "-m"), ("run",), ("report", "--at"), ("attach",), ("sample", "--"), ("live",)], ids=" ".join
)
def test_an_argument_is_shown_escaped_and_short(words: tuple[str, ...], value: str, tmp_path: Path) -> None:
    done = run_hiwater(*words, VALUES[value], folder=tmp_path, environment={"LC_ALL": "C.UTF-8"})
    assert done.returncode in (1, 2, 126, 127) and "Traceback" not in done.stderr
    assert_is_harmless(done.stderr)
    assert len(done.stderr) < 6000


def test_a_program_whose_name_is_no_utf8_is_recorded(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / f"{name}.py").write_text("print(7)")
    for words in (("-m", name), (f"{name}.py",)):
        done = run_hiwater("run", "-o", "a.hiw", *words, folder=tmp_path, environment={"LC_ALL": "C.UTF-8"})
        assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


def test_the_doctor_shows_names_escaped(tmp_path: Path) -> None:
    done = run_hiwater("doctor", folder=tmp_path, environment={"LD_PRELOAD": HOSTILE, "LC_ALL": "C.UTF-8"})
    assert "owned" in done.stdout  # what the loader says of it to the child that records itself
    assert_is_harmless(done.stdout)
