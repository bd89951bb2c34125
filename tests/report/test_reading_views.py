"""Every look shows the same sum in the same order, and no name can break out of it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schemas
from capture_builder import COUNTED_KINDS, FAILED, KINDS, Recording
from example_captures import each_hostile_name, hostile, program, small
from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.source import Sources
from hiwater.capture import Capture
from hiwater.report.export import collapsed, csv_rows, svg
from hiwater.report.formatting import printable, size
from hiwater.report.text import full, overview, table, tree
from json_paths import frames_of, tuples_of
from page_reader import Page, page_of
from recording import rounds
from written_reports import as_csv, as_json, as_pprof, as_speedscope, report, shown

SVG = "{http://www.w3.org/2000/svg}"


def test_the_schema_is_a_schema() -> None:
    assert schemas.validator_of("report")


def test_json_has_the_promised_shape() -> None:
    said = as_json(report(program()))
    assert said["schema"] == "hiwater.report/3"
    assert said["peak"]["allocated_bytes"] == sum(stack["bytes"] for stack in said["stacks"]) == 2780
    assert said["peak"]["python_bytes"] == 1800 and said["peak"]["blocks"] == 10
    assert {entry["class"]: entry["bytes"] for entry in said["mappings"]}["slack"] == 60
    first = said["stacks"][0]
    assert first == {
        "bytes": 900,
        "blocks": 1,
        "kind": "python",
        "thread": "thread-0",
        "node": first["node"],
    }
    assert frames_of(said, first["node"]) == [
        {"function": "<module>", "file": "/app/etl.py", "line": 1},
        {"function": "work", "file": "/app/etl.py", "line": 0},
    ]
    assert said["children"] == []


def test_json_of_a_family_nests_and_of_strangers_lists() -> None:
    parent, child, stranger = program(), program(), program()
    child.header["pid"] = 77
    child.fact("ppid", "4242")
    family = as_json(report(parent), report(child))
    assert [member["process"]["pid"] for member in family["children"]] == [77]
    stranger.header["pid"] = 9
    parted = as_json(report(parent), report(child), report(stranger))
    assert [(one["process"]["pid"], len(one["children"])) for one in parted] == [(4242, 1), (9, 0)]


@pytest.mark.parametrize("kind", ["all", *COUNTED_KINDS])
@pytest.mark.parametrize("by", [None, *Grouping])
@pytest.mark.parametrize("inverted", [False, True])
def test_all_looks_show_the_same_sum_in_the_same_order(kind: str, by: Grouping | None, inverted: bool) -> None:
    what = report(program(), kind=kind, by=by, inverted=inverted)
    whole = what.holdings.total_bytes
    said = as_json(what)
    sizes = [stack["bytes"] for stack in said["stacks"]]
    assert sum(sizes) == said["shown"]["bytes"] == whole
    assert sizes == sorted(sizes, reverse=True)
    if by not in (None, Grouping.stack):
        assert sum(group["self_bytes"] for group in said["groups"]) == whole
    lines = shown(collapsed, what).splitlines()
    assert [int(line.rpartition(" ")[2]) for line in lines] == sizes
    page = Page(page_of([what]))
    kinds = range(len(COUNTED_KINDS)) if kind == "all" else (KINDS.index(kind),)
    assert [stack[0] for stack in page.stacks(page.column("holders", "peak_bytes"), kinds)] == sizes
    drawing = ElementTree.fromstring(shown(svg, what))
    boxes = drawing.findall(f".//{SVG}g[@class='f']")
    assert int(boxes[0].attrib["data-w"]) == int(drawing.attrib["data-bytes"]) == whole
    assert shown(tree, what).startswith(f"{size(whole):>11}")
    assert size(whole) in shown(table, what) and size(whole) in shown(overview, what)


def test_collapsed_is_json_in_lines() -> None:
    what = report(program())
    said = as_json(what)
    from_json = [
        (
            ";".join(
                f"{frame['function']} ({frame['file']}:{frame['line']})" for frame in frames_of(said, stack["node"])
            ),
            stack["bytes"],
        )
        for stack in said["stacks"]
    ]
    from_lines = [
        (line.rpartition(" ")[0], int(line.rpartition(" ")[2])) for line in shown(collapsed, what).splitlines()
    ]
    # A line of 0 is none: the frame is then `function (file)`.
    assert from_lines == [(path.replace(":0)", ")"), count) for path, count in from_json]


@settings(max_examples=rounds(40))
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=400), st.integers(0, 2**32 - 1))
def test_the_texts_of_paths_are_those_of_the_stacks(choices: list[int], seed: int) -> None:
    """Any tree, with paths deeper than a stride: json against the stacks made one by one."""
    recording = Recording()
    nodes = [recording.thread()]
    for number, choice in enumerate(choices):
        # Mostly under the newest node: that makes paths hundreds of frames deep.
        above = nodes[-1] if choice % 10 else nodes[choice % len(nodes)]
        nodes.append(recording.node(above, recording.code(f"f{choice % 7}", "a.py", 1), number % 5))
        if choice % 3 == 0:
            recording.allocate(nodes[-1], 1 + choice + seed % 50)
    what = report(recording)
    told = as_json(what)
    said = [(stack["bytes"], stack["thread"], tuples_of(told, stack["node"])) for stack in told["stacks"]]
    expected = [
        (stack.bytes, stack.thread, [(frame.function, frame.file, frame.line) for frame in stack.frames])
        for stack in what.capture.peak.stacks
    ]
    assert said == expected


# Names nobody should trust


@pytest.mark.parametrize("by", [None, *Grouping])
@each_hostile_name
def test_hostile_names_stay_names(name: str, by: Grouping | None) -> None:
    what = report(hostile(name), by=by)
    said = as_json(what)
    assert frames_of(said, said["stacks"][0]["node"])[0]["line"] == 3
    drawing = ElementTree.fromstring(shown(svg, what))
    assert len(drawing.findall(f".//{SVG}script")) == 1
    lines = shown(collapsed, what).splitlines()
    assert len(lines) == 1 and lines[0].endswith(" 1000")
    assert lines[0].count(";") == (
        1 if by in (None, Grouping.stack, Grouping.line, Grouping.function) else lines[0].count(";")
    )
    assert len(as_csv(what)) == len(shown(csv_rows, [what]).splitlines()) - 1 > 0
    assert by is not None or as_csv(what)[0]["held_bytes"] == "1000"
    assert as_speedscope(what)["profiles"][0]["weights"] == [1000]
    assert as_pprof(what).sample[0].value[3] == 1000
    for view in (overview, full, tree, table):
        out = shown(view, what)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u2028\ud800-\udfff]", out)
        out.encode("utf-8")


def test_printable_escapes_what_moves_and_shortens_the_middle() -> None:
    assert printable("a\x1b[31mb\u202e\n") == "a\\x1b[31mb\\u202e\\x0a"
    assert printable("caf\u00e9 \U0001f600") == "caf\u00e9 \U0001f600"
    assert printable("abcdefghij", 5) == "ab…ij"


# Text


def test_text_says_what_limits_trust() -> None:
    recording = program()
    recording.header.update(
        state=FAILED, stop_reason=recording.string("the disk is full"), lost_events=12, resident_exact=0
    )
    out = shown(overview, report(recording))
    for words in (
        "recording stopped early: the disk is full",
        "12 events were lost",
        " · not every block recorded",
        "not exact: events were lost",
        "at least: highest sample",
    ):
        assert words in out


def test_text_is_as_it_is(tmp_path: Path) -> None:
    """The whole report of a small recording: a change of its looks is to be seen in a diff."""
    source = tmp_path / "etl.py"
    source.write_text("".join(f"rows{number} = load({number})\n" for number in range(1, 20)))
    recording = Recording()
    recording.fact("program", "etl.py")
    recording.fact("python", "3.11.7")
    recording.allocate(recording.path(("<module>", "etl.py", 12)), 5000, "file")
    recording.allocate(recording.path(("<module>", "etl.py", 9), ("load", "etl.py", 3)), 3 << 20, blocks=3)
    recording.allocate(recording.path(("<module>", "etl.py", 12)), 1 << 20, "native")
    recording.fact("cwd", str(tmp_path))
    recording.header["started_unix_ns"] = 1 << 62
    recording.end()
    assert shown(full, report(recording)) == GOLDEN_TEXT
    assert " run.hiw --".join(re.split(r" \S+ --", shown(overview, report(recording)))) == GOLDEN_OVERVIEW


GOLDEN_OVERVIEW = """\
hiwater  etl.py
4.0 MiB allocated at the peak; most at etl.py:3 in load: 3.0 MiB (75.0 %)
Python 3.11.7 · process 4242 ended after 0.00 s · every block recorded

