"""The lint rule on files that are opened by path, and on text that goes to the console."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]
TOOL = TREE / "tools" / "check_paths.py"
CASES = {
    "open(path)": True,
    "os.open(path, 0)": True,
    "os.rename(path, path)": True,
    "os.chown(path, 0, 0)": True,
    "pathlib.Path(path).read_text()": True,
    "print(path)": True,
    "sys.stderr.write(path)": True,
    "open('/proc/self/maps')": False,
    "open(f'/proc/{path}/maps')": False,
    "open(trust.open_regular(path))": False,
    "os.stat(path)": False,
    "say(path)": False,
}


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, tree / "tools" / TOOL.name], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_code_keeps_it() -> None:
    done = check(TREE)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("folder", ["analysis", "_os"])
@pytest.mark.parametrize("call", CASES)
def test_what_it_finds(call: str, folder: str, tmp_path: Path) -> None:
    for name in ("tools", f"src/hiwater/{folder}"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tools" / TOOL.name).write_bytes(TOOL.read_bytes())
    (tmp_path / "src/hiwater" / folder / "module.py").write_text(f"def f(path):\n    {call}\n")
    lines = [line for line in check(tmp_path).stdout.splitlines() if "needs no exception" not in line]
    is_wrong = CASES[call] and folder != "_os"
    assert len(lines) == is_wrong
    assert not is_wrong or lines[0].startswith("src/hiwater/analysis/module.py:2: ")
