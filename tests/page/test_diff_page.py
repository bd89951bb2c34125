"""The page of a comparison: every stack of either capture is in it, and its sums are those of `hiwater diff --format
json`."""

from __future__ import annotations

import io
import webbrowser
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_builder import Recording
from children import run_hiwater
from example_captures import EVENTS, STACKS, in_memory, made, recorded, recording_of, written_pair
from hiwater._os.ownership import IMPORT_SYSTEM
from hiwater.analysis.call_tree import Grouping, build_call_tree
from hiwater.analysis.compact import MERGED_FRAME, Limits
from hiwater.analysis.diff import MatchedComparison, compare
from hiwater.analysis.diff_arrays import compact_diff
from hiwater.analysis.naming import function_of
from hiwater.capture import Capture, Frame
from hiwater.cli import main
from hiwater.report.diff_request import DiffReport
from hiwater.report.html import diff_page
from json_paths import tuples_of
from page_reader import Page
from recording import rounds
from written_reports import diff_as_json

COUNTED = range(5)


def page_of(told: MatchedComparison, source: str = "none") -> Page:
    stream = io.StringIO()
    diff_page.write(DiffReport(told), stream, source)
    return Page(stream.getvalue())


def rows_of_page(page: Page) -> Counter[tuple[Any, ...]]:
    """(kind, frames) to what grew: without threads, the import system and comprehensions' own frames, as a diff's
    rows are."""
    node, delta, sums = (
        page.column("holders", "node"),
        page.column("holders", "delta_bytes"),
        Counter[tuple[Any, ...]](),
    )
    for holder in np.flatnonzero(np.isin(page.kind, COUNTED)).tolist():
        sums[int(page.kind[holder]), frames_of_page(page, int(node[holder]))] += int(delta[holder])
    return Counter({row: change for row, change in sums.items() if change})


def frames_of_page(page: Page, node: int) -> tuple[tuple[Any, ...], ...]:
    """(function, file, line, whether gone), root first."""
    roots = {thread["node"] for thread in page.capture["threads"]}
    texts, names = page.capture["functions"], [file["name"] for file in page.capture["files"]]
    frame, gone = page.column("nodes", "frame"), page.column("frames", "gone")
    function, file, line = (page.column("frames", name) for name in ("function", "file", "line"))
    found: list[tuple[Any, ...]] = []
    while node:
        if node not in roots:
            at = frame[node]
            found.append((texts[function[at]], names[file[at]], int(line[at]), bool(gone[at])))
        node = int(page.parent[node])
    path: list[tuple[Any, ...]] = []
    for text, where, number, is_gone in reversed(found):
        named = (function_of(text), where, number, is_gone)
        if not where.startswith(IMPORT_SYSTEM) and not (path and path[-1] == named and text != named[0]):
            path.append(named)
    return tuple(path)


def rows_of_json(told: MatchedComparison) -> Counter[tuple[Any, ...]]:
    """The same of `--format json`; what it says in the earlier capture's names is put into those of the later one."""
    kinds = {"python": 0, "native": 1, "mapping": 2, "device": 3, "shared": 4}
    known = {told.matching.after(frame) for frame in build_call_tree(told.after.tables, Grouping.line).frames}
    sums = Counter[tuple[Any, ...]]()
    said = diff_as_json(told)
    for row in said["rows"]:
        after = row["after_node"]
        node, name = (after, told.matching.after) if after is not None else (row["before_node"], told.matching.before)
        named = [name(Frame(*frame)) for frame in tuples_of(said, node)]
        path = tuple((one[0], one[1].lstrip("\0"), abs(one[2]), one not in known) for one in named)
        sums[kinds[row["kind"]], path] += row["change_bytes"]
    return sums


@settings(max_examples=rounds(50))
@given(STACKS, STACKS, st.sampled_from(("peak", "end")))
def test_the_page_has_the_rows_of_json(one: list[Any], other: list[Any], at: str) -> None:
    told = compare(recorded(one), recorded(other), at=at)
    page = page_of(told)
    delta = page.column("holders", "delta_bytes")
    assert int(delta[np.isin(page.kind, COUNTED)].sum()) == told.allocated.change
    assert rows_of_page(page) == rows_of_json(told)


@settings(max_examples=rounds(50))
@given(EVENTS, EVENTS, st.sampled_from(("peak", "end", "0")), st.integers(2, 40))
def test_folded_or_not_every_byte_is_there(one: Any, other: Any, at: str, holders: int) -> None:
    """Of either capture, of every kind, at each moment; and what the later one says alone is what it always said."""
    before, after = (in_memory(recording_of(events)) for events in (one, other))
    told = compare(before, after, at=at)
    for limits in (None, Limits(holders=holders, nodes=holders + 5, entries=100)):
        laid = compact_diff(told, limits)
        compacted, kind = laid.compacted, laid.compacted.holder_kind
        assert (compacted.parent[1:] < np.arange(1, len(compacted.parent))).all()
        for name, snapshot in (("peak", before.peak), ("end", before.end)):
            assert _by_kind(kind, laid.columns[f"before_{name}_bytes"]) == _by_kind(
                before.tables.account_kind, snapshot.bytes
            )
        now = _by_kind(after.tables.account_kind, told.after_snapshot.bytes)
        now.subtract(_by_kind(before.tables.account_kind, told.before_snapshot.bytes))
        assert _by_kind(kind, laid.columns["delta_bytes"]) == Counter({k: v for k, v in now.items() if v})
        assert _by_kind(kind, compacted.columns["peak_bytes"]) == _by_kind(after.tables.account_kind, after.peak.bytes)
        assert len(laid.frame_is_gone) == len(compacted.frames)


