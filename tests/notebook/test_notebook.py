"""hiwater in notebooks: real kernels through nbclient, real terminals through pexpect."""

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
import notebooks
import page_reader
from children import run_hiwater, run_python
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture.program import recorded_window
from hiwater.contrib.compat.drop_ins import folder
from hiwater.notebook.rendering import drawn
from hiwater.report.request import Report
from packages import skip_without
from places import PROGRAMS, ROOT
from recording import needs_engine

skip_without("ipykernel", "nbclient")
pexpect = pytest.importorskip("pexpect")
MIB = 1 << 20


def figure(line: str, what: str, of: str = "resident") -> float:
    """MiB in a logger's line: `figure(line, "peak")`."""
    found = re.search(rf"{of}: .*?{what} (?:at least )?([+−]?)([\d,.]+) MiB", line)
    assert found is not None, line
    return float(found[2].replace(",", "")) * (-1 if found[1] == "−" else 1)


@needs_engine
def test_a_line_after_each_cell(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            "%hiwater on",
            "n = len([0] * 30_000_000)",
            "x = bytearray(100 << 20)",
            "del x",
            "",
            "n + 1",
            "%hiwater off",
            "n + 2",
        ],
    )
    assert [len(cell.displays) for cell in shown] == [0, 0, 1, 1, 1, 0, 1, 0, 0]
    temporary, kept, freed = (cell.lines[0] for cell in shown[2:5])
    assert temporary.startswith("[3] ") and "text/html" in shown[2].displays[0]
    for of in ("resident", "allocated"):  # the list is 240,000,056 bytes
        assert abs(figure(temporary, "peak", of) - 228.9) < 1 and abs(figure(temporary, "kept", of)) < 1
        assert abs(figure(kept, "peak", of) - 100) < 1 and abs(figure(kept, "kept", of) - 100) < 1
        assert figure(freed, "peak", of) == 0 and abs(figure(freed, "kept", of) + 100) < 1
    assert shown[6].value == "30000001"


def test_the_cell_runs_untouched(tmp_path: Path) -> None:
    cells = [
        "import asyncio\nawait asyncio.sleep(0)\n7",
        "%%capture said\nprint('hidden')",
        "said.stdout, said.outputs",
        "def fails():\n    return 1 / 0\nfails()",
        "def broken(:",
        "x = 3;",
        "import sys\nsys.exit(4)",
        "!echo shell",
        "_oh[1], __name__, __doc__",
        "from __future__ import annotations\nannotations.compiler_flag > 0",
    ]
    plain = notebooks.run(tmp_path / "plain", cells, {"PYTHONPATH": ""})
    begin = ["%load_ext hiwater", "%hiwater on --no-gc"]
    measured = notebooks.run(tmp_path / "measured", [*begin, *(cell.replace("_oh[1]", "_oh[3]") for cell in cells)])[2:]
    for alone, beside in zip(plain, measured, strict=True):
        assert (alone.value, alone.printed, alone.error) == (beside.value, beside.printed, beside.error)
    assert [len(cell.displays) for cell in measured] == [1] * 10
    assert measured[3].lines[-1].endswith("ZeroDivisionError") and measured[4].lines[-1].endswith("SyntaxError")


def test_a_cell_that_takes_the_hooks_away(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "import hiwater.notebook, sys\nlogger = hiwater.notebook.CellLogger().start()",
            "get_ipython().events.callbacks['post_run_cell'].clear()",
            "1",
            "logger.stop(); logger.start(); logger.stop(); logger.start()",
            "sys.displayhook = get_ipython().display_pub.publish = None",
            "del get_ipython().display_pub.publish",
            "get_ipython().events.reset_all() if hasattr(get_ipython().events, 'reset_all') else None",
            (
                "logger.stop()\nfrom hiwater.scopes.manager import SCOPE_MANAGER\n"
                "raise ValueError(SCOPE_MANAGER.open_scopes, len(logger.history))"
            ),
        ],
    )
    assert [cell.error for cell in shown[:-1]] == [None] * 7
    assert [len(cell.displays) for cell in shown[:6]] == [0, 0, 0, 0, 0, 1]
    assert shown[-1].error == "ValueError: (0, 3)" or shown[-1].error == "ValueError: (0, 2)"


