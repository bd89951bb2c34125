"""The lint rule on files that are opened by path, and on text that goes to the console."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from children import run_python

TREE = Path(__file__).resolve().parents[2]
TOOL = TREE / "tools" / "check_paths.py"
FOUND = """
open(path)
os.open(path, 0)
os.rename(path, path)
os.chown(path, 0, 0)
opener = os.open
[*map(open, [path])]
getattr(os, "unlink")(path)
from os import remove as harmless; harmless(path)
import os as system; system.replace(path, path)
import shutil; shutil.copytree(path, path)
import shutil as files; files.rmtree(path)
import numpy as np; np.load(path)
import tempfile; open(tempfile.gettempdir() + "/known")
import linecache; linecache.getline(path, 1)
pathlib.Path(path).read_text()
path.open()
path.open("rb")
path.open(encoding="utf-8")
path.write_text("x")
path.rename(path)
path.replace(path)
path.unlink(missing_ok=True)
path.chmod(0o600)
path.mkdir()
print(path)
sys.stderr.write(path)
stream = sys.__stdout__
from sys import stdout; stdout.write(path)
import traceback; traceback.print_exc()
import warnings; warnings.warn(path)
"""
ALLOWED = """
open('/proc/self/maps')
open(f'/proc/{path}/maps')
open(trust.open_regular(path))
from hiwater._os import trust; open(trust.open_regular(path))
os.stat(path)
say(path)
path.replace("a", "b")
archive.open(path)
hiwater.open(path)
shutil.which(path)
import tempfile; tempfile.mkdtemp()
"""
CASES = {**dict.fromkeys(FOUND.strip().splitlines(), True), **dict.fromkeys(ALLOWED.strip().splitlines(), False)}


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    return run_python(tree / "tools" / TOOL.name)


def test_the_code_keeps_it() -> None:
    done = check(TREE)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("module", ["analysis/module.py", "_os/module.py", "_os/trust.py"])
def test_what_it_finds(module: str, tmp_path: Path) -> None:
    file = tmp_path / "src/hiwater" / module
    for folder in (tmp_path / "tools", file.parent):
        folder.mkdir(parents=True)
    (tmp_path / "tools" / TOOL.name).write_bytes(TOOL.read_bytes())
    file.write_text("".join(f"def f(path): {call}\n" for call in CASES))
    lines = [line for line in check(tmp_path).stdout.splitlines() if "needs no exception" not in line]
    found = {int(line.split(":")[1]) for line in lines}
    wanted = {number for number, is_wrong in enumerate(CASES.values(), 1) if is_wrong and module != "_os/trust.py"}
    assert {[*CASES][number - 1] for number in found ^ wanted} == set()
    assert all(line.startswith(f"src/hiwater/{module}:") for line in lines)
