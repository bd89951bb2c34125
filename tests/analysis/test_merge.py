"""Merged captures: nothing is lost or added up that was not at once, and the order of merging makes no difference."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hiwater
import schemas
from capture_builder import KINDS, RECORDING, Recording
from example_captures import STACKS, in_memory, small
from hiwater.capture import Capture, at_once, container, families
from hiwater.cli import main
from hiwater.errors import (
    BadRequest,
    CaptureError,
    CorruptCapture,
    IncompatibleCapture,
    MissingCapture,
    TruncatedCapture,
)
from hiwater.report.request import Report
from hiwater.report.text import processes
from recording import needs_engine, rounds

START = 1_700_000_000_000_000_000


def process(pid: int, *, host: str = "a", boot: bytes = b"boot-a", start_ns: int = 0, **facts: str) -> Recording:
    """A process that is to hold memory, as the engine would have recorded it."""
    recording = Recording()
    recording.header.update(pid=pid, boot_id=boot, started_unix_ns=START + start_ns, process_start_ticks=pid)
    for key, value in {"host": host, "argv": '["work.py"]', **facts}.items():
        recording.fact(key, value)
    return recording


def saved(folder: Path, name: str, recording: Recording) -> Path:
    recording.header.setdefault("state", RECORDING)
    path = folder / name
    path.write_bytes(recording.to_bytes())
    return path


def merge(out: Path, *captures: Path) -> Path:
    assert main(["merge", "-q", "-o", str(out), *map(str, captures)]) == 0
    return out


@pytest.fixture
def job(tmp_path: Path) -> list[Path]:
    """Two ranks on one machine and one on another; the second holds most."""
    made = []
    for pid, host, count in ((11, "a", 1000), (12, "a", 5000), (11, "b", 3000)):
        recording = process(pid, host=host, boot=b"boot-" + host.encode(), rank=str(len(made)))
        recording.allocate(recording.path(("work", f"/app/{host}.py", pid)), count)
        recording.sample(count * 2)
        recording.header.update(resident_peak_bytes=count * 2)
        recording.end()
        made.append(saved(tmp_path, f"{len(made)}.hiw", recording))
    return made


# Merging


def figures(path: Path) -> list[Any]:
    """Everything a capture says, process by process."""
    return [
        (
            capture.process,
            capture.resident,
            capture.totals,
            capture.facts,
            list(capture.peak.stacks),
            list(capture.end.stacks),
        )
        for capture in hiwater.open_run(path).captures
    ]


@settings(max_examples=rounds(15))
@given(st.lists(st.tuples(STACKS, st.integers(1, 3), st.sampled_from("ab")), min_size=3, max_size=3))
def test_merging_is_associative_commutative_and_idempotent(
    tmp_path_factory: pytest.TempPathFactory, processes: list[tuple[list[Any], int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    made = []
    for number, (stacks, pid, host) in enumerate(processes):
        recording = process(pid, host=host, boot=host.encode(), start_ns=number % 2)
        for frames, thread, kind, size in stacks:
            recording.allocate(recording.path(*frames, thread=thread), size, kind)
        recording.sample(1000)
        recording.end()
        made.append(saved(folder, f"{number}.hiw", recording))
    a, b, c = made
    left = merge(folder / "left", merge(folder / "ab", a, b), c)
    right = merge(folder / "right", a, merge(folder / "bc", b, c))
    again = merge(folder / "again", c, left, a, right, b)
    assert figures(left) == figures(right) == figures(again)
    assert left.read_bytes() == right.read_bytes() == again.read_bytes()
    singles = {repr(figures(path)[0]) for path in made}
    assert {repr(of_one) for of_one in figures(left)} == singles
    hosts = [(host.name, host.allocated, host.resident) for host in at_once.machines(hiwater.open_run(left).captures)]
    assert hosts == [
        (host.name, host.allocated, host.resident) for host in at_once.machines(hiwater.open_run(right).captures)
    ]


def test_captures_are_as_they_were(job: list[Path], tmp_path: Path) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    contents = zipfile.ZipFile(merged)
    assert contents.testzip() is None and contents.namelist()[0] == "hiwater.merged.json"
    assert sorted(contents.read(name) for name in contents.namelist()[1:]) == sorted(path.read_bytes() for path in job)
    assert merged.stat().st_size < sum(path.stat().st_size for path in job) // 20


def test_one_of_a_merged_capture_opens_by_name(job: list[Path], tmp_path: Path) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    with pytest.raises(BadRequest, match="holds 3 captures"):
        hiwater.open(merged)
    paths = [capture.path for capture in hiwater.open_run(merged).captures]
    assert [hiwater.open(path).peak.allocated_bytes for path in paths] == [1000, 5000, 3000]
    with pytest.raises(MissingCapture):
        hiwater.open(merged / "no.hiw")
    alone = merge(tmp_path / "alone.hiw", paths[1])
    assert hiwater.open(alone).peak.allocated_bytes == 5000


def test_a_capture_that_grows_is_merged_as_it_is_now(tmp_path: Path) -> None:
    recording = process(os.getpid())
    recording.allocate(recording.path(("f", "/a.py", 1)), 10)
    assert recording.header["state"] == RECORDING
    merged = merge(tmp_path / "merged.hiw", saved(tmp_path, "live.hiw", recording))
    assert hiwater.open(merged).peak.allocated_bytes == 10


# At once


def timed(pid: int, *steps: tuple[int, int], start_ns: int = 0, sample: bool = True) -> Recording:
    """A process that goes to each (milliseconds, bytes) in turn, and ends at the last; a slice for each step."""
    recording = process(pid, start_ns=start_ns)
    node, held = recording.path(("f", "/a.py", 1)), 0
    for at_ms, target in steps:
        recording.now_ns = at_ms * 1_000_000
        if target != held:
            (recording.allocate if target > held else recording.free)(node, abs(target - held), blocks=0)
            recording.now_ns = at_ms * 1_000_000
        held = target
        if sample:
            recording.sample(10 * held)
        recording.close_slice()
    recording.header.update(resident_peak_bytes=10 * max(held for _, held in steps))
    recording.end()
    return recording


def test_peaks_at_different_times_do_not_add_up() -> None:
    """One holds 1000 in its first 10 ms, the other in the 10 ms after."""
    first, second = timed(1, (0, 1000), (10, 1), (20, 1)), timed(2, (0, 5), (10, 1000), (20, 0))
    (host,) = at_once.machines([in_memory(first), in_memory(second)])
    assert host.allocated is not None and host.resident is not None
    assert 1001 <= host.allocated.bytes <= 1005 and host.allocated.processes == 2
    assert host.resident.bytes in {10_050, 10_010}


def test_the_wall_clock_says_what_was_at_once() -> None:
    """The second began when the first had ended: never both."""
    one, two = timed(1, (0, 1000), (10, 1000)), timed(2, (0, 700), (10, 700), start_ns=50_000_000)
    (host,) = at_once.machines([in_memory(one), in_memory(two)])
    assert host.allocated is not None and (host.allocated.bytes, host.allocated.processes) == (1000, 1)
    assert host.allocated.at_unix_ns - START < 20_000_000


def test_machines_are_never_added_up() -> None:
    one, two = process(1), process(1, host="b", boot=b"boot-b")
    for recording in (one, two):
        recording.allocate(recording.path(("f", "/a.py", 1)), 100)
        recording.end()
    found = at_once.machines([in_memory(one), in_memory(two)])
    assert [(host.name, host.allocated.bytes if host.allocated else None) for host in found] == [("a", 100), ("b", 100)]


@settings(max_examples=rounds(100))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 40), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 999)), min_size=1, max_size=8)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_sum_is_that_of_a_count_by_hand_and_below_its_bound(
    processes: list[tuple[int, list[tuple[int, int]]]],
) -> None:
    """Millisecond by millisecond: what really was at once is never above the bound; where every change is a point,
    it is the sum, or one within a thousandth of it of which more is known."""
    captures, truth = [], np.zeros(200, np.int64)
    for pid, (start_ms, steps) in enumerate(processes, 1):
        at, told = 0, []
        for length, held in steps:
            told.append((at, held))
            at += length
        told.append((at, 0))
        captures.append(in_memory(timed(pid, *told, start_ns=start_ms * 1_000_000)))
        for (first, held), (last, _) in pairwise(told):
            truth[start_ms + first : start_ms + last] += held
    (host,) = at_once.machines(captures)
    assert host.allocated is not None and host.allocated.at_most_bytes is not None
    highest = int(truth.max())
    assert highest - highest // 1024 <= host.allocated.bytes <= highest <= host.allocated.at_most_bytes
    assert host.resident is not None and 0 <= 10 * highest - host.resident.bytes <= 10 * highest // 1024


def test_the_error_is_what_lies_between_the_points() -> None:
    """Points of the one lie between those of the other, which moves from 100 to 300 meanwhile."""
    one = timed(1, (0, 100), (10, 300), (20, 300))
    two = process(2)
    two.allocate(two.path(("g", "/b.py", 1)), 10)
    for at_ms, resident in ((0, 0), (15, 5000), (20, 0)):
        two.now_ns = at_ms * 1_000_000
        two.sample(resident)
    two.end()
    one.timeline = [
        (0, 100, [0] * len(KINDS)),
        (10_000_000, 300, [0] * len(KINDS)),
        (20_000_000, 700, [0] * len(KINDS)),
    ]
    (host,) = at_once.machines([in_memory(one), in_memory(two)])
    assert host.resident is not None
    assert (host.resident.bytes, host.resident.error_bytes, host.resident.spacing_ns) == (5300, 400, 10_000_000)


@settings(max_examples=rounds(100))
@given(
    st.lists(st.integers(1, 199), min_size=1, max_size=4, unique=True).map(sorted),
    st.lists(st.sets(st.integers(0, 199), max_size=8), min_size=5, max_size=5),
)
def test_what_forked_processes_share_counts_once_whenever_it_was_read(forks: list[int], read: list[set[int]]) -> None:
    """One process and its forks share all that they have. Each reads at times of its own, which may be long after a
    fork, and at its end."""
    shared = 60_000
    captures = []
    for pid, start_ms in enumerate([0, *forks]):
        one = process(pid + 1, start_ns=start_ms * 1_000_000)
        if pid:
            one.fact("started_by", "fork")
            one.fact("ppid", "1")
        one.allocate(one.path(("f", "/a.py", 1)), 1)
        one.now_ns = 0
        one.sample(shared)
        one.header["resident_last_bytes"] = shared
        for at_ms in sorted({at for at in read[pid] if at > start_ms} | {200}):
            one.now_ns = (at_ms - start_ms) * 1_000_000
            one.look_at_shared(shared - shared // (1 + sum(fork < at_ms for fork in forks)), 0)
        one.now_ns += 1_000_000
        one.end()
        captures.append(in_memory(one))
    (host,) = at_once.machines(captures)
    assert host.resident is not None and host.resident.bytes == shared


def test_a_snapshot_and_the_whole_are_one_process() -> None:
    whole, snapshot = timed(1, (0, 100), (10, 200), (20, 200)), timed(1, (0, 100), (5, 100))
    (host,) = at_once.machines([in_memory(snapshot), in_memory(whole)])
    assert host.allocated is not None and host.allocated.bytes == 200 and len(host.captures) == 2


def test_sampled_figures_have_two_standard_errors_more() -> None:
    recording = timed(1, (0, 1000), (10, 1000))
    recording.header["sample_bytes"] = 1000
    (host,) = at_once.machines([in_memory(recording)])
    assert host.allocated is not None and host.allocated.error_bytes == 2 * 1000


def test_a_bound_needs_exact_peaks() -> None:
    recording = timed(1, (0, 1000), (10, 1000))
    recording.header["resident_exact"] = 0
    (host,) = at_once.machines([in_memory(recording)])
    assert host.resident is not None and host.resident.at_most_bytes is None


# Families


def test_children_are_under_their_parents() -> None:
    captures = [
        in_memory(timed(pid, (0, 10), (10, 10), start_ns=start))
        for pid, start in ((7, 0), (8, 1), (9, 2), (7, 99_000_000))
    ]
    for capture, parent in zip(captures, ("1", "7", "8", "9"), strict=True):
        capture.facts["ppid"] = parent
    assert families.parents(captures) == [None, 0, 1, None]  # the last began when its parent had ended


def test_nobody_is_his_own_grandfather() -> None:
    captures = [in_memory(timed(pid, (0, 10), (10, 10))) for pid in (1, 2, 3)]
    for capture, parent in zip(captures, ("3", "1", "2"), strict=True):
        capture.facts["ppid"] = parent
    found = families.parents(captures)
    assert found.count(None) == 1


# Shown


def test_text_shows_the_processes_and_names_the_worst(
    job: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    assert main(["report", str(merged), "--full"]) == 0
    out = capfd.readouterr().out
    assert "3 processes on 2 machines" in out and "they do not add up" in out
    assert "highest: rank 1 · 12 on a (work.py), peak 4.9 KiB; most at /app/a.py:12 in work: 4.9 KiB" in out
    assert out.count("\nYour lines") == 3
    order = [out.index(f"rank {rank} · ") for rank in (1, 2, 0)]
    assert order == sorted(order)
    assert "At once" in out and "2 processes at 2023-11-14" in out
    assert main(["report", *map(str, job)]) == 0
    apart = capfd.readouterr().out
    assert apart.count("\nYour lines") == 1 and "--full has all" in apart
    assert [line.split("  ")[:3] for line in apart.splitlines()][:3] == [
        line.split("  ")[:3] for line in out.splitlines()
    ][:3]


def test_json_of_a_merged_capture(job: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    child = timed(99, (0, 50), (10, 50))
    child.fact("ppid", "11")
    child.header["heartbeat_ns"] = 1
    merged = merge(tmp_path / "job.hiw", *job, saved(tmp_path, "child.hiw", child))
    assert main(["report", str(merged), "--format", "json"]) == 0
    said = json.loads(capfd.readouterr().out)
    schemas.check(said, "report")
    assert [(one["process"]["host"], one["process"]["rank"], one["process"]["pid"]) for one in said] == [
        ("a", "0", 11), ("a", "1", 12), ("b", "2", 11),
    ]  # fmt: skip
    assert [one["process"]["pid"] for one in said[0]["children"]] == [99]
    assert said[0]["aggregate"] == said[1]["aggregate"] and said[0]["aggregate"]["processes"] == 3
    assert said[2]["aggregate"]["allocated"]["bytes"] == 3000


@pytest.mark.parametrize("output_format", ["tree", "table", "lines", "collapsed", "speedscope", "csv"])
def test_every_format_of_several_shows_all(
    job: list[Path], tmp_path: Path, output_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    assert main(["report", str(merged), "--format", output_format, "-o", "-"]) == 0
    out = capfd.readouterr().out
    assert "work" in out


@pytest.mark.parametrize("output_format", ["svg", "pprof"])
def test_a_format_of_one_shows_the_machine_with_the_highest_sum_and_says_how_to_choose(
    job: list[Path], tmp_path: Path, output_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    out = tmp_path / "out"
    assert main(["report", str(merged), "--format", output_format, "-o", str(out)]) == 0
    said = capfd.readouterr().err
    assert (
        said.count("\n") == 1
        and "shows all processes of a, one of 2 machines," in said
        and "allocated by 2; --pid" in said
    )
    chosen = str(hiwater.open_run(merged).captures[0].path)
    assert main(["report", chosen, "--format", output_format, "-o", str(out)]) == 0 and out.stat().st_size > 100
    assert main(["report", chosen, "--format", output_format, "-o", str(merged)]) == 2
    assert "would replace the capture" in capfd.readouterr().err and len(hiwater.open_run(merged).captures) == 3


@pytest.mark.parametrize("output_format", ["svg", "pprof"])
def test_a_format_of_one_refuses_captures_of_programs_that_have_nothing_to_do_with_each_other(
    tmp_path: Path, output_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for number in range(2):
        alone = Recording()
        alone.fact("run_id", f"run-{number}")
        alone.allocate(alone.path(("work", "/app/a.py", 1)), 1000)
        alone.end()
        paths.append(str(saved(tmp_path, f"{number}.hiw", alone)))
    assert main(["report", *paths, "--format", output_format, "-o", str(tmp_path / "out")]) == 2
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "shows one capture" in said and paths[0] in said


def test_lines_plot_and_diff_take_merged_captures(
    job: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    assert main(["report", str(merged), "--format", "lines"]) == 0
    assert capfd.readouterr().out.count("held 1000 B") == 1
    assert main(["report", str(merged), "--format", "timeline"]) == 0
    out = capfd.readouterr().out
    assert "rank 0, process 11" in out and "rank 1, process 12" in out
    later = []
    for number, (path, more) in enumerate(zip(job, (0, 0, 4096), strict=True)):
        recording = process(20 + number, host="c", rank=str(number))
        recording.allocate(
            recording.path(("work", f"/app/{'aab'[number]}.py", 11 + number % 2)),
            hiwater.open(path).peak.allocated_bytes + more,
        )
        recording.end()
        later.append(saved(tmp_path, f"later{number}.hiw", recording))
    other = merge(tmp_path / "later.hiw", *later)
    assert main(["diff", str(merged), str(other), "--fail-on-increase", "4095"]) == 1
    out, err = capfd.readouterr()
    assert (
        "of 3 processes, the one that grew most is shown: rank 2 · 22 on c" in out
        and "+4.0 KiB" in out
        and "+4.0 KiB" in err
    )
    assert main(["diff", str(merged), str(other), "--format", "json"]) == 0
    said = json.loads(capfd.readouterr().out)
    schemas.check(said, "diff")
    assert [one["bytes"]["change"] for one in said["processes"]] == [4096, 0, 0]


def test_the_overview_of_hostile_names_moves_no_cursor() -> None:
    recording = process(1, host="\x1b[2J\u202e", rank="\x1b[31m")
    recording.allocate(recording.path(("f\x1b", "/a\n.py", 1)), 10)
    recording.end()
    reports = [Report(capture, capture.peak) for capture in (in_memory(recording), in_memory(small()))]
    stream = io.StringIO()
    processes.write(reports, stream)
    assert "\x1b" not in stream.getvalue() and "\u202e" not in stream.getvalue()


# What cannot be merged, or read


def test_what_cannot_be_merged_is_one_line_and_leaves_nothing(
    job: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.hiw"
    (tmp_path / "cut").write_bytes(job[0].read_bytes()[:300_000])
    (tmp_path / "foreign").write_bytes(b"PK\x03\x04" + b"\0" * 26 + b"other.txt")
    before = sorted(tmp_path.iterdir())
    for name, words in (("cut", "truncated"), ("foreign", "not a capture"), ("missing", "there is no capture")):
        assert main(["merge", "-o", str(out), str(job[0]), str(tmp_path / name)]) == 2
        said = capfd.readouterr().err
        assert said.count("\n") == 1 and words in said and name in said
    assert main(["merge", "-o", str(tmp_path / "foreign"), str(job[0])]) == 125
    assert "is not a capture" in capfd.readouterr().err
    assert main(["merge", "-o", str(tmp_path / "no" / "such"), str(job[0])]) == 125
    assert sorted(tmp_path.iterdir()) == before


def test_a_merged_capture_may_be_added_to(job: list[Path], tmp_path: Path) -> None:
    merged = merge(tmp_path / "job.hiw", job[0])
    merge(merged, merged, job[1])
    assert [capture.process.pid for capture in hiwater.open_run(merged).captures] == [11, 12]


def damage(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
        index = json.loads(contents["hiwater.merged.json"])
        change(index)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in contents.items():
                archive.writestr(name, json.dumps(index) if name == "hiwater.merged.json" else content)

    return apply


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (damage(lambda index: index.update(version=2)), IncompatibleCapture),
        (damage(lambda index: index.update(format="other")), CorruptCapture),
        (damage(lambda index: index.update(captures=[])), CorruptCapture),
        (damage(lambda index: index["captures"].append({"name": "../x", "sha256": "", "bytes": 1})), CorruptCapture),
        (damage(lambda index: index["captures"].append(index["captures"][0])), CorruptCapture),
        (damage(lambda index: index["captures"][0].update(sha256="0" * 64)), CorruptCapture),
        (damage(lambda index: index["captures"][0].update(bytes=10)), CorruptCapture),
        (damage(lambda index: index["captures"][0].update(bytes=1 << 50)), CorruptCapture),
        (damage(lambda index: index["captures"][0].update(name="gone.hiw")), CorruptCapture),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), TruncatedCapture),
        (lambda path: path.write_bytes(path.read_bytes()[:200]), TruncatedCapture),
    ],
)  # fmt: skip
def test_damaged_merged_captures_are_refused(
    job: list[Path], tmp_path: Path, spoil: Callable[[Path], None], error: type[CaptureError]
) -> None:
    merged = merge(tmp_path / "job.hiw", *job)
    spoil(merged)
    with pytest.raises(error):
        hiwater.open_run(merged)


@settings(max_examples=rounds(100))
@given(st.data())
def test_any_damage_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("damage")
    whole = WHOLE or WHOLE.append(_merged_bytes(folder)) or WHOLE
    content = bytearray(whole[0])
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + 4] = data.draw(st.sampled_from((b"\0" * 4, b"\xff" * 4, b"\x7f\x01\x02\x03")))
    path = folder / "damaged.hiw"
    path.write_bytes(content)
    assert main(["report", str(path), "--format", "json", "-o", str(folder / "out")]) in (0, 2)


WHOLE: list[bytes] = []


def _merged_bytes(folder: Path) -> bytes:
    made = [saved(folder, f"{pid}.hiw", timed(pid, (0, 10), (5, 20))) for pid in (1, 2)]
    return merge(folder / "whole.hiw", *made).read_bytes()


# Recorded


@needs_engine
def test_captures_of_two_real_processes(tmp_path: Path) -> None:
    """Two at the same time, of 20 MB each: their sum at once is known."""
    code = "import sys; kept = bytearray(20_000_000); print('ready', flush=True); sys.stdin.readline()"
    command = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(tmp_path / "run.%p.hiw"), "-c", code]
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "RANK": str(n)}
        )
        for n in range(2)
    ]
    for one in running:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in running:
        one.communicate("go on\n")
        assert one.returncode == 0
    merged = merge(tmp_path / "both.hiw", *tmp_path.glob("run.*.hiw"))
    captures = hiwater.open_run(merged).captures
    assert sorted(capture.facts["rank"] for capture in captures) == ["0", "1"]
    assert all(capture.facts["ppid"] == str(os.getpid()) for capture in captures)
    (host,) = at_once.machines(captures)
    assert host.allocated is not None and host.allocated.at_most_bytes is not None
    assert host.allocated.processes == 2 and 40_000_000 <= host.allocated.bytes <= host.allocated.at_most_bytes
    assert host.allocated.at_most_bytes <= sum(capture.peak.allocated_bytes for capture in captures)
    assert isinstance(captures[0], Capture) and container.is_container(merged)