@needs_engine
def test_a_cell_that_runs_cells(tmp_path: Path) -> None:
    inner = "_ = get_ipython().run_cell('b = bytearray(20 << 20)')\nc = bytearray(30 << 20)"
    shown = notebooks.run(
        tmp_path, ["%load_ext hiwater\n%hiwater on", f"a = bytearray(10 << 20)\n{inner}", f"%%hiwater\n{inner}"]
    )
    assert [round(figure(line, "peak", "allocated"), -1) for line in shown[1].lines] == [60]
    assert "peak 50." in shown[2].report
    assert "c = bytearray(30 << 20)" in shown[2].report


def test_data_and_history(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            (
                "import hiwater, sys\nfrom hiwater.notebook import CellLogger\n"
                "logger = CellLogger(compact=True, gc_collect=False)\n"
                "heavy = {'numpy', 'pandas', 'rich', 'matplotlib'} & {*sys.modules}"
            ),
            (
                "try:\n    logger.data\nexcept hiwater.HiwaterError as error:\n    print(error.slug)\n"
                "logger.start() is logger"
            ),
            "kept = bytearray(40 << 20)",
            "logger.data",
            "consumed, peaked, used = logger.data.ram\nlogger.stop()",
            "'pandas' in sys.modules, sorted(heavy)",
            "frame = logger.dataframe()\nframe[['cell', 'source', 'error']].to_dict('list')",
            "round(frame.resident_kept_bytes[0] / 2**20), len(logger.history), logger.running, repr(logger)",
        ],
    )
    assert shown[1].printed == "meter-unavailable\n" and shown[1].value == "True"
    assert shown[2].lines[0].startswith("[3] ") and "resident" in shown[2].lines[0] and "now" not in shown[2].lines[0]
    assert re.match(
        r"CellData\(ram=Memory\(consumed=4\d{7}, peaked=4\d{7}, used=\d+\), gpu=\(\), time=0\.", shown[3].value or ""
    )
    assert shown[5].value == "(False, [])"
    first = "{'cell': [3, 4], 'source': ['kept = bytearray(40 << 20)', 'logger.data'], 'error': ['', '']}"
    assert (shown[6].value or "").replace("\n ", " ") == first
    assert shown[7].value == "(40, 2, False, '<hiwater.CellLogger stopped, 2 cells>')"


def test_a_traceback_that_keeps_memory(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater\n%hiwater on",
            "shared = bytearray(30 << 20)\ndef small(given):\n    1 / 0\nsmall(shared)",
            "def large():\n    lost = bytearray(50 << 20)\n    raise KeyError\nlarge()",
            "1",
            "%hiwater forget",
        ],
    )
    assert len(shown[1].lines) == 1  # what it keeps is a variable of the notebook
    assert len(shown[2].lines) == 2 and "50.0 MiB alive, most in lost in large" in shown[2].lines[1]
    assert len(shown[3].lines) == 1
    assert figure(shown[4].lines[-1], "kept") < -49


