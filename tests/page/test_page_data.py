"""The page says of every moment what the capture says, merged or not, and no name can break out of it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiled
import hiwater
import native_recordings
import schemas
from capture_builder import KINDS, LABEL, Recording
from example_captures import EVENTS, each_hostile_name, hostile, in_memory, program, recording_of, with_source
from hiwater.analysis.compact import MERGED_FRAME, CompactedCapture, Limits, compact
from hiwater.capture import Capture
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.native_frames import Frames
from hiwater.cli import main
from hiwater.report import native_frames
from hiwater.report.html.columns import PackedColumns
from hiwater.report.request import Report
from json_paths import tuples_of
from page_reader import Page, Unpacked, page_of
from places import ROOT
from recording import needs_engine, rounds
from written_reports import as_json, report


@settings(max_examples=rounds(60))
@given(EVENTS, st.sampled_from([0, 4096]))
def test_the_page_says_of_every_moment_what_json_says(
    events: list[tuple[int, int, int, int]], sample_bytes: int
) -> None:
    recording = recording_of(events)
    recording.header["sample_bytes"] = sample_bytes
    capture = in_memory(recording)
    page = Page(page_of([Report(capture, capture.peak)]))
    snapshots = [
        (capture.peak, page.column("holders", "peak_bytes")),
        (capture.end, page.column("holders", "end_bytes")),
        *((capture.of_slice(piece), page.slice_bytes(number)) for number, piece in enumerate(capture.slices)),
    ]
    for snapshot, held in snapshots:
        said = as_json(Report(capture, snapshot))
        expected = [
            (stack["bytes"], COUNTED_KINDS.index(stack["kind"]), stack["thread"], tuples_of(said, stack["node"]))
            for stack in said["stacks"]
        ]
        sampled = int(held[(page.column("holders", "sampled") == 1) & (page.kind < len(COUNTED_KINDS))].sum())
        assert sampled == int(snapshot.holdings().sampled.sum())
        assert page.stacks(held) == expected
        for kind, count in snapshot.kind_bytes().items():
            assert int(held[page.kind == KINDS.index(kind)].sum()) == count


def sums(capture: Capture, compacted: CompactedCapture) -> None:
    """Whatever was merged, every sum is the capture's: by kind and thread, at the peak, at the end, in every slice,
    and over all."""
    assert int(compacted.columns["total_bytes"].sum()) == int(capture.tables["accounts"]["total_bytes"].sum())
    for name, snapshot in (("peak", capture.peak), ("end", capture.end)):
        for kind, count in snapshot.kind_bytes().items():
            mine = compacted.holder_kind == KINDS.index(kind)
            assert int(compacted.columns[f"{name}_bytes"][mine].sum()) == count
        assert by_thread(compacted, compacted.columns[f"{name}_bytes"]) == threads_of(capture, snapshot.bytes)
    held = np.zeros(len(compacted.holder_node), np.int64)
    for number, piece in enumerate(capture.slices):
        mine = compacted.entry_slice == number
        np.add.at(held, compacted.entry_holder[mine], compacted.entry_bytes[mine])
        assert by_thread(compacted, held) == threads_of(capture, capture.of_slice(piece).bytes)


def by_thread(compacted: CompactedCapture, values: np.ndarray) -> dict[str, int]:
    found: dict[str, int] = {}
    for node, value in zip(compacted.holder_node.tolist(), values.tolist(), strict=True):
        root = node
        while root and root not in compacted.threads:
            root = int(compacted.parent[root])
        name = compacted.threads.get(root, "")
        found[name] = found.get(name, 0) + value
    return {name: value for name, value in found.items() if value}


def threads_of(capture: Capture, values: np.ndarray) -> dict[str, int]:
    found: dict[str, int] = {}
    for node, value in zip(capture.tables.account_node.tolist(), values.tolist(), strict=True):
        name = capture.tables.paths.thread(node)
        found[name] = found.get(name, 0) + value
    return {name: value for name, value in found.items() if value}


@settings(max_examples=rounds(60))
@given(EVENTS, st.integers(1, 20), st.integers(1, 40), st.integers(1, 60))
def test_folding_keeps_every_sum(
    events: list[tuple[int, int, int, int]], holders: int, nodes: int, entries: int
) -> None:
    capture = in_memory(recording_of(events))
    compacted = compact(capture, Limits(holders, nodes, entries))
    sums(capture, compacted)
    parent = compacted.parent
    assert np.all(parent[1:] < np.arange(1, len(parent)))
    after = {0: len(parent)}  # depth first: whatever follows a path and is below it follows at once
    for node in range(1, len(parent)):
        after[node] = next((n for n in range(node + 1, len(parent)) if int(parent[n]) < node), len(parent))
        assert after[node] <= after[int(parent[node])]


def test_the_largest_stay_and_the_rest_is_told() -> None:
    recording = Recording()
    for number in range(50):
        recording.allocate(recording.path(("main", "/a.py", 1), (f"f{number}", "/a.py", number)), 1000 + number)
    recording.end()
    compacted = compact(in_memory(recording), Limits(holders=10))
    assert (compacted.merged_stacks, compacted.merged_most_bytes) == (40, 1039)
    kept = sorted(compacted.columns["peak_bytes"].tolist())
    assert kept[:10] == list(range(1040, 1050)) and kept[10] == sum(range(1000, 1040))
    merged = int(compacted.holder_node[int(compacted.columns["peak_bytes"].argmax())])
    assert compacted.frames[compacted.frame[merged]] == MERGED_FRAME
    assert compacted.frames[compacted.frame[compacted.parent[merged]]].function == "main"


def test_a_page_with_folded_stacks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hiwater.report.html.page_data.compact", lambda capture, _: compact(capture, Limits(holders=3)))
    what = report(program())
    page = Page(page_of([what]))
    assert page.capture["merged"]["stacks"] > 0
    held = page.column("holders", "peak_bytes")
    assert int(held[page.kind < len(COUNTED_KINDS)].sum()) == what.holdings.total_bytes


@settings(max_examples=rounds(100))
@given(st.lists(st.lists(st.integers(-(2**52), 2**52), max_size=30), max_size=5))
def test_columns_come_back_as_they_were(lists: list[list[int]]) -> None:
    columns = PackedColumns()
    head = {"lists": [columns.add(values) for values in lists]}
    unpacked = Unpacked(columns.packed(head))
    assert unpacked.head == head
    assert [unpacked.column(described).tolist() for described in head["lists"]] == lists


def test_the_schema_is_a_schema() -> None:
    assert schemas.validator_of("page")


# The page as a document


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    page = page_of([report(program())])
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert allowed["default-src"] == "'none'" and set(allowed) <= {
        "default-src",
        "script-src",
        "style-src",
        "img-src",
        "base-uri",
        "form-action",
    }
    assert allowed["img-src"] == "data:"
    for directive, pattern in (("script-src", r"<script>(.*?)</script>"), ("style-src", r"<style>(.*?)</style>")):
        found = re.findall(pattern, page, re.DOTALL)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert allowed[directive] == f"'sha256-{digest}'"
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert " style=" not in page.partition("<style>")[2].partition("</style>")[2].partition("<script")[0]


@each_hostile_name
def test_hostile_names_do_not_break_out_of_a_page(name: str) -> None:
    page = page_of([report(hostile(name))])
    assert len(re.findall("<script", page)) == 2 and page.count("</script>") == 2
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\ud800-\udfff]", page)
    told = Page(page)
    assert [held for held, *_ in told.stacks(told.column("holders", "peak_bytes"))] == [1000]
    page.encode("utf-8")


def test_a_page_has_a_summary_that_needs_no_script() -> None:
    recording = program()
    recording.sample(1 << 20)
    page = page_of([report(recording)])
    summary = page.partition('<div id="app">')[2].partition('<script type="application/octet-stream"')[0]
    assert "2.7 KiB" in summary and "etl.py" in summary and "<svg" in summary and "/app/etl.py:" in summary


def test_an_empty_recording_and_several_have_a_page() -> None:
    assert Page(page_of([report(Recording())])).stacks(np.zeros(1, np.int64)) == []
    both = page_of([report(program()), report(program())])
    assert len(Page(both).unpacked.head["captures"]) == 2


# Source text


def test_source_text_is_the_users_own_unless_asked(tmp_path: Path) -> None:
    what = report(with_source(tmp_path))

    def told(choice: str) -> dict[str, str]:
        capture = Page(page_of([what], choice)).capture
        return {
            Path(capture["files"][one["file"]]["name"]).name: "\n".join(piece["text"] for piece in one["pieces"])
            for one in capture["source"]["files"]
        }

    assert told("none") == {}
    assert told("own") == {"own.py": "x = 1\ny = '</script>'", "tool": "#!/usr/bin/env python3\nz = 2"}
    everything = told("all")
    assert set(everything) == {"own.py", "tool", "lib.py"}
    assert everything["lib.py"].splitlines()[0] == "library_94 = 1" and len(everything["lib.py"].splitlines()) == 13


def test_libraries_are_packages_that_are_not_the_users_own() -> None:
    recording = Recording()
    own = ("load", "/home/me/own.py", 3)
    recording.allocate(recording.path(own, ("read", "/usr/lib/python3/site-packages/parts/reader.py", 8)), 1000)
    recording.allocate(recording.path(own), 500)
    recording.end()
    libraries = Page(page_of([report(recording)])).capture["user_lines"]["libraries"]
    assert sorted(libraries) == ["", "parts"]


def test_a_label_is_known_by_its_kind(tmp_path: Path) -> None:
    """What it says is no file of the program's, whatever the label is called; a function of that name is no label."""
    recording = Recording()
    line = recording.path(("load", "/work/own.py", 3))
    recording.allocate(recording.node(line, recording.code("[arena]", "mapped by lib.so", kind=LABEL)), 1000, "mapping")
    recording.allocate(recording.path(("[mapping]", "/work/made.py", 1)), 500)
    recording.end()
    files = {one["name"]: one["library"] for one in Page(page_of([report(recording)])).capture["files"]}
    del files[""]  # threads have none
    assert files == {"/work/own.py": False, "mapped by lib.so": True, "/work/made.py": False}


