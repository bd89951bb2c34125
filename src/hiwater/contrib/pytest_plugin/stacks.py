"""Reads a capture of a test in a process of its own, because it needs numpy, which the tests may not load.

`python stacks.py CAPTURE WHAT LEAST FILE LINE` writes JSON. FILE and LINE say where the code of the test begins; leaks
need it. WHAT is one of

- `peak` and `end`: at most ten lines of code that then hold 1 % or more of what was allocated since the window began;
- `allocated` and `blocks`: the same of the bytes and of the number of all allocations of the recording;
- `leaks`: the stacks that hold LEAST bytes or more at the end, below the code of the test and in other threads, not
  those of pytest around it;
- `own leaks`: only those below the code of the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

# As a file: as a module of the plugin it would load pytest, which takes as long as all the rest.
_SOURCE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
SECONDS = 120
ROWS = 10
_MOST_STACKS = 1000
_PYTEST = "/_pytest/runner.py"


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a `Stack`."""

    function: str
    filename: str
    lineno: int


@dataclass(frozen=True, slots=True)
class Stack:
    """What the filter of `limit_leaks` is given: the frames of one call path, the innermost first."""

    frames: tuple[StackFrame, ...]
    bytes: int
    blocks: int


def read(capture: str, what: str, least: int = 0, place: tuple[str, int] = ("", 0)) -> list[dict[str, Any]]:
    """What this module writes when it runs. Raises ValueError with the reason if it fails."""
    command = [
        sys.executable,
        "-c",
        _SOURCE,
        __file__,
        capture,
        what,
        str(least),
        place[0],
        str(place[1]),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(str(error)) from error
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().rpartition("\n")[2])
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str]) -> None:
    """Write the JSON to standard output."""
    # numpy would start threads for matrices, of which there are none
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import hiwater
    from hiwater.analysis.user_lines import rank_lines

    path, what, least, file, line = arguments
    capture = hiwater.open(path)
    holdings = _allocated(capture, what)
    if what.endswith("leaks"):
        holdings = _below(capture.tables, holdings, file, int(line), other_threads=what == "leaks")
        paths = capture.tables.paths
        columns = (holdings.node.tolist(), holdings.bytes.tolist(), holdings.blocks.tolist())
        rows: list[dict[str, Any]] = [
            {
                "bytes": size, "blocks": blocks,
                "frames": [(one.function, one.file, one.line) for one in paths.frames(node)[::-1]],
            }
            for node, size, blocks in zip(*columns, strict=True)
            if size >= int(least)
        ][:_MOST_STACKS]  # fmt: skip
    else:
        ranked = rank_lines(capture.tables, holdings, None if what in ("peak", "end") else {}).rows
        shown = [row for row in ranked if 100 * (row.bytes + row.untouched_bytes) >= holdings.total_bytes]
        rows = [
            {
                "amount": row.bytes + row.untouched_bytes, "library": row.library,
                "function": row.frame.function, "file": row.frame.file, "line": row.frame.line,
            }
            for row in shown[:ROWS]
        ]  # fmt: skip
    json.dump(rows, sys.stdout)


def _allocated(capture: Any, what: str) -> Any:
    """The holdings that `what` is about. The `bytes` of "blocks" are numbers of blocks."""
    from hiwater.capture.slices import find_start

    accounts = capture.tables["accounts"]
    if what in ("allocated", "blocks"):
        of_sums = accounts["total_bytes" if what == "allocated" else "total_blocks"].astype("int64")
        return replace(capture.end, bytes=of_sums, blocks=accounts["total_blocks"].astype("int64")).holdings()
    moment, start = capture.peak if what == "peak" else capture.end, find_start(capture.tables)
    if start is not None:
        moment = replace(moment, bytes=moment.bytes - start.bytes, blocks=moment.blocks - start.blocks)
    holdings = moment.holdings()  # the largest first
    return holdings[: int((holdings.bytes > 0).sum())]


def _below(tables: Any, holdings: Any, file: str, line: int, *, other_threads: bool) -> Any:
    """The part of `holdings` whose call paths pass through the code that begins there, and of threads that pytest
    does not run."""
    import numpy as np

    from hiwater.analysis.call_tree import follow
    from hiwater.capture.snapshot import Holdings

    codes, nodes = tables["codes"], tables["nodes"]
    files = [tables.string(one) for one in codes["file"].tolist()]

    def are_below(is_code: Any) -> Any:
        is_node = is_code[nodes["code"]]
        is_node[:1] = False
        return follow(np.where(is_node, np.arange(len(nodes)), tables.paths.parent)) != 0

    is_part = are_below(np.array([one == file for one in files], bool) & (codes["first_line"] == line))
    if other_threads:
        is_part |= ~are_below(np.array([one.endswith(_PYTEST) for one in files], bool))
    part = np.flatnonzero(is_part[holdings.node])
    return Holdings(
        holdings.node[part],
        holdings.kind[part],
        holdings.bytes[part],
        holdings.blocks[part],
        holdings.sampled[part],
        holdings.sample_bytes,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
