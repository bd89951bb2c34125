"""How much of the memory below native frames has the name of a function, and a line of its source."""

from __future__ import annotations

import re

import numpy as np

from hiwater.capture import Snapshot
from hiwater.capture.format import CODE_NATIVE

_UNNAMED = re.compile(r".*\+0x[0-9a-f]+|\[.*\]", re.DOTALL)
"""What stands in the place of a name: a library and a place in it, or a word for what is not known."""


def notes(snapshot: Snapshot) -> list[str]:
    """One sentence, if native frames are shown and hold anything."""
    tables = snapshot.tables
    nodes, codes = tables["nodes"], tables["codes"]
    is_native = codes["kind"] == CODE_NATIVE
    node = tables.account_node
    holds = is_native[nodes["code"][node]] & (node != 0) & (snapshot.bytes > 0)
    whole = int(snapshot.bytes[holds].sum())
    if not whole:
        return []
    names, name = tables.functions
    has_name = np.array([_UNNAMED.fullmatch(one) is None for one in names], bool)[name]
    named, lined = (
        100 * int(snapshot.bytes[holds & chosen[node]].sum()) // whole
        for chosen in (has_name[nodes["code"]], nodes["line"] > 0)
    )
    return [
        f"of the memory that native functions allocated, {named} % has their names and {lined} % their source lines"
    ]
