"""Projects that depend on memory_profiler, as published: they work when PYTHONPATH alone changes.

The `test` extra brings both; each is skipped where it is not installed. pytest-monitor takes no part in our own run
(pyproject.toml).
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from hiwater.contrib.compat.drop_ins import folder

pytestmark = pytest.mark.slow
LIST_MIB = 8 * 30_000_000 / (1 << 20)
TEMPORARY = "x = [0] * 30_000_000\nprint(len(x))\ndel x\n"


def run(*words: str, cwd: Path) -> None:
    places = os.pathsep.join([folder(), str(Path(folder()).parent.parent)])
    environment = {**os.environ, "PYTHONPATH": places}
    subprocess.run([sys.executable, *words], cwd=cwd, env=environment, check=True, capture_output=True, timeout=300)


@pytest.mark.skipif(find_spec("sphinx_gallery") is None, reason="sphinx-gallery is not installed")
def test_sphinx_gallerys_show_memory(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "README.txt").write_text("Examples\n========\n")
    (tmp_path / "examples" / "plot_list.py").write_text(f'"""\nA list\n======\n"""\n{TEMPORARY}')
    (tmp_path / "index.rst").write_text("x\n=\n.. toctree::\n   auto/index\n")
    settings = {"examples_dirs": "examples", "gallery_dirs": "auto", "show_memory": True, "min_reported_time": 0}
    (tmp_path / "conf.py").write_text(
        f"extensions = ['sphinx_gallery.gen_gallery']\nsphinx_gallery_conf = {settings}\n"
    )
    run("-m", "sphinx", "-q", "-b", "html", ".", "out", cwd=tmp_path)
    page = (tmp_path / "out" / "auto" / "plot_list.html").read_text()
    said = re.search(r"Estimated memory usage:</strong>\s+(\d+) MB", page)
    assert said and int(said[1]) > LIST_MIB, (
        "with memory_profiler itself the list, which lives for an instant, is missed"
    )


@pytest.mark.skipif(find_spec("pytest_monitor") is None, reason="pytest-monitor is not installed")
def test_pytest_monitor(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # a folder above may have settings, which would hold here
    (tmp_path / "test_list.py").write_text("def test_list():\n    x = [0] * 30_000_000\n    assert len(x)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder(), str(Path(folder()).parent.parent)])}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_list.py"],
        cwd=tmp_path, env=environment, check=False, capture_output=True, timeout=300,
    )  # fmt: skip
    with closing(sqlite3.connect(tmp_path / ".pymon")) as database:
        ((used,),) = database.execute("select mem_usage from test_metrics").fetchall()
    assert used == pytest.approx(LIST_MIB, abs=3)