# The command


@needs_engine
def test_native_frames_are_in_a_page_with_their_libraries(tmp_path: Path) -> None:
    path = native_recordings.record(tmp_path, "kept = native.first(3_000_000)\n", "--native")
    plain = Page(page_of([Report(hiwater.open(path), "peak")]))
    assert "origin" not in plain.capture["frames"]
    report = Report(hiwater.open(path), "peak", frames="native")
    native_frames.show([report.capture], Frames.native, is_page=True)
    page = Page(page_of([report]))
    assert page.capture["asked"]["frames"] == "native"
    ((_, _, _, stack),) = [one for one in page.stacks(page.column("holders", "peak_bytes")) if one[0] == 3_000_000]
    names, functions = [one["name"] for one in page.capture["files"]], page.capture["functions"]
    of_frame = {
        functions[function]: names[origin - 2] if origin > 1 else origin
        for function, origin in zip(
            *(page.column("frames", name).tolist() for name in ("function", "origin")), strict=True
        )
    }
    assert [of_frame[function] for function, _, _ in stack[:1]] == [1]
    assert str(compiled.library("native_frames")) == of_frame["shapes::take(unsigned long)"]
    assert of_frame[""] == 0


def test_a_page_from_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capture = tmp_path / "a.hiw"
    capture.write_bytes(with_source(tmp_path).to_bytes())
    out = tmp_path / "a.html"
    assert main(["report", str(capture), "--format", "html", "-o", str(out), "--at", "end", "--kind", "python"]) == 0
    page = Page(out.read_text("utf-8"))
    asked = {
        "at": "end",
        "slice": None,
        "kind": "python",
        "by": "stack",
        "inverted": False,
        "frames": "python",
        "kept": False,
    }
    assert page.capture["asked"] == asked
    assert page.capture["summary"]["shown"]["bytes"] == 129
    assert main(["report", str(capture), str(capture), "--format", "html", "--source", "none", "-o", str(out)]) == 0
    assert Page(out.read_text("utf-8"), 1).capture["source"]["files"] == []
    assert main(["report", str(capture), "--format", "html", "--at", "0", "-o", "-"]) == 0
    assert Page(capfd.readouterr().out).capture["asked"]["slice"] == 0


