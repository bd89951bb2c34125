"""Baselines: what is written is read again, bad files are refused in one line, and comparisons keep to the
tolerance."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiwater.analysis import baseline
from hiwater.analysis.baseline import FIGURES, Baseline, Entry, Tolerance
from hiwater.errors import BadBaseline, BadSize, OutputFailed, UsageError

COUNTS = st.integers(0, 1 << 50)
TOLERANCES = st.none() | st.builds(
    Tolerance, st.integers(0, 1 << 40), st.integers(0, 400).map(lambda percent: percent / 100)
)
FEW_FIGURES = st.dictionaries(st.sampled_from(list(FIGURES)), COUNTS)
ENTRIES = st.builds(Entry, FEW_FIGURES, TOLERANCES)
BASELINES = st.dictionaries(st.text(max_size=20), ENTRIES, max_size=5)


@given(BASELINES)
def test_what_is_written_is_read_again(entries: dict[str, Entry]) -> None:
    text = Baseline(entries).as_text()
    assert baseline.parse(text.encode("utf-8", "surrogatepass"), "file").as_text() == text
    read = baseline.parse(text.encode("utf-8", "surrogatepass"), "file").entries
    assert {name: (entry.figures, entry.tolerance) for name, entry in read.items()} == {
        name: (entry.figures, entry.tolerance) for name, entry in entries.items()
    }


def test_the_file_says_what_the_manual_shows(tmp_path: Path) -> None:
    entry = Entry({"allocations": 51_234, "peak_bytes": 104_857_600}, Tolerance(64 << 10, 0.02))
    file = tmp_path / "baseline.json"
    Baseline({"train": entry}).write(file)
    written = json.loads(file.read_text("utf-8"))
    manual = (Path(__file__).parents[2] / "docs" / "formats.md").read_text("utf-8")
    shown = json.loads(manual.partition("## What is in a baseline?")[2].partition("```json")[2].partition("```")[0])
    assert written["entries"] == shown["entries"]
    assert written.keys() == shown.keys() and written["environment"].keys() == shown["environment"].keys()
    assert all(f"`{figure}`" in manual for figure in FIGURES)


def test_a_changed_figure_is_one_changed_line() -> None:
    before = Baseline({"a": Entry({"peak_bytes": 1, "allocations": 2}), "b": Entry({"peak_bytes": 3})})
    after = before.updated({"b": Entry({"peak_bytes": 4})})
    lines = zip(before.as_text().splitlines(), after.as_text().splitlines(), strict=True)
    assert [pair for pair in lines if pair[0] != pair[1]] == [('      "peak_bytes": 3', '      "peak_bytes": 4')]


def test_an_update_keeps_tolerances_and_other_entries() -> None:
    before = Baseline({"a": Entry({"peak_bytes": 1}, Tolerance(5)), "b": Entry({"peak_bytes": 3})})
    after = before.updated({"a": Entry({"peak_bytes": 9}), "c": Entry({})})
    assert after.entries["a"] == Entry({"peak_bytes": 9}, Tolerance(5))
    assert after.entries["b"] == before.entries["b"] and "c" in after.entries


def naive_verdict(before: int | None, now: int | None, tolerated: int, error: int) -> str:
    if before is None:
        return "new"
    if now is None:
        return "missing"
    if before - max(tolerated, error) <= now <= before + max(tolerated, error):
        return "same"
    return "worse" if now > before else "better"


@given(BASELINES, BASELINES, TOLERANCES)
def test_comparisons_agree_with_a_naive_model(
    before: dict[str, Entry], now: dict[str, Entry], default: Tolerance | None
) -> None:
    found = {(one.name, one.figure): one for one in baseline.compare(before, now, default)}
    expected = {
        (name, figure)
        for side in (before, now)
        for name, entry in side.items()
        for figure in entry.figures
    }  # fmt: skip
    assert set(found) == expected
    for (name, figure), compared in found.items():
        was = before.get(name, Entry({})).figures.get(figure)
        is_now = now.get(name, Entry({})).figures.get(figure)
        tolerated = before[name].within(figure, default) if was is not None else 0
        assert compared.verdict == naive_verdict(was, is_now, tolerated, 0)
        assert (compared.before, compared.now) == (was, is_now)
        assert compared.allowed == (None if was is None or is_now is None else was + tolerated)


@pytest.mark.parametrize(
    ("tolerance", "figure", "before", "tolerated"),
    [
        ("5%", "peak_bytes", 1000, 50),
        ("64KiB", "peak_bytes", 1000, 65536),
        ("5%,64KiB", "peak_bytes", 10_000_000, 500_000),
        ("64KiB,5%", "peak_bytes", 1000, 65536),
        ("64KiB", "allocations", 1000, 50),
        ("1%,64KiB", "allocations", 1000, 10),
        ("0", "peak_bytes", 1000, 0),
        ("0%", "allocations", 1000, 0),
    ],
)
def test_tolerances(tolerance: str, figure: str, before: int, tolerated: int) -> None:
    parsed = baseline.parse_tolerance(tolerance)
    assert parsed.of(figure, before) == tolerated
    assert baseline.parse_tolerance(str(parsed)) == parsed


def test_the_defaults_are_wider_for_what_the_kernel_counts() -> None:
    entry = Entry(dict.fromkeys(FIGURES, 100))
    assert [entry.within(figure, None) for figure in FIGURES] == [65536, 65536, 100, 65536, 8 << 20, 8 << 20]


@pytest.mark.parametrize("text", ["", "many", "5%,6%", "1KiB,2KiB", "-1%", "nan%", "-5KiB", "5 parsecs"])
def test_what_is_no_tolerance_is_refused(text: str) -> None:
    with pytest.raises((UsageError, BadSize)):
        baseline.parse_tolerance(text)


def test_a_difference_within_the_errors_is_no_failure() -> None:
    before = Entry({"peak_bytes": 1000}, Tolerance(0), {"peak_bytes": 300})
    now = Entry({"peak_bytes": 1500}, None, {"peak_bytes": 400})
    compared = baseline.compare_figure("a", "peak_bytes", before, now)
    assert (compared.error, compared.verdict, compared.is_within_error) == (math.hypot(300, 400), "same", True)
    above = Entry({"peak_bytes": 1501}, None, {"peak_bytes": 400})
    assert baseline.compare_figure("a", "peak_bytes", before, above).verdict == "worse"


def test_bounds_of_resident_figures_add() -> None:
    before, now = (Entry({"resident_bytes": count}, Tolerance(0), {"resident_bytes": 300}) for count in (1000, 1600))
    assert baseline.compare_figure("a", "resident_bytes", before, now).verdict == "same"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a baseline"),
        ('{"schema": "hiwater.report/3"}', "is not a baseline"),
        ('{"schema": "hiwater-baseline"}', "has no version"),
        ('{"schema": "hiwater-baseline", "version": true}', "has no version"),
        ('{"schema": "hiwater-baseline", "version": 2}', "newer hiwater"),
        ('{"schema": "hiwater-baseline", "version": 1}', "is not an object"),
        ('{"schema": "hiwater-baseline", "version": 1, "entries": {"a": 1}}', "'a'"),
        ('{"schema": "hiwater-baseline", "version": 1, "entries": {"a": {"peak_bytes": -1}}}', "peak_bytes"),
        ('{"schema": "hiwater-baseline", "version": 1, "entries": {"a": {"peak_bytes": 1.5}}}', "peak_bytes"),
        ('{"schema": "hiwater-baseline", "version": 1, "entries": {"a": {"tolerance": 5}}}', "tolerance"),
        ('{"schema": "hiwater-baseline", "version": 1, "entries": {"a": {"tolerance": "x"}}}', "tolerance"),
        ('{"schema": "hiwater-baseline", "version": 1, "entries": {"a": {"errors": {"peak_bytes": "x"}}}}', "peak_"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(content, "utf-8")
    with pytest.raises(BadBaseline) as refused:
        baseline.read(file)
    assert words in str(refused.value) and "baseline.json" in str(refused.value)
    assert "\n" not in str(refused.value) and refused.value.exit_code == 2


def test_what_later_versions_add_is_ignored() -> None:
    content = (
        b'{"schema": "hiwater-baseline", "version": 1, "more": 1, "entries": {"a": {"peak_bytes": 1, "more": []}}}'
    )
    assert baseline.parse(content, "file").entries == {"a": Entry({"peak_bytes": 1})}


def test_a_file_that_is_not_there_and_a_folder_that_is_not(tmp_path: Path) -> None:
    with pytest.raises(BadBaseline, match="--update"):
        baseline.read(tmp_path / "none.json")
    with pytest.raises(OutputFailed):
        Baseline({}).write(tmp_path / "none" / "baseline.json")