Peak
  allocated      4.0 MiB  exact · requested bytes · 4 blocks · at 0.00 s
  resident      64.0 MiB  exact · kernel's high-water mark
  at the end     4.0 MiB  still allocated in 4 blocks
  by kind                 Python 3.0 MiB (75.0 %) · native heap 1.0 MiB (25.0 %)

Your lines  with everything that they called, at the peak, at 0.00 s
      3.0 MiB   75.0 %  etl.py:3   rows3 = load(3)
      1.0 MiB   25.0 %  etl.py:12  rows12 = load(12)

More
  hiwater report run.hiw --stacks       the stacks that hold most
  hiwater report run.hiw --tree         the call tree
  hiwater report run.hiw --html --open  a page with everything, in the browser
  hiwater report run.hiw --full         every figure and table
"""


GOLDEN_TEXT = """\
hiwater  etl.py
Python 3.11.7 · process 4242 ended after 0.00 s · every block recorded
4.0 MiB allocated at the peak; most at etl.py:3 in load: 3.0 MiB (75.0 %)

Peak
  allocated      4.0 MiB  exact · requested bytes · 4 blocks · at 0.00 s
  resident      64.0 MiB  exact · kernel's high-water mark
                          16.0 MiB at the start, 32.0 MiB at the end
  at the end     4.0 MiB  still allocated in 4 blocks, of 4.0 MiB in 4 allocations

