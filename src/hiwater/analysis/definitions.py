"""Which function of the source each code object is part of.

Functions of one file may have the same name: all lambdas have. They are told apart by their first lines. A function
that was compiled twice is one function. A comprehension is part of the function that called it, although it has a code
object of its own up to Python 3.11.
"""

from __future__ import annotations

import numpy as np

from hiwater.analysis.naming import function_of
from hiwater.capture.paths import Ints
from hiwater.capture.tables import Tables


def functions_of_codes(tables: Tables) -> tuple[Ints, Ints]:
    """For each code object the one that stands for its function, and a number that code objects of one function
    share."""
    codes = tables["codes"]
    (names, name), (_, file) = tables.functions, tables.files
    around = _functions_around(tables, names, name, file)
    wheres, where = np.unique(file[around] << 32 | codes["first_line"][around], return_inverse=True)
    _, first, number = np.unique(name[around] * max(1, len(wheres)) + where, return_index=True, return_inverse=True)
    return around[first][number], number


def _functions_around(tables: Tables, names: list[str], name: Ints, file: Ints) -> Ints:
    """For each code object itself; for a comprehension the code object that called it, if that is the function
    around it."""
    nodes = tables["nodes"]
    around = np.arange(len(name))
    outer = [function_of(text) for text in names]
    is_part = np.array([text != around_it for text, around_it in zip(names, outer, strict=True)], bool)[name]
    code = nodes["code"].astype(np.int64)
    parts = np.flatnonzero(is_part[code] & (nodes["parent"] != 0))
    callers = code[nodes["parent"][parts]]
    _, first = np.unique(code[parts] * len(name) + callers, return_index=True)
    for place in np.sort(first).tolist():  # callers first: their nodes have smaller numbers
        part, caller = int(code[parts[place]]), int(callers[place])
        if outer[name[part]] == outer[name[caller]] and file[part] == file[caller]:
            around[part] = around[caller]
    return around
