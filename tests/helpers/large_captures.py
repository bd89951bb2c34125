"""Captures that are larger in one way than a program usually makes them: deep, wide or long. Laid out by whole arrays.

Each holds something on every call path, so that a view which writes each stack whole writes depth × stacks frames.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from capture_builder import DTYPES, THREAD, Recording, assemble

FILE = "/home/user/project/package/module.py"


def laid_out(small: Recording, nodes: Any, *, kinds: int = 1, more: dict[str, Any] | None = None) -> bytes:
    """A capture with these nodes (1 is the thread's), each of which holds a block of 1,000 to 1,999 bytes of each
    kind."""
    tables = small.tables()
    holders = np.repeat(np.arange(2, len(nodes)), kinds)
    accounts = np.zeros(len(holders) + 1, DTYPES["accounts"])
    accounts["node"][1:] = holders
    accounts["kind"][1:] = np.tile(np.arange(kinds), len(nodes) - 2)
    accounts["live_bytes"][1:] = 1000 + np.arange(len(holders)) * 7919 % 1000
    accounts["live_blocks"][1:] = 1
    accounts["total_bytes"], accounts["total_blocks"] = accounts["live_bytes"], accounts["live_blocks"]
    tables.update(nodes=nodes, accounts=accounts, account_peaks=np.zeros(len(accounts), DTYPES["account_peaks"]))
    tables.update(more or {})
    live, blocks = int(accounts["live_bytes"].sum()), int(accounts["live_blocks"].sum())
    header = {
        **small.header, "live_bytes": live, "slice_peak_bytes": live, "live_blocks": blocks,
        "slice_peak_blocks": blocks, "generation": 2, "slice_peak_ns": 10**9, "ended_ns": 2 * 10**9, "state": 2,
        "exit_code": 0,
    }  # fmt: skip
    return assemble(header, tables)


def _started(functions: int, program: str) -> tuple[Recording, int]:
    """A recording that knows this many functions, and the number of the first one's code."""
    small = Recording()
    small.fact("program", program)
    thread = small.code("MainThread", kind=THREAD)
    for number in range(functions):
        small.code(f"function_{number}", FILE, 1)
    return small, thread + 1


def deep(
    path: Path, depth: int = 20_000, functions: int = 1, chains: int = 1, more: dict[str, Any] | None = None
) -> Path:
    """Chains of calls, each `depth` deep, through so many functions in turn; every frame holds a block."""
    small, first = _started(functions, "deep.py")
    nodes = np.zeros(2 + depth * chains, DTYPES["nodes"])
    nodes["code"][1] = first - 1
    level, chain = np.divmod(np.arange(depth * chains), chains)
    nodes["parent"][2:] = np.where(level == 0, 1, np.arange(2, len(nodes)) - chains)
    nodes["code"][2:] = first + level % functions
    nodes["line"][2:] = np.where(level == 0, 10 + chain, 7)
    path.write_bytes(laid_out(small, nodes, more=more))
    return path


def wide(path: Path, stacks: int = 100_000, kinds: int = 1, functions: int = 400) -> Path:
    """A tree of calls that fans out by two on average, 16 deep for 100,000 stacks; every frame holds a block of each
    kind."""
    random = np.random.default_rng(7)
    small, first = _started(functions, "wide.py")
    nodes = np.zeros(stacks + 2, DTYPES["nodes"])
    nodes["code"][1] = first - 1
    number = np.arange(2, len(nodes))
    nodes["parent"][2:] = np.maximum(1, number // 2 - random.integers(0, 3, stacks))
    nodes["code"][2:] = first + random.integers(0, functions, stacks)
    nodes["line"][2:] = random.integers(1, 60, stacks)
    path.write_bytes(laid_out(small, nodes, kinds=kinds))
    return path


def of_worker(number: int, stacks: int) -> bytes:
    """The capture of one worker of a job, of eight on a machine: calls as in `wide()`, of which no two workers have
    the same."""
    random = np.random.default_rng(number)
    small, first = _started(400, "worker.py")
    for fact, value in (("host", f"node{number // 8}"), ("engine", "test"), ("worker", f"worker {number}")):
        small.fact(fact, value)
    small.header["pid"] = 1000 + number
    small.header["boot_id"] = f"boot-of-node{number // 8}".encode()
    nodes = np.zeros(stacks + 2, DTYPES["nodes"])
    nodes["code"][1] = first - 1
    places = np.arange(2, len(nodes))
    nodes["parent"][2:] = np.maximum(1, places // 2 - random.integers(0, 3, stacks))
    nodes["code"][2:] = first + random.integers(0, 400, stacks)
    nodes["line"][2:] = random.integers(1, 60, stacks)
    return laid_out(small, nodes)


def threads(path: Path, count: int = 100_000) -> Path:
    """So many threads, each with a name of its own and a block."""
    small, first = _started(1, "threads.py")
    codes = [small.code(f"worker-{number}", kind=THREAD) for number in range(count)]
    nodes = np.zeros(2 + 2 * count, DTYPES["nodes"])
    nodes["code"][1] = first - 1
    nodes["code"][2::2], nodes["code"][3::2] = codes, first
    nodes["parent"][3::2] = np.arange(2, len(nodes), 2)
    nodes["line"][3::2] = 7
    path.write_bytes(laid_out(small, nodes))
    return path


def long(path: Path, slices: int = 5_000, marks: int = 100_000, points: int = 100_000) -> Path:
    """Many slices of time that each list some changes, marks, and points of the timeline."""
    small, first = _started(1, "long.py")
    nodes = np.zeros(1002, DTYPES["nodes"])
    nodes["parent"][2:], nodes["code"][1], nodes["code"][2:] = 1, first - 1, first
    nodes["line"][2:] = np.arange(1, 1001)
    row = np.zeros(slices, DTYPES["slices"])
    row["start_ns"], row["end_ns"] = np.arange(slices) * 1000, np.arange(1, slices + 1) * 1000
    row["peak_ns"], row["first_entry"], row["entry_count"] = row["start_ns"] + 5, np.arange(slices) * 10, 10
    row["unlisted_bytes"] = 1
    entries = np.zeros(slices * 10, DTYPES["slice_entries"])
    entries["account"], entries["bytes"], entries["blocks"] = 1 + np.arange(slices * 10) % 1000, 100, 1
    marked = np.zeros(marks, DTYPES["markers"])
    marked["at_ns"], marked["value"], marked["kind"] = np.arange(marks) * 10, 3, 4
    marked["node"] = 2 + np.arange(marks) % 1000
    line = np.zeros(points, DTYPES["timeline"])
    line["at_ns"], line["resident_bytes"] = np.arange(points) * 1000, 1 << 24
    more = {"slices": row, "slice_entries": entries, "markers": marked, "timeline": line}
    path.write_bytes(laid_out(small, nodes, more=more))
    return path
