"""Code of a notebook that another process sent to the recorded one: cloudpickle sends it without the name of its cell.

The process that sends it knows the cells, and the capture has them as a fact: JSON, by file a list of pairs of a
qualified name and the first line of its code.
"""

from __future__ import annotations

import json

FACT = "sent code"  # as in hiwater/contrib/cluster/sent_code.py, which writes it


def read(fact: str) -> dict[tuple[str, int], str]:
    """The files by name and first line; "" for what is in several. A fact that is none of ours has nothing."""
    files: dict[tuple[str, int], str] = {}
    try:
        for file, places in json.loads(fact).items():
            for function, line in places:
                files[function, line] = file if files.get((function, line), file) == file else ""
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return files
