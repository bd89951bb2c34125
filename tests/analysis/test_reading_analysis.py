"""Sums, rankings and trees against a model that does the same by hand, stack by stack."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_captures import STACKS, open_bytes, recorded, small
from hiwater._os.ownership import OWN, owners, rules
from hiwater.analysis import ranking, sums
from hiwater.analysis.call_tree import COARSE, Grouping, build_call_tree
from hiwater.analysis.display_tree import Branch, build_display_tree
from hiwater.analysis.naming import module_of
from hiwater.analysis.reconcile import reconcile
from hiwater.analysis.user_lines import rank_lines
from hiwater.capture import Frame, Stack
from recording import rounds


def label(grouping: Grouping, frame: tuple[str, str, int]) -> tuple[str, ...]:
    function, file, line = frame
    return {
        Grouping.function: (function, file),
        Grouping.line: (function, file, str(line)),
        Grouping.stack: (function, file, str(line)),
        Grouping.file: (file,),
        Grouping.module: (module_of(file, "/app"),),
    }[grouping]


def row_label(grouping: Grouping, row: ranking.RankedRow) -> tuple[str, ...]:
    frame = row.frame
    if frame == ranking.NO_FRAME:
        return ("nothing",)
    if grouping == Grouping.function:
        return (frame.function, frame.file)
    return (frame.function,) if grouping in COARSE else (frame.function, frame.file, str(frame.line))


@settings(max_examples=rounds(80))
@given(STACKS, st.sampled_from([one for one in Grouping if one not in (Grouping.thread, Grouping.task)]))
def test_rows_agree_with_a_count_by_hand(stacks: list[Stack], grouping: Grouping) -> None:
    """Own bytes go to the last frame; total bytes to each distinct label of a stack, once however often it is on it."""
    capture = recorded(stacks)  # type: ignore[arg-type]  # hypothesis cannot say what its tuples are
    own: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    for stack in capture.peak.stacks:
        labels = [label(grouping, (frame.function, frame.file, frame.line)) for frame in stack.frames] or [("nothing",)]
        own[labels[-1]] += stack.bytes
        total.update(dict.fromkeys(labels, stack.bytes))
    rows = ranking.by(capture.tables, capture.peak.holdings(), grouping)
    assert {row_label(grouping, row): row.self_bytes for row in rows if row.self_bytes} == dict(own)
    assert {row_label(grouping, row): row.total_bytes for row in rows} == dict(total)
    assert sum(row.self_bytes for row in rows) == capture.peak.allocated_bytes
    assert [row.self_bytes for row in rows] == sorted((row.self_bytes for row in rows), reverse=True)


@settings(max_examples=rounds(40))
@given(STACKS)
def test_threads_share_everything_between_them(stacks: list[Stack]) -> None:
    capture = recorded(stacks)  # type: ignore[arg-type]  # hypothesis cannot say what its tuples are
    expected: Counter[str] = Counter()
    for stack in capture.peak.stacks:
        expected[stack.thread] += stack.bytes
    rows = ranking.by(capture.tables, capture.peak.holdings(), Grouping.thread)
    assert {row.frame.function: row.self_bytes for row in rows} == dict(expected)


@settings(max_examples=rounds(40))
@given(STACKS, st.integers(0, 3))
def test_tasks_share_everything_between_them(stacks: list[Stack], depth: int) -> None:
    """A task is named by the frame above that of asyncio's loop."""
    loop = ("Handle._run", "/usr/lib/python3.13/asyncio/events.py", 89)
    placed = [([*frames[:depth], loop, *frames[depth:]], *rest) for frames, *rest in stacks]  # type: ignore[misc]  # as below
    capture = recorded(placed)  # type: ignore[arg-type]  # hypothesis cannot say what its tuples are
    expected: Counter[tuple[str, str]] = Counter()
    for stack in capture.peak.stacks:
        named = [(frame.function, frame.file) for frame in stack.frames]
        above = named[named.index(loop[:2]) + 1 :]
        expected[above[0] if above else ("[no task]", "")] += stack.bytes
    rows = ranking.by(capture.tables, capture.peak.holdings(), Grouping.task)
    assert {(row.frame.function, row.frame.file): row.self_bytes for row in rows} == dict(expected)
    assert all(row.total_bytes == row.self_bytes for row in rows)