def test_a_report_is_opened_as_a_file_beside_its_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    capture = tmp_path / "a b.hiw"
    capture.write_bytes(program().to_bytes())
    assert main(["report", str(capture), "--format", "html", "--open"]) == 0
    assert opened == [(tmp_path / "a b.html").as_uri()]
    assert Page((tmp_path / "a b.html").read_text("utf-8")).capture["title"] == "etl.py"
    odd = tmp_path / "odd.html"  # a capture that has the name of its report
    odd.write_bytes(capture.read_bytes())
    assert main(["report", str(odd), "--format", "html", "--open"]) == 2
    assert odd.read_bytes() == capture.read_bytes() and len(opened) == 1
    assert main(["report", str(capture), "--format", "text", "--open"]) == 2
    assert "--open needs html or svg" in capfd.readouterr().err


def test_the_manual_reads_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippet in docs/page.md, as it stands there."""
    what = report(program())
    (tmp_path / "run.html").write_text(page_of([what]), "utf-8")
    monkeypatch.chdir(tmp_path)
    manual = (ROOT / "docs" / "page.md").read_text("utf-8")
    snippet = re.search(r"```python\n(.*?)```", manual, re.DOTALL)
    assert snippet is not None
    names: dict[str, Any] = {}
    exec(snippet[1], names)
    holders = names["head"]["captures"][0]["holders"]
    assert names["numbers"](holders["peak_bytes"]) == Page(page_of([what])).column("holders", "peak_bytes").tolist()


def test_the_committed_page_is_small() -> None:
    assert len(gzip.compress((files("hiwater.report.html") / "page.template.html").read_bytes(), 9)) <= 80 * 1024
