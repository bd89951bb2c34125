"""Exports to other programs' formats: each is read by a reader that is not ours, and all say the same."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_builder import Recording
from example_captures import STACKS, each_hostile_name, in_memory, recorded, small
from hiwater.analysis.call_tree import Grouping
from hiwater.cli import main
from hiwater.cli import report as report_verb
from hiwater.device_history.pprof_proto import profile_pb2
from hiwater.report.export import collapsed, csv_rows, json_report, pprof, speedscope
from hiwater.report.formatting import size
from hiwater.report.request import Report
from hiwater.report.text import overview, table
from json_paths import tuples_of
from places import TESTS
from recording import rounds
from written_reports import shown

SPEEDSCOPE = jsonschema_rs.Draft7Validator(
    json.loads((TESTS / "data" / "speedscope-1.25.0.schema.json").read_text("utf-8"))
)


class Bytes(io.StringIO):
    """A stream of text with one of bytes below it, as files have."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = io.BytesIO()


def as_json(*what: Report) -> Any:
    return json.loads(shown(json_report, what))


def as_pprof(what: Report) -> Any:
    stream = Bytes()
    pprof.write(what, stream)
    made: Any = profile_pb2
    profile = made.Profile()
    profile.ParseFromString(gzip.decompress(stream.buffer.getvalue()))
    return profile


def as_speedscope(*what: Report) -> Any:
    said = json.loads(shown(speedscope, what))
    SPEEDSCOPE.validate(said)
    return said


def as_csv(*what: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(shown(csv_rows, what))))


# All say the same


@settings(max_examples=rounds(60))
@given(STACKS, st.sampled_from(("all", "python", "native", "device")))
def test_every_format_has_the_same_sum_in_the_same_order(stacks: list[Any], kind: str) -> None:
    capture = recorded(stacks)
    what = Report(capture, capture.peak, kind)
    said = as_json(what)
    sizes = [stack["bytes"] for stack in said["stacks"]]
    whole = sum(sizes)
    assert whole == said["shown"]["bytes"] == what.holdings.total_bytes
    paths = [line.rpartition(" ") for line in shown(collapsed, what).splitlines()]
    assert [int(count) for _, _, count in paths] == sizes
    rows = as_csv(what)
    assert [int(row["held_bytes"]) for row in rows] == sizes
    assert [row["stack"] for row in rows] == [path for path, _, _ in paths]
    of_bytes, of_blocks = as_speedscope(what)["profiles"]
    assert of_bytes["weights"] == sizes and of_bytes["endValue"] == whole
    assert of_blocks["weights"] == [stack["blocks"] for stack in said["stacks"]]
    assert [sample.value[3] for sample in as_pprof(what).sample] == sizes
    for view in (overview, table):
        assert size(whole) in shown(view, what)


@settings(max_examples=rounds(30))
@given(STACKS)
def test_stacks_have_the_same_frames_everywhere(stacks: list[Any]) -> None:
    capture = recorded(stacks)
    what = Report(capture, capture.peak)
    told = as_json(what)
    expected = [tuples_of(told, stack["node"]) or [("[no Python frame]", "", 0)] for stack in told["stacks"]]
    said = as_speedscope(what)
    frames = [(frame["name"], frame.get("file", ""), frame.get("line", 0)) for frame in said["shared"]["frames"]]
    assert [[frames[number] for number in sample] for sample in said["profiles"][0]["samples"]] == expected
    profile = as_pprof(what)
    texts = profile.string_table
    functions = {function.id: (texts[function.name], texts[function.filename]) for function in profile.function}
    places = {place.id: (*functions[place.line[0].function_id], place.line[0].line) for place in profile.location}
    assert [[places[number] for number in reversed(sample.location_id)] for sample in profile.sample] == expected


@pytest.mark.parametrize("by", [grouping for grouping in Grouping if grouping != Grouping.stack])
def test_rows_by_anything_are_those_of_json(by: Grouping) -> None:
    capture = in_memory(small())
    what = Report(capture, capture.peak, by=by)
    groups = as_json(what)["groups"]
    said = [{name: row[name] for name in groups[0]} for row in as_csv(what)]
    assert said == [{name: str(value) for name, value in group.items()} for group in groups]


# Each in its own right


def test_pprof_has_what_was_allocated_and_what_is_held() -> None:
    capture = in_memory(small())
    profile = as_pprof(Report(capture, capture.end))
    texts = profile.string_table
    assert [(texts[kind.type], texts[kind.unit]) for kind in profile.sample_type] == list(pprof.SAMPLE_TYPES)
    assert texts[profile.default_sample_type] == "inuse_space"
    sums = [sum(column) for column in zip(*(sample.value for sample in profile.sample), strict=True)]
    assert sums == [capture.totals.allocations, capture.totals.allocated_bytes, capture.end.allocated_blocks, 4596]
    labels = [{texts[label.key]: texts[label.str] for label in sample.label} for sample in profile.sample]
    assert {"kind": "mapping", "thread": "worker"} in labels
    assert any("requested bytes" in texts[number] and "exact" in texts[number] for number in profile.comment)


