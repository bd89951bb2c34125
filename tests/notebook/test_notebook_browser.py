"""A notebook in JupyterLab, in a real Chromium: the line below a cell, the frame, and a flame graph that works in it.

Skipped where there is no JupyterLab and where `browser` says so; HIWATER_TEST_BROWSER=1 says that all of it must be
there.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

import browser
import jupyterlab_server
from recording import needs_engine

has_jupyterlab = importlib.util.find_spec("jupyterlab") is not None
pytestmark = [
    browser.needs_browser,
    pytest.mark.skipif(not (has_jupyterlab or browser.MUST_RUN), reason="no JupyterLab (pip install jupyterlab)"),
    needs_engine,
]


def test_a_recorded_cell_in_jupyterlab(tmp_path: Path) -> None:
    cells = [
        "%load_ext hiwater\n%hiwater on",
        "def make(size):\n    return bytearray(size)\nkept = make(30 << 20)",
        "%%hiwater\nsmall = make(5 << 20)\nlarge = make(20 << 20)",
        "1 / 0",
    ]
    seen = jupyterlab_server.see("cells", notebook(tmp_path, cells), tmp_path)
    assert [len(lines) for lines in seen["lines"]] == [0, 1, 1, 1]
    assert re.match(r"\[2\] \d\.\d\d s · resident: peak \+3\d\.\d MiB, kept \+3\d\.\d MiB", seen["lines"][1][0])
    # In tenths, what the kernel's other threads allocate meanwhile counts as well.
    assert re.search(r"allocated: peak \+25\.\d MiB, kept \+25\.\d MiB", seen["lines"][2][0])
    assert "ZeroDivisionError" in seen["lines"][3][0]
    assert [len(reports) for reports in seen["reports"]] == [0, 0, 1, 0]
    assert re.search(r"25\.0 MiB +\d+\.\d %  cell \[2\]:2 +return bytearray\(size\)", seen["reports"][2][0])
    assert (seen["sandbox"], seen["origin"]) == ("allow-scripts", "null")
    flame = seen["flame"]
    assert re.search(r"25\.\d MiB", flame["label"]) and flame["clicked"]
    assert any("make" in row and "25.0 MiB" in row for row in flame["rows"])


def notebook(folder: Path, cells: list[str]) -> Path:
    path = folder / "small.ipynb"
    parts = [
        {"cell_type": "code", "id": f"c{at}", "metadata": {}, "source": cell, "execution_count": None, "outputs": []}
        for at, cell in enumerate(cells)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": parts, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}), "utf-8")
    return path