@needs_engine
def test_a_recorded_cell(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            "def make(size):\n    return bytearray(size)",
            "%%hiwater\nimport asyncio\nawait asyncio.sleep(0)\na = make(30 << 20)\nb = bytearray(10 << 20)\nlen(b)",
            "%%hiwater --kept --lines -o kept.hiw\ndel a\nc = make(20 << 20)\nmake(50 << 20)\nraise ValueError('no')",
            "%hiwater d = make(5 << 20)",
            "%hiwater len(d) + 1",
            "%%filprofile\n%%time\ne = make(6 << 20)",
            "%%hiwater\n3",
            "import sys\nsorted({'numpy', 'rich', 'hiwater.report'} & {*sys.modules}), _i3.splitlines()[0]",
        ],
    )
    assert shown[2].value == "10485760" and "cell [3], " in shown[2].report
    first = shown[2].report.splitlines()[0]
    said = (
        r"; 4\d\.\d MiB allocated at the peak; most at cell \[2\]:2 in make: 30\.0 MiB \(7\d\.\d %\)  return "
        r"bytearray\(size\)$"
    )
    assert re.search(said, first), first
    assert re.search(r"30\.0 MiB +7\d\.\d %  cell \[2\]:2 +return bytearray\(size\)", shown[2].report)
    assert re.search(r"10\.0 MiB +2\d\.\d %  cell \[3\]:5 +b = bytearray\(10 << 20\)", shown[2].report)
    assert shown[3].error == "ValueError: no" and "c = make(20 << 20)" in shown[3].report
    assert re.search(r"20\.0 MiB .* return bytearray\(size\)", shown[3].report)
    assert "\x1b" not in shown[3].report and "capture " in shown[3].report
    assert re.search(r"5\.\d MiB allocated", shown[4].report) and shown[5].value == "5242881"
    assert "6.0 MiB " in shown[6].report and "Wall time" in shown[6].printed
    assert (
        "code that none of your lines called: the kernel's own" in shown[7].report
        and "codeop.py" not in shown[7].report
    )
    assert shown[8].value == "([], '%%hiwater')"
    assert shown[2].displays[0]["text/html"].count('sandbox="allow-scripts"') == 1
    page = page_reader.Page(shown[2].page)
    texts = {
        page.capture["files"][one["file"]]["name"]: one["pieces"][0]["text"] for one in page.capture["source"]["files"]
    }
    assert texts["cell [2]"] == "def make(size):\n    return bytearray(size)" and texts["cell [3]"].startswith(
        "%%hiwater\nimport"
    )
    capture = hiwater.open(tmp_path / "kept.hiw")
    assert capture.problems() == [] and all(file.name.startswith("cell [") for file in capture.tables.cells.values())
    held = rank_lines(capture.tables, Report(capture, capture.end).holdings).lines[0]
    assert (held.frame.file, held.frame.line, held.bytes >> 20) == ("cell [2]", 2, 20)


@needs_engine
def test_a_statement_that_awaits_is_recorded(tmp_path: Path) -> None:
    code = "async def load(size):\n    x = bytearray(size)\n    await asyncio.sleep(0)\n    return x"
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            f"import asyncio\n{code}",
            "%hiwater await load(5 << 20); 7",
            "%hiwater --sample 64KiB -o some.hiw x = await load(6 << 20)",
            "y = %hiwater len(await load(7 << 20))\ny, len(x)",
            "%%hiwater\nz = len(await load(8 << 20))\nz",
            "%%hiwater\nfrom __future__ import annotations\nlen(await load(9 << 20))",
            "%hiwater await load('no')",
            "def f():\n    %hiwater 1 + 1\nf()",
            "%hiwater [await load(1) for _ in range(2)][0] == bytearray(1)",
            "%autoawait off",
            "%hiwater await load(5 << 20)",
        ],
    )
    for place, size in ((2, 5), (3, 6), (4, 7), (5, 8), (6, 9)):
        assert f"{size}.0 MiB" in shown[place].report and "x = bytearray(size)" in shown[place].report, place
    assert (shown[2].value, shown[4].value) == ("7", "(7340032, 6291456)")
    assert (shown[5].value, shown[6].value) == ("8388608", "9437184")
    assert shown[7].error == "TypeError: string argument without an encoding" and shown[7].report
    assert shown[8].report and shown[9].value == "True"
    assert "'await' outside" in shown[11].error or "outside async function" in shown[11].error
    assert (tmp_path / "some.hiw").exists()


