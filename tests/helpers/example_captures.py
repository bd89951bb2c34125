"""Captures that many tests read: small ones with known figures, ones that hypothesis makes up, and names that try to
break out of a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from capture_builder import COUNTED_KINDS, FAILED, KINDS, Recording, header_fields
from hiwater import capture as captures
from hiwater.capture import Capture
from hiwater.capture.reader import Contents
from hiwater.capture.references import check_references
from hiwater.capture.tables import Tables

HOSTILE = (
    "</script><script>alert(1)</script>", "a;b", "two\nlines", "\u202egnp.exe", "\U0001f600 smile", "x" * 5000,
    "<b>&amp;\"'", "]]>", "\x1b[2Jclear", "\x00nul", "\ud800", "[bold]markup[/bold]", "\u2028", "", "%s %d {0}", "-->",
    "caf\u00e9",
)  # fmt: skip
each_hostile_name = pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name)[:20] for name in HOSTILE])


FRAME = st.tuples(
    st.sampled_from(("f", "g", "<module>")),
    st.sampled_from(("/app/a.py", "/app/b.py", "/x/site-packages/p/q.py")),
    st.integers(1, 3),
)


STACK = st.tuples(
    st.lists(FRAME, max_size=6),
    st.sampled_from(("MainThread", "worker")),
    st.sampled_from(COUNTED_KINDS),
    st.integers(1, 10_000),
)


STACKS = st.lists(STACK, max_size=25)


EVENTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, len(KINDS) - 1), st.integers(1, 5000), st.integers(0, 9)),
    min_size=1,
    max_size=120,
)


def open_bytes(content: bytes, folder: Path, name: str = "run.hiw") -> Capture:
    path = folder / name
    path.write_bytes(content)
    return captures.open(path)


def small() -> Recording:
    recording = Recording()
    recording.fact("argv", '["etl.py", "--year", "2024"]')
    recording.fact("python", "3.11.7")
    load = recording.path(("<module>", "/app/etl.py", 10), ("load", "/app/etl.py", 3))
    parse = recording.path(("<module>", "/app/etl.py", 12), ("parse", "/app/etl.py", 7), thread="worker")
    recording.allocate(load, 1000)
    recording.allocate(parse, 500, "native")
    recording.allocate(parse, 4096, "mapping")
    recording.allocate(parse, 1 << 20, "reserved")
    recording.free(load, 1000)
    recording.sample(50 << 20)
    recording.end()
    return recording


def in_memory(recording: Recording) -> Capture:
    """The capture without the way through a file: what a kill at this instant leaves behind."""
    header = {name: 0 for name, *_ in header_fields()} | {"heartbeat_ns": recording.now_ns} | recording.header
    tables = recording.tables()
    check_references(header, tables)
    return Capture(Tables(Contents(Path("memory"), header, tables)))


def with_mapped_pages(recording: Recording) -> Capture:
    """The same of the engine: each sample has how many of its bytes are pages of files and of shared memory."""
    capture = in_memory(recording)
    capture.timeline = replace(capture.timeline, mapped_bytes=np.array(recording.mapped_bytes, np.int64))
    return capture


def program() -> Recording:
    """A few stacks of every kind, some of them equal in size."""
    recording = Recording()
    recording.fact("program", "etl.py")
    recording.fact("argv", '["etl.py"]')
    for number, (kind, count) in enumerate(zip(KINDS * 2, (900, 100, 300, 50, 40, 70, 80, 90, 60) * 2, strict=True)):
        leaf = recording.path(
            ("<module>", "/app/etl.py", 1), ("work", "/app/etl.py", number), thread=f"thread-{number % 2}"
        )
        recording.allocate(leaf, count, kind)
    recording.end()
    return recording


def hostile(name: str) -> Recording:
    """A recording in which everything that can have a name has this one."""
    recording = Recording()
    recording.fact("program", name)
    recording.fact("argv", json.dumps([name]))
    recording.fact("cwd", name)
    recording.allocate(recording.path((name, name, 3), (name + "2", "/x/" + name, 4), thread=name), 1000, "native")
    recording.header.update(state=FAILED, stop_reason=recording.string(name), lost_events=1)
    return recording


def recorded(stacks: list[tuple[list[tuple[str, str, int]], str, str, int]]) -> Capture:
    recording = Recording()
    recording.fact("cwd", "/app")
    for frames, thread, kind, size in stacks:
        recording.allocate(recording.path(*frames, thread=thread), size, kind)
    return in_memory(recording)


def made(*stacks: tuple[list[tuple[str, str, int]], int], **facts: str) -> Capture:
    """A capture of (frames, bytes); `first_line` of every function is 1."""
    recording = Recording()
    for key, value in facts.items():
        recording.fact(key, value)
    for frames, count in stacks:
        recording.allocate(recording.path(*frames), count)
    recording.end()
    return in_memory(recording)


def recording_of(events: list[tuple[int, int, int, int]]) -> Recording:
    """A recording of pretended events, with slices closed between them: (place, kind, bytes, what happens)."""
    recording = Recording()
    nodes = []
    for place in range(31):
        depth = 1 + place % 5
        frames = [(f"f{(place * step) % 7}", f"/app/m{step % 3}.py", 1 + place % 4) for step in range(1, depth + 1)]
        nodes.append(recording.path(*frames, thread=f"thread-{place % 3}"))
    live: list[tuple[int, int, str]] = []
    for place, kind, size, happens in events:
        if happens < 3 and live:
            node, freed, freed_kind = live.pop(place % len(live))
            recording.free(node, freed, freed_kind)
        else:
            recording.allocate(nodes[place], size, KINDS[kind])
            live.append((nodes[place], size, KINDS[kind]))
        if happens == 9:
            recording.close_slice()
            recording.sample(size)
    recording.end()
    return recording


def with_source(folder: Path) -> Recording:
    """Own code, a library, and a file that is no Python, each with a line that holds something."""
    library = folder / "lib" / "python3.11" / "site-packages" / "lib.py"
    library.parent.mkdir(parents=True)
    library.write_text("".join(f"library_{number} = 1\n" for number in range(1, 200)))
    (folder / "own.py").write_text("x = 1\ny = '</script>'\n")
    (folder / "tool").write_text("#!/usr/bin/env python3\nz = 2\n")
    (folder / "secret").write_text("password\n")
    recording = Recording()
    recording.fact("cwd", str(folder))
    recording.header["started_unix_ns"] = 1 << 62
    for name, line in (("own.py", 2), ("tool", 2), ("secret", 1)):
        recording.allocate(recording.path(("f", str(folder / name), line)), 10)
    recording.allocate(recording.path(("f", str(folder / "own.py"), 2), ("g", str(library), 100)), 99)
    recording.end()
    return recording


def written_pair(folder: Path) -> tuple[Path, Path]:
    """Two captures of one line, 1000 and then 1500 bytes at the peak."""
    paths = (folder / "a.hiw", folder / "b.hiw")
    for path, count in zip(paths, (1000, 1500), strict=True):
        recording = Recording()
        recording.allocate(recording.path(("f", "/a.py", 1)), count)
        recording.end()
        path.write_bytes(recording.to_bytes())
    return paths