def _by_kind(kinds: Any, values: Any) -> Counter[int]:
    sums = Counter[int]()
    for kind, value in zip(kinds.tolist(), values.tolist(), strict=True):
        sums[kind] += value
    return Counter({kind: value for kind, value in sums.items() if value})


def test_what_is_gone_stands_below_what_both_have() -> None:
    main_before, main_after = ("main", "/app/a.py", 3), ("main", "/app/a.py", 5)
    before = made(([main_before, ("load", "/app/a.py", 9)], 100), ([main_before, ("drop", "/app/b.py", 2)], 40))
    after = made(([main_after, ("load", "/app/a.py", 11)], 130), ([main_after, ("more", "/app/c.py", 2)], 7))
    page = page_of(compare(before, after))
    held, then = page.column("holders", "peak_bytes"), page.column("holders", "before_peak_bytes")
    assert sorted(zip(held.tolist(), then.tolist(), strict=True)) == [(0, 40), (7, 0), (130, 100)]
    gone = int(np.flatnonzero(then == 40)[0])
    assert page.path(int(page.column("holders", "node")[gone]))[1] == [main_after, ("drop", "/app/b.py", 2)]
    assert page.column("frames", "gone").sum() == 1
    assert page.capture["compared"]["peak"]["change"] == -3


def test_a_line_that_is_gone_is_not_the_line_that_took_its_number() -> None:
    """Both stand at line 4 of one function, and call different things: two lines, in one function."""
    before = made(([("main", "/app/a.py", 4), ("old", "/app/a.py", 20)], 100))
    after = made(
        ([("main", "/app/a.py", 4), ("new", "/app/a.py", 20)], 60),
        ([("main", "/app/a.py", 6), ("other", "/app/a.py", 30)], 5),
    )
    told = compare(before, after)
    main = ("main", "/app/a.py")
    assert rows_of_page(page_of(told)) == {
        (0, ((*main, 4, True), ("old", "/app/a.py", 20, True))): -100,
        (0, ((*main, 4, False), ("new", "/app/a.py", 20, False))): 60,
        (0, ((*main, 6, False), ("other", "/app/a.py", 30, False))): 5,
    }
    assert rows_of_page(page_of(told)) == rows_of_json(told)


def test_files_that_moved_are_those_of_the_later_capture() -> None:
    before = made(([("f", "/old/pkg/a.py", 4)], 100), cwd="/old")
    after = made(([("f", "/new/pkg/a.py", 4)], 90), cwd="/new")
    page = page_of(compare(before, after))
    assert [file["name"] for file in page.capture["files"] if file["name"]] == ["/new/pkg/a.py"]
    assert page.column("holders", "delta_bytes").tolist() == [-10]


def test_smaller_stacks_meet() -> None:
    """One that is merged in the later capture is merged with what it held before, so that it neither came nor went."""
    stacks = [([("main", "/a.py", 1), (f"f{number}", "/a.py", 10 + number)], 100 + number) for number in range(30)]
    told = compare(made(*stacks), made(*reversed(stacks)))
    laid = compact_diff(told, Limits(holders=8, nodes=100, entries=1000))
    assert laid.compacted.merged_stacks > 0 and MERGED_FRAME in laid.compacted.frames
    assert not laid.columns["delta_bytes"].any()
    gone = compact_diff(compare(made(*stacks), made(stacks[0])), Limits(holders=8, nodes=100, entries=1000))
    assert gone.compacted.merged_stacks == 29 - 4 and gone.compacted.merged_most_bytes == 125
    assert sorted(gone.columns["delta_bytes"].tolist())[1:] == [-129, -128, -127, -126, 0]


def test_a_capture_without_stacks_is_compared_by_its_peaks_alone() -> None:
    recording = Recording()
    recording.fact("recorder", "sample")
    watched: Capture = in_memory(recording)
    assert watched.is_timeline
    page = page_of(compare(watched, made(([("f", "/a.py", 1)], 10))))
    assert "delta_bytes" not in page.capture["holders"] and page.capture["compared"]["peak"]["change"] is None


def test_nothing_compared_with_something_and_with_nothing() -> None:
    empty, some = made(), made(([("f", "/a.py", 1)], 10))
    for before, after, change in ((empty, some, 10), (some, empty, -10), (empty, empty, 0)):
        page = page_of(compare(before, after))
        assert int(page.column("holders", "delta_bytes").sum()) == change == page.capture["compared"]["peak"]["change"]


# As it is typed


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return written_pair(tmp_path)


def test_diff_writes_a_page(pair: tuple[Path, Path]) -> None:
    done = run_hiwater("diff", *pair, "--format", "html", "-o", "-", check=True)
    page = Page(done.stdout)
    compared = page.capture["compared"]
    assert compared["before"]["name"] == str(pair[0]) and compared["after"]["name"] == str(pair[1])
    assert compared["peak"] == {
        "before": 1000, "after": 1500, "change": 500, "percent": 50.0, "standard_error": 0, "within_error": False,
    }  # fmt: skip
    assert "<td>+500 B</td><td>1000 B</td><td>1.5 KiB</td>" in done.stdout  # of those without scripts


def test_open_writes_beside_the_later_capture(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["diff", *map(str, pair), "--format", "html", "--open"]) == 0
    made_page = pair[1].with_name("b.diff.html")
    assert opened == [made_page.as_uri()] and str(made_page) in capfd.readouterr().out
    assert Page(made_page.read_text("utf-8")).column("holders", "delta_bytes").tolist() == [500]
    assert main(["diff", *map(str, pair), "--open"]) == 2
    assert "--open needs html, and not text" in capfd.readouterr().err