@pytest.mark.skipif(shutil.which("go") is None, reason="`go tool pprof` is not installed")
def test_go_tool_pprof_reads_it(tmp_path: Path) -> None:
    capture = in_memory(small())
    path = tmp_path / "peak.pb.gz"
    stream = Bytes()
    pprof.write(Report(capture, capture.peak), stream)
    path.write_bytes(stream.buffer.getvalue())

    def told(*words: str) -> str:
        command = ["go", "tool", "pprof", *words, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    raw = told("-raw")
    assert "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]" in raw
    assert "kind:[mapping]" in raw and "thread:[worker]" in raw
    top = told("-top", "-unit=B", "-nodefraction=0")
    assert "Type: inuse_space" in top and "5596B total" in top
    assert any(line.split()[0] == "4596B" and line.endswith("parse") for line in top.splitlines() if line.split())
    assert "1500" not in told("-top", "-sample_index=inuse_objects", "-nodefraction=0")
    assert "requested bytes" in told("-comments")


def test_a_sampled_figure_has_its_error() -> None:
    recording = small()
    recording.header["sample_bytes"] = 65536
    sampled = in_memory(recording)
    rows = as_csv(Report(sampled, sampled.peak))
    assert {row["kind"]: row["standard_error_bytes"] != "0" for row in rows} == {
        "mapping": False,
        "python": True,
        "native": True,
    }


@each_hostile_name
def test_hostile_names_stay_names(name: str) -> None:
    recording = Recording()
    for key in ("program", "cwd", "host", "python"):
        recording.fact(key, name)
    recording.allocate(recording.path((name, name, 3), thread=name), 1000, "native")
    recording.end()
    capture = in_memory(recording)
    what = Report(capture, capture.peak)
    assert as_csv(what)[0]["held_bytes"] == "1000" and len(shown(csv_rows, [what]).splitlines()) == 2
    assert as_speedscope(what)["profiles"][0]["weights"] == [1000]
    assert as_pprof(what).sample[0].value[3] == 1000


def test_an_empty_recording_has_every_format() -> None:
    capture = in_memory(Recording())
    what = Report(capture, capture.peak)
    assert as_csv(what) == [] and len(as_pprof(what).sample) == 0
    assert as_speedscope(what)["profiles"][0]["samples"] == []


# As it is typed


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "run.hiw"
    path.write_bytes(small().to_bytes())
    return path


def test_binary_goes_to_files_and_pipes(capture: Path) -> None:
    out = capture.parent / "out"
    command = [sys.executable, "-m", "hiwater", "report", str(capture), "--format", "pprof"]
    subprocess.run([*command, "-o", str(out)], check=True)
    done = subprocess.run([*command, "-o", "-"], check=True, capture_output=True)
    assert done.stdout == out.read_bytes() and len(done.stdout) > 100 and done.stderr == b""


def test_binary_is_not_for_a_terminal(capture: Path) -> None:
    code = (
        f"import pty, sys; sys.exit(pty.spawn([{sys.executable!r}, '-m', 'hiwater', 'report', {str(capture)!r}, "
        "'--format', 'pprof', '-o', '-']) >> 8)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2 and "cannot be shown on a terminal" in done.stdout


def test_a_missing_extra_is_one_line_with_the_command(capture: Path) -> None:
    code = (
        f"import sys; sys.modules['google'] = None; from hiwater.cli import main;"
        f"sys.exit(main(['report', {str(capture)!r}, '--format', 'pprof', '-o', 'out']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=capture.parent)
    assert done.returncode == 125 and done.stderr.count("\n") == 1
    assert "pip install 'hiwater[pprof]'" in done.stderr and not (capture.parent / "out").exists()


def test_a_profile_shows_one_capture(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(capture), str(capture), "--format", "pprof", "-o", str(capture.parent / "out")]) == 2
    assert "one capture" in capfd.readouterr().err


@pytest.mark.parametrize("output_format", ["speedscope", "csv"])
def test_several_captures_are_in_one_file(capture: Path, output_format: str) -> None:
    other, written = capture.parent / "other.hiw", capture.parent / "all"
    recording = small()
    recording.header["pid"] = 77
    other.write_bytes(recording.to_bytes())
    assert main(["report", str(capture), str(other), "--format", output_format, "-o", str(written)]) == 0
    text = written.read_text()
    assert "4242" in text and "77" in text


def test_every_format_is_known_to_run() -> None:
    """`hiwater run --format` takes what `hiwater report --format` takes, but for source, which is a report of its
    own."""
    from hiwater.cli import run_arguments

    known = {*run_arguments.SHOWN_FORMATS, *run_arguments.FILE_SUFFIXES}
    assert set(report_verb.FORMATS) - known == {"lines"}