@needs_engine
def test_stacks_begin_at_the_cell(tmp_path: Path) -> None:
    notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            "def deep(n):\n    return deep(n - 1) if n else bytearray(8 << 20)",
            (
                "%%hiwater -o a.hiw\nimport threading\nx = deep(3)\ny = []\n"
                "one = threading.Thread(target=lambda: y.append(deep(0)))\none.start(); one.join()"
            ),
            "%hiwater -o b.hiw x = deep(1)",
        ],
    )
    for name, outermost, depth in (("a.hiw", "cell [3]", 5), ("b.hiw", "cell [4]", 3)):
        stacks = [stack for stack in hiwater.open(tmp_path / name).peak.stacks if stack.bytes >= 8 << 20]
        assert {stack.frames[0].file for stack in stacks} == {outermost}
        assert depth in {len(stack.frames) for stack in stacks}
    assert len([s for s in hiwater.open(tmp_path / "a.hiw").peak.stacks if s.bytes >= 8 << 20]) == 2


@needs_engine
def test_a_recording_in_a_recorded_cell_is_a_window_of_it(tmp_path: Path) -> None:
    cell = "%%hiwater -o a.hiw\nx = bytearray(8 << 20)\n%hiwater -o b.hiw y = bytearray(4 << 20)"
    shown = notebooks.run(tmp_path, ["%load_ext hiwater", cell, "len(y) >> 20"])
    assert shown[2].value == "4", shown
    outer, inner = (hiwater.open(tmp_path / name) for name in ("a.hiw", "b.hiw"))
    assert (recorded_window(outer.tables) is None, recorded_window(inner.tables) is None) == (True, False)
    assert inner.peak.allocated_bytes >> 20 == 12


@needs_engine
def test_a_recording_over_several_cells_names_them(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "import hiwater\nrecorder = hiwater.record('run.hiw')\nrecorder.start()",
            "def load():\n    return bytearray(40 << 20)\nheld = load()",
            "recorder.snapshot('early.hiw')\nmore = bytearray(20 << 20)",
            "recorder.stop()\nprint(recorder.summary()['top_line']['file'])",
        ],
    )
    assert shown[3].printed == "cell [2]\n"
    report = hiwater_text(tmp_path, "run.hiw")
    assert "most at cell [2]:2 in load: 40.0 MiB" in report
    assert re.search(r"20\.\d MiB .* cell \[3\]:2  more = bytearray\(20 << 20\)", report), report
    early = hiwater_text(tmp_path, "early.hiw")
    assert "cell [2]:2  return bytearray(40 << 20)" in early and "ipykernel_" not in early


WINDOW = "%%hiwater\nmore = bytearray(9 << 20)"


@needs_engine
@pytest.mark.parametrize(("words", "sizes"), [((), (60, 40)), (("--no-argv",), (60,))])
def test_kernels_that_a_recorded_program_starts_name_their_cells(
    tmp_path: Path, words: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    """Each runs a notebook of its own: what is in the first cell of one is no part of the other's."""
    program, client = tmp_path / "program.py", ROOT / "tests" / "helpers" / "notebook_client.py"
    for size in sizes:
        cells = [f"import time\nkept = bytearray({size} << 20)\ntime.sleep(1)", "%load_ext hiwater", WINDOW]
        asked = {"folder": str(tmp_path / str(size)), "cells": cells, "environment": {}}
        (tmp_path / f"{size}.json").write_text(json.dumps(asked))
    program.write_text(
        "import subprocess, sys\n"
        f"each = [subprocess.Popen([sys.executable, {str(client)!r}, f'{{size}}.json', f'{{size}}.out'])\n"
        f"        for size in {sizes}]\n"
        "sys.exit(sum(one.wait() for one in each))\n"
    )
    run_hiwater("run", "-q", *words, "-o", "run.hiw", program, folder=tmp_path, check=True)
    whole = hiwater_text(tmp_path, "run.hiw")
    assert re.search(r"most at cell \[1\] [0-9a-f]{4}:2 in <module>: 60\.\d MiB", whole), whole
    reports = "".join(hiwater_text(tmp_path, str(path)) for path in (tmp_path / "run.hiw.d").glob("*.hiw"))
    for size in sizes:
        text = "" if words else rf"  kept = bytearray\({size} << 20\)"
        assert re.search(rf" {size}\.\d MiB .*cell \[1\] [0-9a-f]{{4}}:2{text}\n", reports), reports
        *_, shown = json.loads((tmp_path / f"{size}.out").read_text())
        (window,) = [one["text/plain"] for one in shown["displays"]]  # of the same recording, so with the same names
        assert re.search(r" 9\.0 MiB .* cell \[3\] [0-9a-f]{4}:2\b", window), window


def hiwater_text(folder: Path, *words: str) -> str:
    return run_hiwater("report", *words, "--format", "text", folder=folder, check=True).stdout


@needs_engine
def test_what_is_asked_for_wrongly(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            "%%hiwater --wrong\nran = 1",
            "%%hiwater --sample banana\nran = 1",
            "%%hiwater -o /nowhere/x.hiw\nran = 1",
            "%%hiwater 1 + 1\nran = 1",
            "%hiwater",
            "%hiwater on --loud",
            "%hiwater timeline",
            "'ran' in globals()",
            "%%hiwater --sample 64KiB\nx = [bytearray(100) for _ in range(20_000)]",
        ],
    )
    assert all("UsageError" in cell.printed + (cell.error or "") for cell in shown[1:8]), shown[1:8]
    assert "is not a size" in shown[2].printed
    assert shown[8].value == "False" and "(standard error)" in shown[9].report