Held by kind  at the peak, at 0.00 s: 4.0 MiB
      3.0 MiB   75.0 %  ███████████████·····  Python objects and buffers
      1.0 MiB   25.0 %  █████···············  native heap (malloc and its family)
          0 B    0.0 %  ····················  anonymous mappings
      4.9 KiB        –                        file-backed mappings, not part of the sum

From allocated to resident  the peaks are different quantities, each at its own moment
      4.0 MiB  allocated at its peak
+    16.0 MiB  resident before the recording began
+    44.0 MiB  not counted: libraries loaded since, allocator slack, file pages
=    64.0 MiB  resident at its peak

Your lines  with everything they called, each byte counted once, without what was never touched \
· 4.0 MiB at the peak, at 0.00 s
      3.0 MiB   75.0 %  load (etl.py:3)  3 blocks
                            rows3 = load(3)
      1.0 MiB   25.0 %  <module> (etl.py:12)  1 block
                            rows12 = load(12)

Stacks that held most  innermost frame first, without the import system's own frames
      3.0 MiB   75.0 %  python · MainThread  3 blocks
                        load (etl.py:3)
                            rows3 = load(3)
                        <module> (etl.py:9)
                            rows9 = load(9)
      1.0 MiB   25.0 %  native · MainThread  1 block
                        <module> (etl.py:12)
                            rows12 = load(12)
"""


def test_source_is_read_from_files_only(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"# coding: latin-1\n   x = '\xe9'\n")
    os.mkfifo(tmp_path / "pipe.py")
    sources = Sources(str(tmp_path), 1 << 62)
    assert sources.line("a.py", 2) == "x = 'é'"
    assert [
        sources.line(*where)
        for where in (("a.py", 9), ("pipe.py", 1), ("no.py", 1), ("<string>", 1), ("", 1), ("/", 1), ("a\0", 1))
    ] == [""] * 7
    assert not sources.changed
    old = Sources(str(tmp_path), 0)
    old.line("a.py", 1)
    assert old.changed == {"a.py"}


def test_trees_of_very_deep_stacks_are_drawn() -> None:
    recording = Recording()
    recording.allocate(recording.path(*[("down", "/app/deep.py", 3)] * 6000), 64)
    what = report(recording)
    sampled = shown(tree, what)
    assert sampled.count("down") == 64 and "… 5,936 calls …" in sampled
    assert shown(svg, what).count("<g class") == svg.DEEPEST_ROW + 1
    said = as_json(what)
    assert len(frames_of(said, said["stacks"][0]["node"])) == len(said["nodes"]) == 6000 and len(said["frames"]) == 1
    assert shown(collapsed, what).count(";") == 5999
    assert "5988 frames" in shown(full, what)


def test_an_empty_recording_has_every_look() -> None:
    what = report(Recording())
    assert as_json(what)["stacks"] == [] and shown(collapsed, what) == ""
    assert as_csv(what) == [] and len(as_pprof(what).sample) == 0
    assert as_speedscope(what)["profiles"][0]["samples"] == []
    for view in (overview, full, tree, table, svg):
        assert "0 B" in shown(view, what)


def test_several_kinds_at_one_place_are_apart(tmp_path: Path) -> None:
    what = report(small())
    assert isinstance(what.capture, Capture)
    assert [stack["kind"] for stack in as_json(what)["stacks"]] == ["mapping", "python", "native"]
