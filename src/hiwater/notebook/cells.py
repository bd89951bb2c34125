"""The cells of this session: what readers should call their code, and its text. `hiwater/capture/cells.py` reads what is noted here."""

from __future__ import annotations

import linecache
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hiwater.recording.recorder import Recorder

BEGIN_MAGIC = "hiwater_begin"
_FACT = "cell "
_RECORDED = "recorded cell"
_MOST_TEXT = 2_000_000  # characters in all, as in a page; the latest cells come first
_LONGEST_FACT = 50_000
_numbers: dict[str, int] = {}  # of code by its file name, where IPython does not say
_read = 1  # cells of the history that are in there
_BEGIN_CALL = re.compile(rf"get_ipython\(\)\.run_line_magic\('{BEGIN_MAGIC}', ([^\n]*)\)")


def note(recorder: Recorder, shell: Any, recorded: str) -> None:
    """Have the session's cells in the capture that `recorder` will make. `recorded` is the file name in the code that is to run."""
    recorder.note(_RECORDED, recorded)
    room = _MOST_TEXT
    taken: set[str] = set()
    for file, name, text in reversed(_cells(shell)):
        room -= len(text)
        if room < 0 and file != recorded:
            continue
        unique, copies = name, 1
        while unique in taken:
            copies += 1
            unique = f"{name} ({copies})"
        taken.add(unique)
        recorder.note(_FACT + file, f"{unique}\n{text}")


def _cells(shell: Any) -> list[tuple[str, str, str]]:
    """(file name, what it is called, text) of each cell whose code was compiled, in their order."""
    found = []
    for file, entry in list(linecache.cache.items()):
        execution = number(shell, file)
        if execution is not None and len(entry) > 2:
            text = _BEGIN_CALL.sub(_as_typed, "".join(entry[2]), count=1)
            found.append((file, f"cell [{execution}]", text[:_LONGEST_FACT]))
    return found


def number(shell: Any, file: str) -> int | None:
    """The execution number of the cell with this code; None for any other file. IPython's own traceback asks the same way."""
    if not hasattr(shell.compile, "format_code_name"):
        return _number_before_8_7(shell, file)
    said = shell.compile.format_code_name(file)
    match = re.search(r"\[(\d+)\]", said[1]) if said else None
    return int(match[1]) if match else None


def compiled(shell: Any, text: str, execution: int, typed: str) -> str:
    """Have IPython keep the text of code that is run beside the cells, and return the file name to compile it with."""
    file: str = shell.compile.cache(text, execution, raw_code=typed)
    _numbers[file] = execution
    return file


def _number_before_8_7(shell: Any, file: str) -> int | None:
    """The same where IPython has no name for code: from 8.0 on it knows the numbers, in 7 (Colab's) a terminal's file name has one in it."""
    match = re.match(r"<ipython-input-(\d+)-", file)
    if match:
        return int(match[1])
    known: dict[str, int] = getattr(shell.compile, "_filename_map", None) or _from_history(shell)
    return known.get(file)


def _from_history(shell: Any) -> dict[str, int]:
    """Numbers by file names for a kernel with IPython 7, which makes the name from what was typed alone; the history has that, too."""
    global _read  # noqa: PLW0603 - a session has one history
    typed = shell.history_manager.input_hist_raw
    for execution in range(_read, len(typed)):
        for end in ("", "\n"):  # the history leaves it out
            _numbers[shell.compile.get_code_name(typed[execution] + end, "", execution)] = execution
    _read = len(typed)
    return _numbers


def _as_typed(match: re.Match[str]) -> str:
    import ast

    try:
        magic, options = ast.literal_eval(match[1]).partition(" ")[::2]
    except (SyntaxError, ValueError):
        return match[0]
    return f"%%{magic} {options}".rstrip()