@needs_engine
def test_native_frames_of_a_cell(tmp_path: Path) -> None:
    cells = [
        "%load_ext hiwater\nimport json",
        "%%hiwater --native -o cell.hiw\nkept = [json.dumps([number]) for number in range(2_000)]",
        "%hiwater --native -o statement.hiw kept = json.dumps([7])",
    ]
    shown = notebooks.run(tmp_path, cells)
    assert "json.dumps" in shown[1].report and shown[1].error is None
    for name in ("cell", "statement"):
        assert hiwater.open(tmp_path / f"{name}.hiw").tables.has_native_frames


@needs_engine
def test_again_and_again(tmp_path: Path) -> None:
    """A hundred cells, every tenth one recorded: neither the process nor what hiwater keeps grows."""
    step = "import gc\ngc.collect()\nfrom hiwater.meters import process\nsizes.append(process.ResidentMeter().now())"
    body = [
        "%%hiwater\nx = bytearray(1 << 20)" if number % 10 == 0 else f"x = bytearray({number}_000)"
        for number in range(50)
    ]
    shown = notebooks.run(
        tmp_path,
        ["%load_ext hiwater\n%hiwater on\nsizes = []", *body, step, *body, step, "raise ValueError(*sizes)",
         "import glob, tempfile\nglob.glob(tempfile.gettempdir() + '/hiwater-*')"],
        {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    middle, end = map(int, re.findall(r"\d+", shown[-2].error or ""))
    assert end - middle < 4 * MIB, (middle, end)
    assert shown[-1].value == "[]" and len([cell for cell in shown if cell.displays]) == 104


def test_pauses_between_cells_do_not_hide_them() -> None:
    """Two cells of a second each, more than an hour apart: the drawing is a little over two seconds long."""
    cells = [
        {"name": f"[{at}]", "start": start, "seconds": 1.0, "start_bytes": 1, "peak_bytes": MIB, "end_bytes": 2}
        for at, start in ((1, 5.0), (2, 4000.0))
    ]
    said = drawn(cells)["text/plain"]
    assert said.startswith("2 cells; long pauses between them are shortened\n") and " 2.10 s" in said
    close = drawn([cells[0], {**cells[1], "start": 6.05}])["text/plain"]
    assert close.startswith("2 cells\n") and " 2.05 s" in close


@needs_engine
def test_a_thousand_cells_do_not_grow() -> None:
    """Beyond what IPython itself keeps of each: the figures of the history, which has an end, and IPython's own
    record of what was displayed."""
    found = {}
    for words in ("on", "off"):
        command = [sys.executable, "-W", "ignore", str(PROGRAMS / "thousand_cells.py"), words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[words] = json.loads(done.stdout)
    assert found["on"]["heap"] - found["off"]["heap"] < 2 * MIB, found
    assert found["on"]["resident"] - found["off"]["resident"] < 6 * MIB, found


def test_garbage_that_a_cell_drops(tmp_path: Path) -> None:
    """A cycle with 40 MiB, made by one cell and dropped by others in many manners."""
    make = (
        "class Model: pass\ndef model():\n    one = Model(); one.me = one; one.held = bytearray(40 << 20)\n"
        "    return one"
    )
    shown = notebooks.run(
        tmp_path,
        [
            f"%load_ext hiwater\n%hiwater on\n{make}",
            "x = model()",
            "x = 1",
            "x = model()",
            "del x",
            "model(); y = 1",
            "import time; x = model()",
            "x = model()",
        ],
    )
    kept = [round(figure(cell.lines[0], "kept") / 40) for cell in shown[1:]]
    assert kept == [1, -1, 1, -1, 0, 1, 0]


@needs_engine
def test_the_example(tmp_path: Path) -> None:
    """examples/notebook.ipynb shows what its text says."""
    skip_without("pandas", "matplotlib")
    example = json.loads((ROOT / "examples" / "notebook.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in example["cells"] if cell["cell_type"] == "code"]
    shown = notebooks.run(tmp_path, cells)
    assert [cell.error for cell in shown] == [None] * len(cells)
    assert all(not cell["outputs"] for cell in example["cells"] if cell["cell_type"] == "code")
    by_cell = {source.splitlines()[-1]: one for source, one in zip(cells, shown, strict=True)}
    table = figure(by_cell["readings = load()"].lines[-1], "kept", "allocated")
    whole, apart = (
        figure(by_cell[f"means = {name}(readings)"].lines[0], "peak", "allocated") for name in ("hourly", "one_by_one")
    )
    assert whole > 2.5 * table > 1.5 * apart
    assert 'dry = stamped[stamped["humidity"] < 80]' in by_cell["means = hourly(readings)"].report
    assert figure(by_cell["del readings"].lines[0], "kept", "allocated") == 0
    assert " seen (list)" in by_cell["%hiwater vars"].lines[0] or "_11 (DataFrame" in by_cell["%hiwater vars"].lines[0]
    assert figure(by_cell["%xdel _11"].lines[0], "kept", "allocated") < -0.9 * table
    assert "image/png" in shown[-1].displays[0]


def test_variables(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            (
                "import numpy as np, pandas as pd\nbase = np.ones(5 << 17)\npart = base[100:]\n"
                "frame = pd.DataFrame({'a': np.ones(3 << 17), 'b': 1})\n"
                "words = ['x' * 1000 + str(n) for n in range(2000)]\nagain = words\n"
                "loop = []; loop.append(loop)\nbase[:10]"
            ),
            "%hiwater vars",
        ],
    )
    rows = {row.split()[4]: row for row in shown[2].lines[0].splitlines()[1:-1] if len(row.split()) > 4}
    assert rows["base"].split()[:4] == ["5.00", "MiB", "5.00", "MiB"]
    assert rows["part"].split()[1] == "B" and rows["part"].endswith("(ndarray, view of base)")
    assert rows["frame"].split()[0] == "6.00" and rows["frame"].split()[2] == "6.00"
    assert float(rows["words"].split()[2]) > 1.9 and "shares storage with" in rows["again"] + rows["words"]
    assert re.search(r"1\d\.\d MiB +together", shown[2].lines[0])


def test_the_timeline(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater\n%hiwater on",
            "x = bytearray(60 << 20)",
            "del x",
            "%hiwater timeline",
            "import hiwater.notebook\nprint(hiwater.notebook.timeline())",
            "import sys\n'matplotlib' in sys.modules",
        ],
    )
    picture = shown[3].displays[0]
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG") and "[2]" in picture["text/plain"]
    assert "4 cells" in shown[4].printed or "3 cells" in shown[4].printed
    assert shown[5].value == "False"


def test_a_timeline_without_matplotlib_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    cell = {"name": "[1]", "start": 5.0, "seconds": 1.0, "start_bytes": 1, "peak_bytes": 3 * MIB, "end_bytes": 2 * MIB}
    said = drawn([cell])
    assert list(said) == ["text/plain"] and "peak" in said["text/plain"] and "3.0 MiB" in said["text/plain"]


def test_the_drop_in(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            (
                "from ipygpulogger import IPyGPULogger\nil = IPyGPULogger(compact=False, gc_collect=True)\n"
                "il.start() is il"
            ),
            "x = bytearray(50 << 20); len([0] * 30_000_000)",
            "data = il.data\ndata",
            (
                "gen_mem_used_delta, gen_mem_peaked, gen_mem_used, gpu_mem_used_delta, gpu_mem_peaked, "
                "gpu_mem_used, time_delta = data\n"
                "(gen_mem_used_delta, gen_mem_peaked, gpu_mem_used), data.cpu, data.gpu.used_total, "
                "data.time.time_delta == time_delta"
            ),
            "il.compact = True",
            "il.stop()",
            "1",
        ],
        {"PYTHONPATH": folder()},
    )
    assert re.match(r"RAM: Consumed Peaked  Used Total  in \d+\.\d{3}s", shown[1].lines[0])
    # Resident memory: some of the 228.9 MiB may lie in what was there before.
    assert re.match(
        r"Data\(gen_mem_used_delta=50, gen_mem_peaked=22[89], gen_mem_used=\d+, "
        r"gpu_mem_used_delta=0, gpu_mem_peaked=0, gpu_mem_used=0, time_delta=[\d.]+\)$",
        shown[2].value or "",
    )
    assert re.match(
        r"\(\(50, 22[89], 0\),\s+IPyGPULoggerMemory\(used_delta=50, peaked_delta=22[89], "
        r"used_total=\d+\),\s+0,\s+True\)",
        shown[3].value or "",
    )
    assert shown[4].lines[0].startswith("CPU: ") and shown[6].lines == []


def test_magics_of_memory_profiler_come_along(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater",
            "def f(n):\n    x = [0] * n\n    return len(x)",
            "r = %memit -o f(30_000_000)",
            "228 < r.mem_usage[0] - r.baseline < 232",
            "%mprun -T out.txt -f f f(3_000_000)",
        ],
    )
    assert shown[3].value == "True" and "peak memory" in shown[2].printed
    assert "x = [0] * n" in (tmp_path / "out.txt").read_text("utf-8")


@needs_engine
def test_a_terminal(tmp_path: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
        env={**os.environ, "IPYTHONDIR": str(tmp_path), "TERM": "dumb"},
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=300,
    )
    log = io.StringIO()
    child.logfile_read = log
    try:
        for number, line in enumerate(
            [
                "%load_ext hiwater",
                "%hiwater on",
                "n = len([0] * 30_000_000)",
                "def make(): return bytearray(9 << 20)",
                "%hiwater x = make()",
                "%hiwater off",
                "1/0",
            ],
            1,
        ):
            child.expect_exact(f"In [{number}]: ")
            child.sendline(line)
        child.expect_exact("In [8]: ")
        child.sendline("exit")
        child.expect(pexpect.EOF)
    finally:
        child.close(force=True)
    said = log.getvalue()
    assert re.search(r"\[3\] \d\.\d\d s · resident: peak \+22[89]\.\d MiB", said), said
    assert re.search(r"9\.0 MiB +\d+\.\d %  cell \[4\]:1 +def make", said), said
    assert "ZeroDivisionError" in said and "[7]" not in re.findall(r"^\[7\].*resident", said, re.MULTILINE)


def test_importing_hiwater_loads_no_notebook() -> None:
    code = (
        "import sys, hiwater; hiwater.load_ipython_extension; print([n for n in sys.modules if "
        "n.startswith(('IPython', 'hiwater.'))])"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.strip() == "['hiwater.notebook']"
