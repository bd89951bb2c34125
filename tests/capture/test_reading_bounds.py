"""Deep, wide and long captures: every output is bounded, in room and in memory, and still has every byte."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import large_captures
from capture_builder import DTYPES, Recording
from example_captures import in_memory
from hiwater import capture as captures
from hiwater.analysis import recursion
from hiwater.analysis.call_tree import Grouping, build_call_tree
from hiwater.capture import Capture, ScopeSpan
from hiwater.cli.report import FORMATS
from hiwater.report import whole_stacks
from hiwater.report.export import json_report
from hiwater.report.request import Report
from hiwater.report.text import lines
from json_paths import frames_of
from places import ROOT
from recording import SHARE, rounds

DEPTH = 20_000
MOST_BYTES = 50_000_000
MOST_MEMORY = 1 << 30  # of address space; the libraries of a reader take a third of that
MINUTES = 5 * 60  # for a machine under load: each takes about a second


def hiwater(*words: str | Path, memory: int = MOST_MEMORY) -> subprocess.CompletedProcess[bytes]:
    """Runs the command with a limit on its memory, which makes what is not bounded fail instead of swap."""
    return limited([sys.executable, "-m", "hiwater", *map(str, words)], memory)


def limited(command: list[str], memory: int = MOST_MEMORY) -> subprocess.CompletedProcess[bytes]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return subprocess.run(
        command, capture_output=True, check=False, timeout=MINUTES, preexec_fn=limit,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip


def report(capture: Path, *words: str | Path, memory: int = MOST_MEMORY) -> bytes:
    """What a report writes to stdout."""
    done = hiwater("report", capture, *words, memory=memory)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 calls of three functions that call each other, each of which holds a block."""
    return large_captures.deep(tmp_path_factory.mktemp("deep") / "deep.hiw", DEPTH, functions=3)


@pytest.fixture(scope="module")
def many_functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 functions, each called by the one before: no recursion that could be left out."""
    return large_captures.deep(tmp_path_factory.mktemp("many") / "many.hiw", DEPTH, functions=DEPTH)


def peak_of(path: Path) -> int:
    return captures.open(path).peak.allocated_bytes


# Sums, as a reader of each format adds them up


def sum_of_json(out: bytes) -> int:
    return sum(stack["bytes"] for stack in json.loads(out)["stacks"])


def sum_of_collapsed(out: bytes) -> int:
    return sum(int(line.rpartition(b" ")[2]) for line in out.splitlines())


def sum_of_csv(out: bytes) -> int:
    return sum(int(row["held_bytes"]) for row in csv.DictReader(io.StringIO(out.decode())))


def sum_of_speedscope(out: bytes) -> int:
    return sum(json.loads(out)["profiles"][0]["weights"])


def sum_of_pprof(out: bytes) -> int:
    from hiwater.device_history.pprof_proto import profile_pb2

    made: Any = profile_pb2
    profile = made.Profile()
    profile.ParseFromString(gzip.decompress(out))
    return sum(sample.value[3] for sample in profile.sample)


WHOLE: dict[str, Callable[[bytes], int]] = {
    "collapsed": sum_of_collapsed, "csv": sum_of_csv, "speedscope": sum_of_speedscope, "pprof": sum_of_pprof,
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_formats_with_whole_stacks_write_deep_recursion_once_and_say_so(deep: Path, name: str) -> None:
    done = hiwater("report", deep, "--format", name, "-o", "-")
    assert done.returncode == 0 and len(done.stdout) < 100_000
    assert WHOLE[name](done.stdout) == peak_of(deep)
    assert b"Recursion is written once" in done.stderr and b"--recursion whole" in done.stderr


@pytest.mark.parametrize("name", ["collapsed", "csv", "speedscope", "pprof"])
def test_formats_with_whole_stacks_refuse_what_stays_too_deep(many_functions: Path, name: str) -> None:
    done = hiwater("report", many_functions, "--format", name)
    assert done.returncode == 2 and done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert "too deep" in line and "--recursion whole" in line and "--format json" in line


SHOWN = (
    ["--format", "json"], ["--format", "json", "--by", "function"], ["--format", "text"], ["--format", "tree"],
    ["--format", "tree", "--inverted"], ["--format", "table"], ["--format", "table", "--by", "stack"],
    ["--format", "lines"],
    ["--format", "svg"], ["--format", "svg", "--inverted"], ["--format", "html"],
)  # fmt: skip
ALL_OF_THEM = """
import json, sys
from hiwater.cli import main
for number, words in enumerate(json.loads(sys.argv[1])):
    code = main([*words, "-o", f"{sys.argv[2]}/{number}"])
    if code:
        sys.exit(f"{words}: {code}")