@settings(max_examples=rounds(80))
@given(STACKS, st.sampled_from(list(Grouping)), st.booleans(), st.integers(0, 5000))
def test_a_tree_loses_nothing(stacks: list[Stack], grouping: Grouping, inverted: bool, minimum: int) -> None:
    capture = recorded(stacks)  # type: ignore[arg-type]  # hypothesis cannot say what its tuples are
    root = build_display_tree(
        build_call_tree(capture.tables, grouping), capture.peak.holdings(), minimum_bytes=minimum, inverted=inverted
    )
    assert root.bytes == capture.peak.allocated_bytes
    assert root.blocks == capture.peak.allocated_blocks
    waiting = [root]
    while waiting:
        branch = waiting.pop()
        assert branch.self_bytes >= 0 and branch.hidden_bytes >= 0
        assert branch.bytes == branch.self_bytes + branch.hidden_bytes + sum(child.bytes for child in branch.children)
        assert branch.bytes == sum(branch.kind_bytes)
        assert len({child.frame for child in branch.children}) == len(branch.children)
        waiting.extend(branch.children)


@settings(max_examples=rounds(60))
@given(STACKS, st.booleans())
def test_a_tree_holds_the_paths(stacks: list[Stack], inverted: bool) -> None:
    capture = recorded(stacks)  # type: ignore[arg-type]  # hypothesis cannot say what its tuples are
    expected: dict[tuple[object, ...], int] = defaultdict(int)
    for stack in capture.peak.stacks:
        frames = stack.frames[::-1] if inverted else stack.frames
        for length in range(1, len(frames) + 1):
            expected[frames[:length]] += stack.bytes
    found: dict[tuple[object, ...], int] = {}
    waiting: list[tuple[tuple[object, ...], Branch]] = [
        ((), build_display_tree(build_call_tree(capture.tables), capture.peak.holdings(), inverted=inverted))
    ]
    while waiting:
        path, branch = waiting.pop()
        for child in branch.children:
            found[*path, child.frame] = child.bytes
            waiting.append(((*path, child.frame), child))
    assert found == dict(expected)


def row_of(frames: tuple[Frame, ...]) -> tuple[str, str, int] | None:
    """The row of the ranking that a call path belongs to, found frame by frame; None for paths without a line."""
    below_import = False
    for frame in reversed(frames):
        if frame.file.startswith("<frozen importlib."):
            below_import = True
        elif owners([frame.file], rules()) == [OWN]:
            return ("import" if below_import else "line", frame.file, frame.line)
    innermost = frames[-1] if frames else None
    if innermost is None or not innermost.line:
        return None
    return ("import" if below_import else "other", innermost.file, innermost.line)


@settings(max_examples=rounds(60))
@given(STACKS)
def test_each_call_path_belongs_to_its_innermost_line_of_the_users_code(stacks: list[Stack]) -> None:
    capture = recorded(stacks)  # type: ignore[arg-type]  # hypothesis cannot say what its tuples are
    expected: Counter[object] = Counter()
    for stack in capture.peak.stacks:
        expected[row_of(stack.frames)] += stack.bytes
    ranking = rank_lines(capture.tables, capture.peak.holdings())
    found = {(row.group.value, row.frame.file, row.frame.line): row.bytes for row in ranking.rows if row.frame.line}
    assert found == {row: size for row, size in expected.items() if row is not None}
    assert sum(row.bytes for row in ranking.rows) == ranking.total_bytes == capture.peak.allocated_bytes
    mine = [row for row in ranking.rows if row.group == "line"]
    assert ranking.rows[: len(mine)] == sorted(mine, key=lambda row: -row.bytes)


