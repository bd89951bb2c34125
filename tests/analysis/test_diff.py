"""What grew between two captures: every byte is in a row, and moved lines and folders are not changes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hiwater
from capture_builder import Recording
from etl_example import record_script, recorded_versions
from example_captures import STACKS, each_hostile_name, in_memory, made, recorded, written_pair
from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.diff import GROUPINGS, Change, Limit, compare, judge
from hiwater.analysis.matching import LineFacts, align
from hiwater.analysis.naming import function_of, place_of
from hiwater.capture import Capture, Frame
from hiwater.cli import main
from hiwater.errors import BadRequest
from hiwater.report.diff_request import DiffReport
from hiwater.report.html import diff_page
from hiwater.report.text import diff_markdown, diff_text
from page_reader import Page
from recording import needs_engine, rounds
from written_reports import diff_as_json, shown


def changes(rows: Any) -> list[tuple[str, int]]:
    return [(change.state, change.bytes) for change in rows]


# Every byte is in a row


@settings(max_examples=rounds(60))
@given(STACKS, STACKS, st.sampled_from(GROUPINGS), st.sampled_from(("all", "python", "native")))
def test_rows_and_lines_sum_to_the_change(one: list[Any], other: list[Any], by: Grouping, kind: str) -> None:
    before, after = recorded(one), recorded(other)
    told = compare(before, after, kind=kind, by=by)
    assert told.allocated.change == after.peak.holdings(kind).total_bytes - before.peak.holdings(kind).total_bytes
    for rows in (told.rows, told.lines):
        assert sum(change.bytes for change in rows) == told.allocated.change
        sizes = [abs(change.bytes) for change in rows]
        assert sizes == sorted(sizes, reverse=True)
    assert diff_as_json(told)["allocated"]["bytes"]["change"] == told.allocated.change


@settings(max_examples=rounds(60))
@given(STACKS, STACKS)
def test_stacks_agree_with_a_count_by_hand_where_no_line_moved(one: list[Any], other: list[Any]) -> None:
    """Every line of every function is in both, so that lines can only match themselves."""
    everywhere = [
        ([(function, file, line)], "MainThread", "python", 1)
        for function in ("f", "g", "<module>")
        for file in ("/app/a.py", "/app/b.py", "/x/site-packages/p/q.py")
        for line in (1, 2, 3)
    ]
    before, after = recorded(one + everywhere), recorded(other + everywhere)
    expected: Counter[Any] = Counter()
    for capture, sign in ((before, -1), (after, 1)):
        for stack in capture.peak.stacks:
            expected[stack.frames, stack.kind] += sign * stack.bytes
    found = {(change.frames, change.kind): change.bytes for change in compare(before, after).rows}
    assert found == {key: count for key, count in expected.items() if count}


@settings(max_examples=rounds(40))
@given(STACKS, STACKS, st.sampled_from(GROUPINGS))
def test_the_other_way_round_everything_is_the_other_way_round(one: list[Any], other: list[Any], by: Grouping) -> None:
    before, after = recorded(one), recorded(other)
    forth, back = compare(before, after, by=by), compare(after, before, by=by)
    assert sorted(change.bytes for change in forth.rows) == sorted(-change.bytes for change in back.rows)
    assert list(compare(before, before, by=by).rows) == []


def test_a_removed_line_is_gone_although_the_next_one_has_taken_its_place() -> None:
    """The text of the earlier file is lost, and the lines call nothing: how much they allocated tells which is
    which."""
    sizes = {2: 180_000, 3: 10_000, 4: 25_000}
    before = made(
        *(([("work", "/a.py", line), ("new", "/lib/python3.12/b.py", 7)], size) for line, size in sizes.items())
    )
    after = made(
        *(
            ([("work", "/a.py", line - 1), ("new", "/lib/python3.12/b.py", 7)], size + 5)
            for line, size in sizes.items()
            if line > 2
        )
    )
    told = compare(before, after)
    assert changes(told.rows) == [("gone", -180_000), ("grew", 5), ("grew", 5)]  # with what the lines below it called
    assert [change.frames[0].line for change in told.lines] == [2, 2, 3]
    assert changes(told.lines) == changes(told.rows)


# Frames are matched although lines and folders moved


def test_a_function_that_moved_down_is_the_same() -> None:
    before = made(([("<module>", "/a.py", 20), ("load", "/a.py", 3)], 100), ([("load", "/a.py", 5)], 7))
    after = made(([("<module>", "/a.py", 31), ("load", "/a.py", 14)], 130), ([("load", "/a.py", 16)], 7))
    assert changes(compare(before, after).rows) == [("grew", 30)]
    assert changes(compare(before, after, by="line").rows) == [("grew", 30), ("grew", 0)]  # <module> through its callee
    assert changes(compare(before, after).lines) == [("grew", 30)]


def test_a_new_line_in_a_function_shifts_those_below_it() -> None:
    """What the lines call tells which is which."""
    before = made(
        ([("work", "/a.py", 2), ("read", "/a.py", 9)], 100), ([("work", "/a.py", 3), ("sort", "/a.py", 9)], 50),
    )  # fmt: skip
    after = made(
        ([("work", "/a.py", 2), ("read", "/a.py", 9)], 100), ([("work", "/a.py", 3), ("copy", "/a.py", 9)], 40),
        ([("work", "/a.py", 4), ("sort", "/a.py", 9)], 50),
    )  # fmt: skip
    (change,) = compare(before, after).rows
    assert (change.state, change.bytes, change.after[-1].function) == ("new", 40, "copy")


def facts(*lines: tuple[int, str]) -> list[LineFacts]:
    return [LineFacts(line, line, text, frozenset()) for line, text in lines]


def test_source_text_decides_where_it_is_known() -> None:
    before = facts((2, "a = load()"), (3, "b = [0] * n"), (4, "c = list(a)"))
    after = facts((2, "b = [0] * n"), (3, "c = list(a, strict=True)"), (9, "print('done, all is well')"))
    assert align(before, after) == {3: 2, 4: 3}


def test_without_text_the_order_decides() -> None:
    assert align(facts((2, ""), (5, ""), (9, "")), facts((2, ""), (6, ""), (10, ""))) == {2: 2, 5: 6, 9: 10}
    assert align(facts((2, ""), (5, "")), facts((2, ""), (4, ""), (5, ""))) == {2: 2, 5: 5}
    assert align([], facts((1, ""))) == {}


@settings(max_examples=rounds(100))
@given(st.lists(st.integers(1, 40), unique=True), st.lists(st.integers(1, 40), unique=True), st.data())
def test_pairs_of_lines_never_cross(one: list[int], other: list[int], data: st.DataObject) -> None:
    def some_facts(lines: list[int]) -> list[LineFacts]:
        text = st.sampled_from(("", "x = 1", "x = 2", "return [value for value in values]"))
        callees = st.frozensets(st.sampled_from("fgh"))
        return [LineFacts(line, line, data.draw(text), data.draw(callees)) for line in sorted(lines)]

    pairs = align(some_facts(one), some_facts(other))
    assert set(pairs) <= set(one) and set(pairs.values()) <= set(other)
    assert sorted(pairs.values()) == [pairs[line] for line in sorted(pairs)]
    assert len(set(pairs.values())) == len(pairs)


def test_text_of_both_files_is_used_when_both_are_as_recorded(tmp_path: Path) -> None:
    """Two checkouts: the lines have changed places, and order alone would match each with the other."""
    captures = []
    for name, lines in (
        ("one", ["", "small = take(1)", "large = take(2)"]),
        ("two", ["", "large = take(2)", "small = take(1)"]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.py").write_text("\n".join(lines))
        recording = Recording()
        recording.header["started_unix_ns"] = 1 << 62
        recording.fact("cwd", str(folder))
        for text, count in (("small = take(1)", 10), ("large = take(2)", 2000)):
            recording.allocate(recording.path(("work", str(folder / "a.py"), lines.index(text) + 1)), count)
        recording.end()
        path = folder / "run.hiw"
        path.write_bytes(recording.to_bytes())
        captures.append(hiwater.open(path))
    rows = captures[0].diff(captures[1], by="line").rows
    # Only one of the two can keep its partner, for pairs do not cross; it is matched exactly.
    assert changes(rows) in ([("new", 2000), ("gone", -2000)], [("new", 10), ("gone", -10)])


@pytest.mark.parametrize(
    ("before", "after", "facts_before", "facts_after"),
    [
        ("/ci/1/src/a.py", "/ci/2/src/a.py", {"cwd": "/ci/1"}, {"cwd": "/ci/2"}),
        ("/v1/lib/python3.11/site-packages/p/q.py", "/v2/lib/python3.13/site-packages/p/q.py", {}, {}),
        ("/usr/lib/python3.11/json/decoder.py", "/opt/py/lib/python3.12/json/decoder.py", {}, {}),
        ("/w/etl_before.py", "/w/etl_after.py", {"cwd": "/w", "argv": '["etl_before.py"]'},
            {"cwd": "/w", "argv": '["etl_after.py"]'}),
        ("/somewhere/pkg/mod.py", "/elsewhere/pkg/mod.py", {}, {}),
    ],
)  # fmt: skip
def test_files_are_matched_as_their_project_sees_them(
    before: str, after: str, facts_before: dict[str, str], facts_after: dict[str, str]
) -> None:
    one = made(([("f", before, 3)], 10), ([("f", "/other/x.py", 3)], 5), **facts_before)
    two = made(([("f", after, 3)], 25), ([("f", "/other/x.py", 3)], 5), **facts_after)
    for by in ("stack", "function", "line", "file"):
        assert changes(compare(one, two, by=by).rows) == [("grew", 15)]


def test_files_that_only_look_alike_are_two() -> None:
    one = made(([("f", "/a/x/util.py", 3)], 10), ([("f", "/a/y/util.py", 3)], 20))
    two = made(([("f", "/b/z/util.py", 3)], 10))
    assert Counter(changes(compare(one, two).rows)) == Counter({("gone", -10): 1, ("gone", -20): 1, ("new", 10): 1})


def test_a_comprehension_is_part_of_its_function() -> None:
    before = made(([("<module>", "/a.py", 9), ("f", "/a.py", 3)], 10))
    after = made(([("<module>", "/a.py", 9), ("f", "/a.py", 3), ("f.<locals>.<listcomp>", "/a.py", 3)], 25))
    assert changes(compare(before, after).rows) == changes(compare(before, after).lines) == [("grew", 15)]
    (row,) = (change for change in compare(before, after, by="function").rows if change.frames[0].function == "f")
    assert (row.before_total_bytes, row.after_bytes, row.after_total_bytes) == (10, 25, 25)
    assert function_of("<listcomp>") == "<module>" and function_of("f.<locals>.g") == "f.<locals>.g"
    assert function_of("C.f.<locals>.<listcomp>.<dictcomp>") == "C.f" and function_of("<genexpr>") == "<genexpr>"


def test_the_place_of_a_file() -> None:
    assert place_of("/p/src/a.py", ("/p", "/p/src")) == "a.py"
    assert place_of("/p2/src/a.py", ("/p", "")) == "/p2/src/a.py"
    assert place_of("<string>", ("/",)) == "<string>"


# Words


def test_states_and_frames() -> None:
    before = made(([("a", "/a.py", 1)], 10), ([("b", "/a.py", 1)], 20), ([("c", "/a.py", 1)], 30))
    after = made(
        ([("b", "/a.py", 1)], 25),
        ([("c", "/a.py", 1)], 10),
        ([("d", "/a.py", 1)], 40),
        ([("a", "/a.py", 1), ("e", "/a.py", 2)], 1),
    )
    rows = {change.frames[-1].function: change for change in compare(before, after, by="function").rows}
    assert {name: (row.state, row.bytes) for name, row in rows.items()} == {
        "d": ("new", 40), "c": ("shrank", -20), "a": ("shrank", -10), "b": ("grew", 5), "e": ("new", 1),
    }  # fmt: skip
    assert rows["d"].before == () and rows["d"].after == (Frame("d", "/a.py", 1),)
    assert rows["a"].after_total_bytes == 1


def test_an_increase_within_two_standard_errors_is_called_so() -> None:
    def sampled(count: int) -> Capture:
        recording = Recording()
        recording.header["sample_bytes"] = 1000
        recording.allocate(recording.path(("f", "/a.py", 1)), count)
        recording.end()
        return in_memory(recording)

    # sqrt(1000 × 100,000 + 1000 × 110,000) = 14,493: ten thousand more may be chance, forty thousand may not.
    little, much = compare(sampled(100_000), sampled(110_000)), compare(sampled(100_000), sampled(140_000))
    assert little.peak.standard_error_bytes == 14_493 and little.peak.is_within_error and not much.peak.is_within_error
    assert changes(little.rows) == [("within error", 10_000)] and changes(much.rows) == [("grew", 40_000)]
    assert "within error" in shown(diff_text, DiffReport(little)) and "within error" in shown(
        diff_markdown, DiffReport(little)
    )
    assert judge(little, Limit(bytes=1)).kept and not judge(much, Limit(bytes=1)).kept
    mixed = compare(made(([("f", "/a.py", 1)], 100_000)), sampled(110_000))
    assert mixed.peak.standard_error_bytes == 10_489  # of one side alone


@pytest.mark.parametrize(
    ("count", "limit", "kept"),
    [
        (150, Limit(bytes=50), True), (151, Limit(bytes=50), False), (105, Limit(percent=5), True),
        (106, Limit(percent=5), False),
        (100, Limit(bytes=0), True), (50, Limit(percent=0), True), (101, Limit(percent=0), False),
    ],
)  # fmt: skip
def test_limits(count: int, limit: Limit, kept: bool) -> None:
    told = compare(made(([("f", "/a.py", 1)], 100)), made(([("f", "/a.py", 1)], count)))
    assert judge(told, limit).kept is kept
    assert diff_as_json(told, limit)["limit"]["kept"] is kept


def test_from_nothing_every_increase_is_above_any_percentage() -> None:
    told = compare(made(), made(([("f", "/a.py", 1)], 1)))
    assert told.peak.percent is None and not judge(told, Limit(percent=1000)).kept


def test_other_moments_and_words_that_are_none() -> None:
    capture = made(([("f", "/a.py", 1)], 100))
    assert capture.diff(capture, at="end").allocated.change == capture.diff(capture, at=0.0).allocated.change == 0
    for asked in ({"at": "later"}, {"kind": "file"}, {"by": "thread"}, {"by": "class"}):
        with pytest.raises(BadRequest):
            capture.diff(capture, **asked)  # type: ignore[arg-type]  # that is the point


# Looks


@each_hostile_name
def test_hostile_names_stay_names(name: str) -> None:
    before = made(([(name, name, 3)], 10), program=name, argv=json.dumps([name]))
    after = made(([(name, name, 3)], 10), ([(name + "`|@x", name, 4)], 1000), program=name, cwd=name)
    told = compare(before, after)
    diff_as_json(told)
    out = shown(diff_text, DiffReport(told))
    assert "\x1b" not in out and "\u202e" not in out
    lines = shown(diff_markdown, DiffReport(told, verdict=judge(told, Limit(bytes=1)))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (6, 7) for line in table), table


def test_markdown_keeps_backticks_and_bars_inside_code() -> None:
    assert diff_markdown.code("a`b|c") == "``a`b\\|c``"
    assert diff_markdown.code("`") == "`` ` ``"
    assert diff_markdown.plain("<b>@me_[x](y)") == "\\<b\\>\\@me\\_\\[x\\]\\(y\\)"


def test_every_view_leads_with_the_net_change_and_its_causes() -> None:
    """The causes are lines: one in the direction of the net change, and one against it if it is not small."""
    before = made(([("keep", "/w/etl.py", 81)], 180 << 20), ([("split", "/w/etl.py", 90)], 20 << 20), cwd="/w")
    after = made(([("split", "/w/etl.py", 90)], 105 << 20), ([("small", "/w/etl.py", 3)], 1 << 20), cwd="/w")
    told = compare(before, after)
    words = "−94.0 MiB (−47.0 %) allocated at the peak: mostly −180.0 MiB at etl.py:81 (gone); +85.0 MiB at etl.py:90"
    text = shown(diff_text, DiffReport(told)).splitlines()
    assert text[1] == words
    assert [line.split(" (")[0] for line in text if line.startswith("Lines")] == [
        "Lines that shrank",
        "Lines that grew",
    ]
    said = diff_as_json(told)["headline"]
    assert said["words"] == words and said["change_bytes"] == -94 << 20
    assert [(one["change_bytes"] >> 20, one["state"], one["line"]) for one in said["causes"]] == [
        (-180, "gone", 81),
        (85, "grew", 90),
    ]
    assert diff_markdown.plain(words) in shown(diff_markdown, DiffReport(told))
    page = shown(diff_page, DiffReport(told))
    assert Page(page).capture["compared"]["headline"] == said and words in page
    back = compare(after, before)
    assert diff_as_json(back)["headline"]["words"].startswith(
        "+94.0 MiB (+88.7 %) allocated at the peak: mostly +180.0 MiB at etl.py:81 (new); −85.0"
    )
    assert diff_as_json(compare(before, before))["headline"] == {
        "change_bytes": 0, "causes": [], "words": "±0 B (±0.0 %) allocated at the peak",
    }  # fmt: skip


def test_captures_that_contradict_themselves_have_causes_of_the_other_direction_alone() -> None:
    """All lines grew, and what was allocated fell."""
    told = compare(made(([("keep", "/w/etl.py", 81)], 1 << 20)), made(([("keep", "/w/etl.py", 81)], 3 << 20)))
    fell = replace(told.allocated, before=told.allocated.after, after=told.allocated.before)
    (cause,) = replace(told, allocated=fell).causes
    assert cause.bytes == 2 << 20


def test_text_is_as_it_is() -> None:
    before = made(
        ([("<module>", "/w/etl.py", 9), ("load", "/w/etl.py", 3)], 3 << 20),
        ([("<module>", "/w/etl.py", 12)], 5000),
        program="etl.py",
    )
    after = made(([("<module>", "/w/etl.py", 10), ("load", "/w/etl.py", 4)], 7 << 20), program="etl.py")
    told = compare(before, after)
    assert shown(diff_text, DiffReport(told, verdict=judge(told, Limit(percent=5)))) == GOLDEN_TEXT


GOLDEN_TEXT = """\
hiwater diff  etl.py
+4.0 MiB (+133.0 %) allocated at the peak: mostly +4.0 MiB at /w/etl.py:4
  before  memory · process 4242 · Python ? · 0.00 s
  after   memory · process 4242 · Python ? · 0.00 s