"""


def written(verb: Sequence[str | Path], every: Sequence[list[str]], folder: Path) -> list[bytes]:
    """What the verb writes with each of these options, one after the other in one process with the limit on its
    memory."""
    commands = json.dumps([[*map(str, verb), *words] for words in every])
    done = limited([sys.executable, "-c", ALL_OF_THEM, commands, str(folder)])
    assert done.returncode == 0, done.stderr
    return [(folder / str(number)).read_bytes() for number in range(len(every))]


@pytest.mark.parametrize("which", ["deep", "many_functions"])
def test_every_other_format_shows_deep_stacks_in_bounds(
    request: pytest.FixtureRequest, which: str, tmp_path: Path
) -> None:
    capture = request.getfixturevalue(which)
    for words, out in zip(SHOWN, written(["report", capture], SHOWN, tmp_path), strict=True):
        assert 0 < len(out) < MOST_BYTES, words
        if words == ["--format", "json"]:
            assert sum_of_json(out) == peak_of(capture)


def test_json_has_every_frame_of_deep_stacks(deep: Path) -> None:
    said = json.loads(report(deep, "--format", "json"))
    assert len(said["nodes"]) == len(said["stacks"]) == DEPTH and len(said["frames"]) == 4
    depths = sorted(len(frames_of(said, stack["node"])) for stack in said["stacks"][:200])
    recorded = captures.open(deep).peak.stacks
    assert depths == sorted(len(recorded[number].frames) for number in range(200))
    assert all(node["parent"] is None or node["parent"] < number for number, node in enumerate(said["nodes"]))


def test_the_lines_in_the_manual_give_the_frames_of_a_stack(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual = ROOT / "docs" / "formats.md"
    (code,) = re.findall("```python\n(.*?)```", manual.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    report(deep, "--format", "json", "-o", "run.json")
    names: dict[str, Any] = {}
    exec(code, names)
    largest = captures.open(deep).peak.stacks[0]
    found = [tuple(frame.values()) for frame in names["frames_of"](names["largest"]["node"])]
    assert found == [(frame.function, frame.file, frame.line) for frame in largest.frames]


def test_a_diff_of_deep_stacks_is_in_bounds(deep: Path, many_functions: Path, tmp_path: Path) -> None:
    every = [["--format", name] for name in ("json", "text", "markdown", "html")]
    first, *others = written(["diff", deep, many_functions], every, tmp_path)
    assert all(0 < len(out) < MOST_BYTES for out in (first, *others))
    said = json.loads(first)
    assert sum(row["change_bytes"] for row in said["rows"]) == said["allocated"]["bytes"]["change"]
    new = max(said["rows"], key=lambda row: row["after_node"] or 0)
    assert len(frames_of(said, new["after_node"])) == DEPTH and new["before_node"] is None


def test_recursion_written_whole_is_streamed(tmp_path: Path) -> None:
    """12 million frames, some 700 MB of text, by way of a reader that keeps nothing."""
    path = large_captures.deep(tmp_path / "deep.hiw", 5000)
    report(path, "--format", "collapsed", "--recursion", "whole", "-o", os.devnull, memory=600 << 20)


def test_recursion_asked_to_be_written_once_is(tmp_path: Path) -> None:
    path = large_captures.deep(tmp_path / "deep.hiw", 10, functions=2)
    whole = report(path, "--format", "collapsed").decode().splitlines()
    once = report(path, "--format", "collapsed", "--recursion", "once").decode().splitlines()
    assert len(whole) == 10 and max(line.count(";") for line in whole) == 9
    first, second = (f"function_{number} ({large_captures.FILE}:{line})" for number, line in ((0, 10), (1, 7)))
    assert [line.rpartition(" ")[0] for line in once].count(first) == 1
    again = f"function_0 ({large_captures.FILE}:7)"  # its first call has another line than those from function_1
    assert {line.rpartition(" ")[0] for line in once} == {first, f"{first};{second}", f"{first};{second};{again}"}
    assert sum_of_collapsed("\n".join(once).encode()) == sum_of_collapsed("\n".join(whole).encode()) == peak_of(path)
    assert report(path, "--format", "tree", "--recursion", "once").count(b"function_") == 3


# The rule


def erased(path: list[int]) -> list[int]:
    """The rule of `analysis/recursion.py`, said once more."""
    kept: list[int] = []
    for key in path:
        kept = kept[: kept.index(key) + 1] if key in kept else [*kept, key]
    return kept


def keys_of(parent: Any, key: Any, node: int) -> list[int]:
    keys = []
    while node:
        keys.append(int(key[node]))
        node = int(parent[node])
    return keys[::-1]


@settings(max_examples=rounds(150))
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), min_size=1, max_size=120),
    st.sampled_from(list(Grouping)),
)
def test_every_path_is_its_own_without_recursion(choices: list[tuple[int, int]], grouping: Grouping) -> None:
    recording = Recording()
    nodes = [0, recording.thread()]
    for above, function in choices:
        code = recording.code(f"f{function}", f"{function % 3}.py", 1)
        nodes.append(recording.node(nodes[-1 - above % min(len(nodes), 4)], code, function))
        recording.allocate(nodes[-1], 10 + function)
    call_tree = build_call_tree(in_memory(recording).tables, grouping)
    once = recursion.once(call_tree)
    for node in range(len(call_tree.place)):
        path = keys_of(call_tree.parent, call_tree.key, int(call_tree.place[node]))
        assert keys_of(once.parent, once.key, int(once.place[node])) == erased(path)
    below = list(zip(once.parent.tolist()[1:], once.key.tolist()[1:], strict=True))
    assert len(set(below)) == len(below) and np.all(once.parent[1:] < np.arange(1, len(once.parent)))


def test_rows_that_meet_on_one_path_are_added_up_by_kind_and_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_stacks, "MOST_BYTES", 20)
    monkeypatch.setattr(whole_stacks, "MOST_MEAN_BYTES", 30)
    recording = Recording()
    for thread in ("one", "two"):
        for depth in range(2, 7):
            leaf = recording.path(*[("down", "a.py", 1)] * depth, thread=thread)
            recording.allocate(leaf, 100, "python")
            recording.allocate(leaf, 10 * depth, "native")
    capture = in_memory(recording)
    what = Report(capture, capture.peak)
    whole = whole_stacks.whole_stacks(what)
    held = whole.holdings(what.holdings)
    names, thread = capture.tables.paths.threads(held.node)
    rows = [(names[of], kind, count, blocks) for of, kind, count, blocks in
            zip(thread.tolist(), held.kind.tolist(), held.bytes.tolist(), held.blocks.tolist(),
                strict=True)]  # fmt: skip
    assert sorted(rows) == [("one", 0, 500, 5), ("one", 1, 200, 5), ("two", 0, 500, 5), ("two", 1, 200, 5)]
    assert len(what.remarks) == 1


# Happenings on deep paths


def test_refusals_on_deep_paths_take_no_room_for_their_frames(tmp_path: Path) -> None:
    """10,000 requests refused, each 20,000 calls deep: their frames would be 200 million."""
    markers = np.zeros(10_000, DTYPES["markers"])
    markers["at_ns"], markers["value"], markers["kind"] = np.arange(10_000), 1 << 30, 2
    markers["node"] = 2 + DEPTH - 1 - np.arange(10_000)
    path = large_captures.deep(tmp_path / "deep.hiw", DEPTH, more={"markers": markers})
    said = json.loads(report(path, "--format", "json"))
    assert said["refusals"]["count"] == 10_000
    assert len(frames_of(said, said["refusals"]["last"][-1]["node"])) == DEPTH - 9_999
    assert b"10,000 times" in report(path, "--full")
    assert b"10,000 requests for memory were refused" in report(path)
    assert captures.open(path).refusals[0].frames[-1].function == "function_0"


def test_a_capture_for_which_there_is_not_enough_memory_is_one_line(tmp_path: Path) -> None:
    path = large_captures.wide(tmp_path / "wide.hiw", 500_000)
    done = hiwater("report", path, "--format=html", "-o-", memory=290 << 20)
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == 125 and done.stdout == b"" and "not enough memory" in line


# Wide and long captures, and very many of them


def test_a_hundred_generations_are_in_one_another_and_later_ones_beside() -> None:
    captures = []
    for number in range(300):
        recording = Recording()
        recording.header.update(pid=1000 + number, started_unix_ns=10**18 + number)
        recording.fact("ppid", str(999 + number))
        recording.allocate(recording.path(("f", "a.py", 1)), 10)
        recording.end()
        captures.append(in_memory(recording))
    stream = io.StringIO()
    json_report.write([Report(capture, capture.peak) for capture in captures], stream)
    said = json.loads(stream.getvalue())
    seen, nested = [], 0
    waiting = [(said, 0)]
    while waiting:
        one, generation = waiting.pop()
        seen.append(one["process"]["pid"])
        nested = max(nested, generation)
        waiting += [(child, generation + 1) for child in one["children"]]
    assert sorted(seen) == list(range(1000, 1300)) and nested == 100


def overlapping(count: int) -> tuple[ScopeSpan, ...]:
    """Scopes that each begin before any other ends, none of which lies in another."""
    return tuple(ScopeSpan("request", 4242, 1, 0, number, number + count, 1000, 1000, 1000) for number in range(count))


def with_scopes(scopes: tuple[ScopeSpan, ...]) -> Capture:
    recording = Recording()
    recording.allocate(recording.path(("f", "a.py", 1)), 10)
    recording.sample(1 << 20)
    recording.end()
    capture = in_memory(recording)
    capture.__dict__["scopes"] = scopes  # what the reader has read
    return capture


def test_a_plot_draws_the_longest_of_very_many_scopes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hiwater.analysis.curves import plot_of
    from hiwater.report.export import plot

    out = io.BytesIO()
    plot.draw([plot_of(with_scopes(overlapping(20_000)), "scopes")], "svg", out)
    assert b"19,000 shorter scopes are not drawn" in out.getvalue() and len(out.getvalue()) < 5_000_000


def test_a_file_with_very_many_lines_is_annotated(tmp_path: Path) -> None:
    """30,000 lines, nearly all too small to be shown: compared with one another, they would be 450 million
    comparisons."""
    small = Recording()
    for line in range(1, 30_001):
        small.allocate(small.path(("generated", "/app/generated.py", line)), 10**9 if line == 7 else 10)
    what = Report(in_memory(small), in_memory(small).peak)
    stream = io.StringIO()
    lines.write(what, stream)
    assert "on 29999 smaller lines" in stream.getvalue()


def threads(path: Path) -> Path:
    return large_captures.threads(path, 100_000 // SHARE)


def long(path: Path) -> Path:
    return large_captures.long(path, 5_000 // SHARE, 100_000 // SHARE, 100_000 // SHARE)


@pytest.mark.parametrize("make", [threads, long])
def test_every_format_of_captures_with_very_many_threads_or_slices(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    every = [["--format", name] for name in FORMATS]
    for words, out in zip(every, written(["report", make(tmp_path / "large.hiw")], every, tmp_path), strict=True):
        assert 0 < len(out) < MOST_BYTES // SHARE, words
