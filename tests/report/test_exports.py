"""Exports to other programs' formats: each is read by a reader that is not ours, and all say the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from children import run_python
from example_captures import STACKS, in_memory, recorded, small
from hiwater.analysis.call_tree import Grouping
from hiwater.cli import main
from hiwater.cli import report as report_verb
from hiwater.report.export import collapsed, pprof
from hiwater.report.formatting import size
from hiwater.report.request import Report
from hiwater.report.text import overview, table
from json_paths import tuples_of
from recording import rounds
from written_reports import Bytes, as_csv, as_json, as_pprof, as_speedscope, shown

# All say the same


@settings(max_examples=rounds(60))
@given(STACKS, st.sampled_from(("all", "python", "native", "device")))
def test_every_format_has_the_same_stacks_in_the_same_order(stacks: list[Any], kind: str) -> None:
    capture = recorded(stacks)
    what = Report(capture, capture.peak, kind)
    told = as_json(what)
    sizes = [stack["bytes"] for stack in told["stacks"]]
    whole = sum(sizes)
    assert whole == told["shown"]["bytes"] == what.holdings.total_bytes
    paths = [line.rpartition(" ") for line in shown(collapsed, what).splitlines()]
    assert [int(count) for _, _, count in paths] == sizes
    rows = as_csv(what)
    assert [int(row["held_bytes"]) for row in rows] == sizes
    assert [row["stack"] for row in rows] == [path for path, _, _ in paths]
    for view in (overview, table):
        assert size(whole) in shown(view, what)
    expected = [tuples_of(told, stack["node"]) or [("[no Python frame]", "", 0)] for stack in told["stacks"]]
    said = as_speedscope(what)
    of_bytes, of_blocks = said["profiles"]
    assert of_bytes["weights"] == sizes and of_bytes["endValue"] == whole
    assert of_blocks["weights"] == [stack["blocks"] for stack in told["stacks"]]
    frames = [(frame["name"], frame.get("file", ""), frame.get("line", 0)) for frame in said["shared"]["frames"]]
    assert [[frames[number] for number in sample] for sample in of_bytes["samples"]] == expected
    profile = as_pprof(what)
    assert [sample.value[3] for sample in profile.sample] == sizes
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
    done = run_python("-c", code, folder=capture.parent)
    assert done.returncode == 125 and done.stderr.count("\n") == 1
    assert "pip install 'hiwater[pprof]'" in done.stderr and not (capture.parent / "out").exists()


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