Peak              before          after          change
  allocated       3.0 MiB        7.0 MiB        +4.0 MiB     +133.0 %  requested bytes · exact
  resident       64.0 MiB       64.0 MiB            ±0 B       ±0.0 %  exact

Totals
  at the end      3.0 MiB        7.0 MiB        +4.0 MiB     +133.0 %  still allocated
  allocated       3.0 MiB        7.0 MiB        +4.0 MiB     +133.0 %  requested over the whole recording
  blocks                2              1              −1      −50.0 %  allocations over the whole recording
  at peak               2              1              −1      −50.0 %  blocks at the peak
  temporary             0              0              +0               freed before the thread's next allocation

Lines that grew (your code and everything it called)  the peak, at 0.00 s and 0.00 s
      +4.0 MiB      3.0 MiB → 7.0 MiB     grew      load (etl.py:4)

Lines that shrank (your code and everything it called)  the peak, at 0.00 s and 0.00 s
      −4.9 KiB      4.9 KiB → 0 B         gone      <module> (etl.py:12)

Stacks that grew (innermost frame first)  the peak, at 0.00 s and 0.00 s
      +4.0 MiB      3.0 MiB → 7.0 MiB     grew      load (etl.py:4)  python
                                                   <module> (/w/etl.py:10)

Stacks that shrank (innermost frame first)  the peak, at 0.00 s and 0.00 s
      −4.9 KiB      4.9 KiB → 0 B         gone      <module> (etl.py:12)  python