@pytest.mark.parametrize("grouping", [Grouping.stack, Grouping.file, Grouping.module, Grouping.function])
def test_the_import_system_can_be_folded_into_whoever_imports(grouping: Grouping) -> None:
    boot = "<frozen importlib._bootstrap>"
    capture = recorded(
        [
            (
                [
                    ("<module>", "/app/a.py", 1),
                    ("_find_and_load", boot, 7),
                    ("exec", boot, 8),
                    ("<module>", "/app/b.py", 2),
                ],
                "T",
                "native",
                50,
            ),
            ([("<module>", "/app/a.py", 1), ("_find_and_load", boot, 7), ("exec", boot, 8)], "T", "python", 7),
            ([("_find_and_load", boot, 7)], "T", "python", 1),
        ]
    )
    root = build_display_tree(build_call_tree(capture.tables, grouping, hide_imports=True), capture.peak.holdings())
    (module,) = root.children
    (imported,) = module.children
    assert (root.bytes, root.self_bytes, module.bytes, module.self_bytes, imported.bytes) == (58, 1, 57, 7, 50)


@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_sums_and_walks_of_any_tree(choices: list[int]) -> None:
    parent = np.array([0, *(choice % (number + 1) for number, choice in enumerate(choices))], np.int64)
    ones = np.ones(len(parent), np.int64)
    size = sums.sum_upwards(parent, ones)
    assert np.array_equal(size, sums._sum_one_by_one(parent, ones))
    visits = sums.walk(parent)
    assert sorted(visits.enter.tolist()) == list(range(len(parent)))
    for node in range(1, len(parent)):
        above = int(parent[node])
        assert visits.enter[above] < visits.enter[node] < visits.leave[node] <= visits.leave[above]


def test_sums_of_a_chain_as_deep_as_it_is_long() -> None:
    parent = np.maximum(np.arange(200_000) - 1, 0)
    assert int(sums.sum_upwards(parent, np.ones(len(parent), np.int64))[0]) == 200_000
    assert int(sums.depths(parent)[-1]) == 199_999


def test_only_a_kind(tmp_path: Path) -> None:
    capture = open_bytes(small().to_bytes(), tmp_path)
    assert capture.peak.holdings("native").total_bytes == 500
    assert capture.peak.holdings("device").total_bytes == 0


def test_the_way_from_allocated_to_resident(tmp_path: Path) -> None:
    recording = small()
    recording.header.update(overhead_bytes=11, resident_start_bytes=1000, resident_peak_bytes=7000)
    way = reconcile(open_bytes(recording.to_bytes(), tmp_path))
    assert way.allocated_bytes + way.resident_start_bytes + way.rest_bytes == way.resident_peak_bytes == 7000 - 11


def test_the_standard_error_is_none_when_all_is_recorded_and_bounded_when_not(tmp_path: Path) -> None:
    recording = small()
    assert open_bytes(recording.to_bytes(), tmp_path).peak.standard_error_bytes == 0
    recording.header["sample_bytes"] = 65536
    sampled = open_bytes(recording.to_bytes(), tmp_path)
    assert sampled.peak.standard_error_bytes == 9915  # sqrt(1500 × 65536), rounded up: a mapping is never sampled
    by_bytes = {stack.bytes: stack.standard_error_bytes for stack in sampled.peak.stacks}
    assert by_bytes == {4096: 0, 1000: 8096, 500: 5725}


@pytest.mark.parametrize(
    ("file", "module", "library"),
    [
        ("/v/lib/python3.11/site-packages/pandas/core/frame.py", "pandas.core.frame", True),
        ("/v/lib/python3.11/site-packages/pandas/__init__.py", "pandas", True),
        ("/usr/lib/python3.11/json/decoder.py", "json.decoder", True),
        ("/usr/lib/python3.13t/re/__init__.py", "re", True),
        ("<frozen importlib._bootstrap>", "importlib._bootstrap", True),
        ("<string>", "<string>", True),
        ("/app/pkg/mod.py", "pkg.mod", False),
        ("/elsewhere/etl.py", "etl", False),
        ("", "", True),
        (
            "/usr/lib/python3/dist-packages/numpy/_core/../../numpy.libs/libblas.so.3",
            "numpy.libs.libblas.so.3",
            True,
        ),
        ("/usr/lib/python3.12/lib-dynload/_struct.so", "_struct.so", True),
    ],
)
def test_whose_code_a_file_is(file: str, module: str, library: bool) -> None:
    assert (module_of(file, "/app"), owners([file], rules()) != [OWN]) == (module, library)
