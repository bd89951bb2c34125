"""What a notebook says where something fails: the user's cells as they were typed, and a word that `%hiwater` does
not know."""

from __future__ import annotations

import re
from pathlib import Path

import notebooks
from packages import skip_without
from recording import needs_engine

skip_without("ipykernel", "nbclient")


def stood_at(shown: notebooks.Shown) -> list[str]:
    """The line of each frame at which it stood."""
    return re.findall(r"^-+> (\d+ .*)$", shown.traceback, re.MULTILINE)


@needs_engine
def test_a_traceback_shows_cells_as_they_were_typed_and_no_frames_of_ours(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater\ndef divide(n):\n    return 1 / n",
            "%%hiwater --kept\nx = 1\ndivide(x - 1)",
            "%%hiwater\nfrom __future__ import annotations\ndivide(0)",
            "%hiwater divide(0)",
            "%%filprofile\ndivide(0)",
            "%%hiwater\n%%time\ndivide(0)",
            "%hiwater on\ndivide(0)",
        ],
    )
    typed, future, statement, fil, timed, measured = shown[1:]
    for cell in shown[1:]:
        assert cell.error == "ZeroDivisionError: division by zero"
        assert "src/hiwater" not in cell.traceback and "hiwater_begin" not in cell.traceback, cell.traceback
        assert "magics.py" not in cell.traceback and stood_at(cell)[-1] == "3     return 1 / n"
    assert "      1 %%hiwater --kept\n      2 x = 1\n----> 3 divide(x - 1)" in typed.traceback
    assert stood_at(typed)[:-1] == ["3 divide(x - 1)"] and stood_at(fil)[:-1] == stood_at(measured)[:-1] == [
        "2 divide(0)"
    ]
    assert "      1 %%filprofile\n----> 2 divide(0)" in fil.traceback
    assert "      1 %%hiwater\n      2 from __future__ import annotations\n----> 3 divide(0)" in future.traceback
    assert stood_at(statement)[-2] == "1 divide(0)"
    assert "run_cell_magic('hiwater'" not in timed.traceback


def test_a_word_that_is_not_known(tmp_path: Path) -> None:
    shown = notebooks.run(
        tmp_path,
        [
            "%load_ext hiwater\nnumbers = [1, 2]",
            "%hiwater vras",
            "%hiwater xyzzy",
            "%hiwater timelin now",
            "%hiwater unknown(numbers)",
            "%hiwater total = (",
            "%hiwater total = sum(n * factor for n in numbers)",
            "'total' in globals()",
        ],
    )
    assert all(cell.printed.startswith("UsageError: %hiwater does not know '") for cell in shown[1:7]), shown
    assert all(
        "It takes on, off, vars, holders, timeline, forget or a statement" in cell.printed for cell in shown[1:7]
    )
    assert "did you mean `%hiwater vars`?" in shown[1].printed and "did you mean" not in shown[2].printed
    assert "did you mean `%hiwater timeline`?" in shown[3].printed
    assert "'unknown' is not defined" in shown[4].printed and "is not a statement: " in shown[5].printed
    assert "'factor' is not defined" in shown[6].printed and shown[7].value == "False"


STATEMENTS = (
    "total = sum(n for n in numbers)",
    "f = lambda n, *rest: [m for m in rest]",
    "import json as other, os.path; other.dumps(os.path.sep)",
    "def f(n, *, k=1): return n + k + len(numbers)",
    "{key: value for key, value in zip(numbers, numbers)}",
    "vars()",
    "vars = 3",
    "on.append(3)",
    "!true",
    "del numbers",
)


@needs_engine
def test_a_statement_whose_names_exist_is_recorded(tmp_path: Path) -> None:
    statements = [f"%hiwater {statement}" for statement in STATEMENTS]
    shown = notebooks.run(tmp_path, ["%load_ext hiwater\nnumbers, on = [1, 2], []", *statements])
    for statement, cell in zip(STATEMENTS, shown[1:], strict=True):
        assert (cell.error, "UsageError" in cell.printed) == (None, False), (statement, cell)
        assert cell.report