Limit broken: allocated at the peak grew by +4.0 MiB (+133.0 %): more than 5 %
"""


# As it is typed


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return written_pair(tmp_path)


@pytest.mark.parametrize("output_format", ["text", "json", "markdown"])
def test_every_format_to_stdout_and_to_a_file(
    pair: tuple[Path, Path], output_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["diff", *map(str, pair), "--format", output_format]
    assert main(words) == 0
    told = capfd.readouterr()
    assert (told.err == "" and "+500" in told.out) or '"change": 500' in told.out
    assert main([*words, "-o", str(pair[0].parent / "out")]) == 0
    assert (pair[0].parent / "out").read_text("utf-8") == told.out


@pytest.mark.parametrize(
    ("limit", "code", "words"),
    [
        ("499", 1, "allocated at the peak grew by +500 B (+50.0 %): more than 499 B"), ("500", 0, ""),
        ("49.9%", 1, "more than 49.9 %"),
        ("50 %", 0, ""), ("0", 1, "more than 0 B"), ("1KiB", 0, ""), ("5 apples", 2, "is not a size"),
        ("-1", 2, "below zero"), ("x%", 2, "not a percentage"),
        ("nan%", 2, "not a percentage"), ("inf%", 2, "not a percentage"),
    ],
)  # fmt: skip
def test_fail_on_increase(
    pair: tuple[Path, Path], limit: str, code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *map(str, pair), f"--fail-on-increase={limit}"]) == code
    told = capfd.readouterr()
    assert words in told.err and told.err.count("\n") == (code != 0)
    assert ("Limit kept" in told.out) is (code == 0) and ("Limit broken" in told.out) is (code == 1)


def test_what_cannot_be_compared_is_one_line(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    folder, whole = pair[0].parent, pair[0].read_bytes()
    for name, content, words in (
        ("cut", whole[: len(whole) - 200_000], "truncated"), ("foreign", b"PK\x03\x04", "not a capture"),
        ("newer", whole[:8] + b"\x09" + whole[9:], "version 9"),
    ):  # fmt: skip
        (folder / name).write_bytes(content)
        for captures in ([pair[0], folder / name], [folder / name, pair[0]]):
            assert main(["diff", *map(str, captures)]) == 2
            told = capfd.readouterr()
            assert told.out == "" and told.err.count("\n") == 1 and words in told.err and name in told.err
    assert main(["diff", str(pair[0]), str(folder / "missing")]) == 2
    assert "there is no capture" in capfd.readouterr().err
    assert main(["diff", *map(str, pair), "--at", "99"]) == 2
    capfd.readouterr()
    for formats in (["pdf"], ["json", "markdown"]):
        assert main(["diff", *map(str, pair), *(f"--format={name}" for name in formats)]) == 2
        told = capfd.readouterr().err
        assert told.count("\n") == 1 and "choose one of" in told
    assert main(["diff", *map(str, pair), "-o", str(pair[1])]) == 2
    assert "would replace" in capfd.readouterr().err
    assert main(["diff", *map(str, pair), "-o", str(folder / "no/such")]) == 125


@pytest.mark.parametrize("words", [("--by", "thread"), ("--kind", "file"), ("--top", "0"), ("--at", "x")])
def test_a_wrong_request_is_2(
    pair: tuple[Path, Path], words: tuple[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diff", *map(str, pair), *words])
    assert ended.value.code == 2 and capfd.readouterr().out == ""


# Recorded


@needs_engine
def test_a_file_edited_in_place_names_the_changed_line(tmp_path: Path) -> None:
    """The text of the first run is gone; the lines around the change have moved."""
    script = tmp_path / "work.py"
    body = (
        "def load(n):\n    return bytearray(n)\n\n\ndef work():\n    one = load(3_000_000)\n"
        "{}    two = load(2_000_000)\n    return one, two\n\n\nkept = work()\n"
    )
    script.write_text(body.format(""))
    before = record_script(tmp_path, script, "before.hiw")
    script.write_text("# a new first line\n\n" + body.format("    more = bytearray(1_500_000)\n"))
    after = record_script(tmp_path, script, "after.hiw")
    told = hiwater.open(before).diff(after)
    first = told.rows[0]
    assert (first.state, first.after[-1].line) == ("new", 9) and 1_500_000 <= first.bytes < 1_501_000
    assert not [change for change in told.lines[1:] if abs(change.bytes) > 100_000]


@needs_engine
def test_the_fault_of_the_example_is_named_first(tmp_path_factory: pytest.TempPathFactory) -> None:
    before, after = recorded_versions(tmp_path_factory)
    told = hiwater.open(before).diff(after)
    first = told.lines[0]
    assert isinstance(first, Change) and first.state == "grew" and "Pipeline.apply" in first.frames[0].function
    line = after.with_name("etl_after.py").read_text("utf-8").splitlines()[first.after[0].line - 1]
    assert "table.copy(deep=True) for _ in range(2)" in line
    assert first.bytes > 20 << 20 and first.bytes > 10 * max(abs(change.bytes) for change in told.lines[1:])
