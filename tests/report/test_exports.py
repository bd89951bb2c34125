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
from prometheus_client.openmetrics import parser as openmetrics_parser

from capture_builder import Recording
from example_captures import STACKS, each_hostile_name, in_memory, recorded, small
from hiwater.analysis.call_tree import Grouping
from hiwater.capture import Capture
from hiwater.cli import main
from hiwater.cli import report as report_verb
from hiwater.device_history.pprof_proto import profile_pb2
from hiwater.report.export import chrome, collapsed, csv_rows, json_report, openmetrics, pprof, speedscope
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

# What https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format") asks of
# the events that are written: metadata, counters, complete events and instants.
NUMBER, TEXT = {"type": "number"}, {"type": "string"}
COMMON = {"name": TEXT, "pid": {"type": "integer"}, "tid": {"type": "integer"}, "cat": TEXT}


def event(phase: str, required: dict[str, Any]) -> dict[str, Any]:
    properties = {"ph": {"const": phase}, **COMMON, **required}
    return {
        "type": "object",
        "properties": properties,
        "required": ["ph", "name", "pid", *required],
        "additionalProperties": False,
    }


TRACE = jsonschema_rs.Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "displayTimeUnit": {"enum": ["ms", "ns"]},
            "otherData": {"type": "object"},
            "traceEvents": {
                "type": "array",
                "items": {
                    "oneOf": [
                        event("M", {"args": {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}}),
                        event("C", {"ts": NUMBER, "args": {"type": "object", "additionalProperties": NUMBER}}),
                        event("X", {"ts": NUMBER, "dur": {"type": "number", "minimum": 0}, "args": {"type": "object"}}),
                        event("i", {"ts": NUMBER, "s": {"enum": ["g", "p", "t"]}, "args": {"type": "object"}}),
                    ]
                },
            },
        },
        "required": ["traceEvents"],
    }
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


def as_trace(*what: Report) -> Any:
    said = json.loads(shown(chrome, what))
    TRACE.validate(said)
    return said


def as_metrics(*what: Report) -> dict[str, list[Any]]:
    found = openmetrics_parser.text_string_to_metric_families(shown(openmetrics, what))
    return {family.name: family.samples for family in found}


def as_parquet(*what: Report) -> Any:
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    from pyarrow import parquet as reader

    from hiwater.report.export import parquet

    stream = Bytes()
    parquet.write(what, stream)
    return reader.read_table(io.BytesIO(stream.buffer.getvalue()))


# All say the same


@settings(max_examples=rounds(60), deadline=None)
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
    assert as_metrics(what)["hiwater_held_bytes"][0].value == whole
    for view in (overview, table):
        assert size(whole) in shown(view, what)


@settings(max_examples=rounds(30), deadline=None)
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
    for rows in (as_csv(what), as_parquet(what).to_pylist()):
        said = [{name: str(row[name]) for name in groups[0]} for row in rows]
        assert said == [{name: str(value) for name, value in group.items()} for group in groups]


def test_parquet_is_the_csv_with_types() -> None:
    capture = in_memory(small())
    what = Report(capture, capture.peak)
    read = as_parquet(what)
    rows = [{name: str(value) for name, value in row.items()} for row in read.to_pylist()]
    assert rows == as_csv(what) and len(rows) == 3
    assert read.schema.field("held_bytes").metadata[b"unit"] == b"bytes"
    assert (
        b"requested bytes" in read.schema.metadata[b"measures.4242"]
        and b"exact" in read.schema.metadata[b"measures.4242"]
    )


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


def with_scopes(*spans: tuple[str, int, int]) -> Capture:
    """A capture with scopes of one thread, as another writer leaves them."""
    capture = in_memory(small())
    from hiwater.capture import ScopeSpan

    capture.__dict__["scopes"] = tuple(
        ScopeSpan(name, 4242, 9, 0, start, end, 1, None, 3) for name, start, end in spans
    )
    return capture


