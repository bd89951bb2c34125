"""The names and the source of an IPython session's cells, for captures. `hiwater/capture/cells.py` reads them."""

from __future__ import annotations

import linecache
import re
import sys
from contextlib import suppress

from hiwater._os.ownership import number_of_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from hiwater.recording.recorder import Recorder

_FACT = "cell "
_RECORDED = "recorded cell"
_MOST_TEXT = 2_000_000  # characters of all cells together; the latest cells come first
_LONGEST_FACT = 50_000
_numbers: dict[str, int] = {}  # of code by its file name, where IPython does not say
_read = 1  # cells of the history that are in there


def note(recorder: Recorder, shell: Any, recorded: str) -> None:
    """Add the session's cells to the capture of `recorder`. `recorded` is the file name of the code that will run."""
    recorder.note(_RECORDED, recorded)
    for key, value in facts(shell, recorded):
        recorder.note(key, value)


def facts(shell: Any, recorded: str = "", *, of_many: bool = False) -> Iterator[tuple[str, str]]:
    """The session's cells as facts, the latest first, and the one that is recorded whatever its size. If the run may
    have sessions in several processes, `of_many`, a name ends with a number that tells its text from others."""
    room = _MOST_TEXT
    taken: set[str] = set()
    for file, name, text in reversed(of_session(shell)):
        room -= len(text)
        if room < 0 and file != recorded:
            continue
        whole = f"{name} {number_of_text(text)}" if of_many else name
        unique, copies = whole, 1
        while unique in taken:
            copies += 1
            unique = f"{whole} ({copies})"
        taken.add(unique)
        yield _FACT + file, f"{unique}\n{text}"


def note_late(note_fact: Callable[[str, str], None], known: dict[str, str], *, of_many: bool, with_text: bool) -> None:
    """Add the cells of this process to the capture that is being written, and to `known`, which has those that were
    added before. The shell is the program's: if it raises, the cells keep the names of their files."""
    with suppress(Exception):
        shell = session()
        for key, value in facts(shell, of_many=of_many) if shell is not None else ():
            if key not in known:
                known[key] = value if with_text else value.partition("\n")[0]
                note_fact(key, known[key])


def shown(file: str, known: dict[str, str]) -> str:
    """What readers call a file: the name of its cell, if `known` has that."""
    return known.get(_FACT + file, file).partition("\n")[0]


def session() -> Any:
    """IPython's shell of this process, None where there is none. Imports nothing."""
    module = sys.modules.get("IPython.core.getipython")
    return module.get_ipython() if module is not None else None


def of_session(shell: Any) -> list[tuple[str, str, str]]:
    """(file name, what it is called, text) of each cell whose code was compiled, in their order."""
    found = []
    for file, entry in list(linecache.cache.items()):
        execution = number(shell, file)
        if execution is not None and len(entry) > 2:
            found.append((file, f"cell [{execution}]", "".join(entry[2])[:_LONGEST_FACT]))
    return found


def show_first_line(file: str, typed: str) -> None:
    """Have tracebacks and reports show the first line of a cell as it was typed, and not what it was transformed
    into."""
    old: dict[str, Any] = getattr(linecache, "_ipython_cache", {})  # of IPython up to 8
    caches: tuple[dict[str, Any], ...] = (linecache.cache, old)
    for cache in caches:
        entry = cache.get(file)
        if entry is not None and len(entry) > 2:
            cache[file] = (*entry[:2], [f"{typed}\n", *entry[2][1:]], *entry[3:])


def number(shell: Any, file: str) -> int | None:
    """The execution number of the cell with this code, as IPython's traceback finds it; None for any other file."""
    if not hasattr(shell.compile, "format_code_name"):
        return _number_before_8_7(shell, file)
    said = shell.compile.format_code_name(file)
    match = re.search(r"\[(\d+)\]", said[1]) if said else None
    return int(match[1]) if match else None


def compiled(shell: Any, text: str, execution: int, typed: str) -> str:
    """Make IPython keep the text of code that is run in addition to cells, and return the file name with which to
    compile it."""
    file: str = shell.compile.cache(text, execution, raw_code=typed)
    _numbers[file] = execution
    return file


def _number_before_8_7(shell: Any, file: str) -> int | None:
    """The same where IPython has no name for code: from 8.0 on it knows the numbers, in 7 (Colab's) a terminal's
    file name has one in it."""
    match = re.match(r"<ipython-input-(\d+)-", file)
    if match:
        return int(match[1])
    known: dict[str, int] = getattr(shell.compile, "_filename_map", None) or _from_history(shell)
    return known.get(file)


def _from_history(shell: Any) -> dict[str, int]:
    """Numbers by file names for a kernel with IPython 7, which makes the name from what was typed alone; the history
    has that, too."""
    global _read  # noqa: PLW0603 - a session has one history
    typed = shell.history_manager.input_hist_raw
    for execution in range(_read, len(typed)):
        for end in ("", "\n"):  # the history leaves it out
            _numbers[shell.compile.get_code_name(typed[execution] + end, "", execution)] = execution
    _read = len(typed)
    return _numbers
