"""The recorder in Python, sizes, and the public door."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import compiled
import hiwater
from children import run_hiwater
from hiwater._os.sizes import format_size, parse_size
from hiwater.errors import BadSize, CaptureUnwritable, NotRecording
from waiting import wait_until


@pytest.fixture
def engine() -> None:
    pytest.importorskip("hiwater._core", reason="built without the engine")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64KiB", 65536),
        ("1MB", 10**6),
        ("500_000", 500_000),
        ("1.5 GiB", 3 * 2**29),
        ("0", 0),
        ("2tib", 2**41),
        (" 7 b ", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text", ["", "KiB", "12 parsecs", "1..5MB", "-1", "nan", "inf KB", "1e999", "64 K i B", "0x10"]
)
def test_what_is_no_size_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(BadSize, match="64KiB"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**60))
def test_a_size_reads_back_within_its_digits(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (65536, "64.0 KiB"),
        (-2048, "-2.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
    ],
)
def test_sizes_are_written_in_three_digits(count: int, text: str) -> None:
    assert format_size(count) == text


def test_importing_is_cheap_and_loads_nothing_else() -> None:
    program = "import sys; before = set(sys.modules); import hiwater; print(sorted(set(sys.modules) - before))"
    # Without site: an editable installation has an import hook of its own, which loads much.
    environment = {**os.environ, "PYTHONPATH": str(Path(hiwater.__file__).parents[1])}
    words = [sys.executable, "-S", "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.strip("[]\n").replace("'", "").split(", ")) <= {"hiwater", "__future__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hiwater.nothing
    assert "record" in dir(hiwater)


def test_bad_paths_and_sizes_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CaptureUnwritable):
        hiwater.record("%q.hiw")
    with pytest.raises(BadSize):
        hiwater.record(tmp_path / "a.hiw", sample="many")


def test_a_recording_has_a_path_a_summary_and_snapshots(engine: None, tmp_path: Path) -> None:
    with hiwater.record(tmp_path / "a.hiw") as recorder:
        held = bytearray(3_000_000)
        first = recorder.snapshot()
        second = recorder.snapshot(tmp_path / "mine.hiw")
        so_far = recorder.summary()
    assert len(held) == 3_000_000
    assert recorder.path == str(tmp_path / "a.hiw")
    assert (first, second) == (str(tmp_path / "a.1.hiw"), str(tmp_path / "mine.hiw"))
    assert so_far["peak_bytes"] >= 3_000_000
    assert recorder.summary()["peak_bytes"] >= so_far["peak_bytes"]
    for path in (recorder.path, first, second):
        assert Path(path).read_bytes()[1:4] == b"HIW"


def full_collections(path: Path) -> float:
    return sum(marker.value for marker in hiwater.open(path).markers)


def test_full_garbage_collections_are_marked_with_their_number(engine: None, tmp_path: Path) -> None:
    gc.disable()
    try:
        with hiwater.record(tmp_path / "a.hiw"):
            for number in range(1, 6):
                gc.collect()
                gc.collect(0)
                gc.collect(1)
                wait_until(lambda: full_collections(tmp_path / "a.hiw") == number)  # noqa: B023 - called at once
            gc.collect()
    finally:
        gc.enable()
    capture = hiwater.open(tmp_path / "a.hiw")
    assert [(marker.kind, marker.value) for marker in capture.markers] == [("gc", 1)] * 6
    assert [marker.at_ns for marker in capture.markers] == sorted(marker.at_ns for marker in capture.markers)


@pytest.mark.once
@pytest.mark.parametrize(
    ("refused", "said", "exactness"),
    [
        ("threads", "there is no timeline of it", "exact"),
        ("pages", "so some calls and the modules loaded from now on are not recorded", "at least: some calls"),
        ("nothing", "", "exact"),
    ],
)
def test_what_the_system_refuses_is_told(engine: None, tmp_path: Path, refused: str, said: str, exactness: str) -> None:
    done = run_hiwater(
        "run", "-q", "-o", "a.hiw", "-c", "held = bytearray(3_000_000); print(len(held))", folder=tmp_path, check=True,
        environment={"LD_PRELOAD": str(compiled.library("refuses")), "REFUSING": refused},
    )  # fmt: skip
    assert done.stdout == "3000000\n"
    assert (done.stderr.count("\n"), said in done.stderr) == (1 if said else 0, True)
    capture = hiwater.open(tmp_path / "a.hiw")
    assert capture.problems() == []
    assert [said in what for what in capture.shortcomings] == [True] * bool(said)
    assert capture.misses_calls == (refused == "pages")
    text, json_text = (
        run_hiwater("report", "a.hiw", "--format", form, folder=tmp_path, check=True).stdout
        for form in ("text", "json")
    )
    assert said in " ".join(text.split()) and re.search(rf"allocated +2\.9 MiB  {exactness}", text)
    assert json.loads(json_text)["shortcomings"] == capture.shortcomings


def test_a_recorder_that_does_not_record_says_so(engine: None, tmp_path: Path) -> None:
    recorder = hiwater.record(tmp_path / "a.hiw")
    with pytest.raises(NotRecording):
        recorder.snapshot()
    with recorder:
        pass
    recorder.stop()
    with pytest.raises(NotRecording):
        recorder.snapshot()


def test_a_file_that_is_not_ours_is_left_alone(engine: None, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CaptureUnwritable, match="is not a capture"):
        hiwater.record(tmp_path / "notes.txt").start()
    assert (tmp_path / "notes.txt").read_text() == "mine"