@settings(max_examples=rounds(100), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_slices_on_one_track_lie_in_one_another_or_apart(spans: list[tuple[int, int]]) -> None:
    capture = with_scopes(*((f"scope {n}", start, start + length) for n, (start, length) in enumerate(spans)))
    events = [event for event in as_trace(Report(capture, capture.peak))["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(spans)
    for number, one in enumerate(events):
        for other in events[:number]:
            if one["tid"] != other["tid"]:
                continue
            (a, b), (c, d) = ((round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in (one, other))
            assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def test_the_trace_has_counters_slices_and_units() -> None:
    capture = with_scopes(("load", 1000, 5000))
    said = as_trace(Report(capture, capture.peak))
    by_phase = {event["ph"]: event for event in said["traceEvents"]}
    counters = {event["name"]: event["args"] for event in said["traceEvents"] if event["ph"] == "C"}
    assert counters["resident memory (bytes)"] == {"resident": 50 << 20}
    assert sum(counters["allocated memory (requested bytes)"].values()) == capture.end.allocated_bytes
    assert (by_phase["X"]["name"], by_phase["X"]["ts"], by_phase["X"]["dur"]) == ("load", 1.0, 4.0)
    assert by_phase["X"]["args"] == {"start_bytes": 1, "peak_bytes": 3}
    assert by_phase["i"]["args"]["allocated_bytes"] == 5596
    assert said["otherData"]["units"] == "bytes"


def test_processes_with_one_number_stay_two_in_a_trace() -> None:
    captures = [in_memory(small()), in_memory(small())]
    said = as_trace(*(Report(capture, capture.peak) for capture in captures))
    assert len({event["pid"] for event in said["traceEvents"] if event["ph"] == "M"}) == 2


def test_metrics_have_units_and_exactness() -> None:
    capture = in_memory(small())
    said = as_metrics(Report(capture, capture.peak))
    assert said["hiwater_peak_allocated_bytes"][0].value == 5596
    assert said["hiwater_peak_allocated_error_bytes"][0].value == 0
    (allocations,) = said["hiwater_allocations"]
    assert (allocations.name, allocations.value) == ("hiwater_allocations_total", 3)
    kinds = {sample.labels["kind"]: sample.value for sample in said["hiwater_peak_allocated_kind_bytes"]}
    assert kinds["mapping"] == 4096
    recording = small()
    recording.header["sample_bytes"] = 65536
    sampled = in_memory(recording)
    said = as_metrics(Report(sampled, sampled.peak))
    assert said["hiwater_capture"][0].labels["mode"] == "sampled"
    assert said["hiwater_peak_allocated_error_bytes"][0].value > 0
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
    assert as_metrics(what)["hiwater_held_bytes"][0].value == 1000
    as_trace(what)


def test_an_empty_recording_has_every_format() -> None:
    capture = in_memory(Recording())
    what = Report(capture, capture.peak)
    assert as_csv(what) == [] and len(as_pprof(what).sample) == 0
    assert as_speedscope(what)["profiles"][0]["samples"] == []
    assert as_metrics(what)["hiwater_peak_allocated_bytes"][0].value == 0
    as_trace(what)


# As it is typed


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "run.hiw"
    path.write_bytes(small().to_bytes())
    return path


@pytest.mark.parametrize("output_format", ["pprof", "parquet"])
def test_binary_goes_to_files_and_pipes(
    capture: Path, output_format: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    if output_format == "parquet":
        pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    out = capture.parent / "out"
    command = [sys.executable, "-m", "hiwater", "report", str(capture), "--format", output_format]
    subprocess.run([*command, "-o", str(out)], check=True)
    done = subprocess.run([*command, "-o", "-"], check=True, capture_output=True)
    assert done.stdout == out.read_bytes() and len(done.stdout) > 100 and done.stderr == b""


def test_binary_is_not_for_a_terminal(capture: Path) -> None:
    code = f"import pty, sys; sys.exit(pty.spawn([{sys.executable!r}, '-m', 'hiwater', 'report', {str(capture)!r}, '--format', 'pprof', '-o', '-']) >> 8)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2 and "no text for a terminal" in done.stdout


@pytest.mark.parametrize(
    ("output_format", "package", "extra"), [("pprof", "google", "pprof"), ("parquet", "pyarrow", "arrow")]
)
def test_a_missing_extra_is_one_line_with_the_command(
    capture: Path, output_format: str, package: str, extra: str
) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None; from hiwater.cli import main;"
        f"sys.exit(main(['report', {str(capture)!r}, '--format', {output_format!r}, '-o', 'out']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=capture.parent)
    assert done.returncode == 125 and done.stderr.count("\n") == 1
    assert f"pip install 'hiwater[{extra}]'" in done.stderr and not (capture.parent / "out").exists()


def test_a_profile_shows_one_capture(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(capture), str(capture), "--format", "pprof", "-o", str(capture.parent / "out")]) == 2
    assert "one capture" in capsys.readouterr().err


@pytest.mark.parametrize("output_format", ["speedscope", "csv", "chrome", "openmetrics"])
def test_several_captures_are_in_one_file(capture: Path, output_format: str) -> None:
    other, written = capture.parent / "other.hiw", capture.parent / "all"
    recording = small()
    recording.header["pid"] = 77
    other.write_bytes(recording.to_bytes())
    assert main(["report", str(capture), str(other), "--format", output_format, "-o", str(written)]) == 0
    text = written.read_text()
    assert "4242" in text and "77" in text


def test_every_format_is_known_to_run() -> None:
    """`hiwater run --format` takes what `hiwater report --format` takes, but for source, which is a report of its own."""
    from hiwater.cli import run_arguments

    known = {*run_arguments.SHOWN_FORMATS, *run_arguments.FILE_SUFFIXES}
    assert set(report_verb.FORMATS) - known == {"lines"}
