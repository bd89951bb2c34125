"""The report of a job: real processes, of which one has a partition that is ten times larger and one has a task that
leaks."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hiwater
import page_reader
from children import run_hiwater
from hiwater.analysis.job import EngineMemory, Job, engine_memory, is_job, limit_share, used_bytes
from hiwater.contrib.cluster.job import JobCaptures as Collected
from hiwater.errors import HiwaterError
from recording import child_environment, needs_engine
from schemas import validator_of
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = needs_engine
PARTITION = 2_000_000
LEAK = 300_000
PROGRAM = """
    import os, signal, sys
    from hiwater.contrib.cluster import worker

    def partition(size):
        return bytearray(size)  # partition

    kept = []
    def leak(size):
        kept.append(bytearray(size))  # leak

    def task(name, function, size):
        token = worker.phase_begin(name)
        function(size)
        worker.phase_end(token)

    number, folder = int(sys.argv[1]), sys.argv[2]
    begun = worker.start(f"{folder}/{number}.hiw", engine="dask", worker=f"w{number}", sample=0)
    assert begun.is_recording, begun.why
    worker.note("worker_limit_bytes", str(1 << 30))
    worker.note("engine_memory", '{"process_bytes": 50, "managed_bytes": 20, "spilled_bytes": 3}')
    for _ in range(3):
        task("partition", partition, (10 if number == 3 else 1) * PARTITION)
    for _ in range(20):
        task("leak" if number == 4 else "work", leak if number == 4 else partition, LEAK)
    if number == 5:
        worker.phase_begin("last")
        kept.append(bytearray(PARTITION))  # last
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    program = folder / "tasks.py"
    program.write_text(textwrap.dedent(PROGRAM).replace("PARTITION", str(PARTITION)).replace("LEAK", str(LEAK)))
    with Collected(folder / "job.hiw", engine="dask") as collected:
        for number in range(7):
            words = [sys.executable, str(program), str(number), str(folder)]
            done = subprocess.run(words, env=child_environment(), timeout=PATIENCE_SECONDS, check=False)
            assert done.returncode == (-9 if number == 5 else 0)
            collected.add_file(folder / f"{number}.hiw")
        collected.lost("w9", "node", "it has no hiwater")
        return collected.write()


def line_of(job: Path, name: str) -> int:
    (number,) = [
        number
        for number, line in enumerate((job.parent / "tasks.py").read_text().splitlines(), 1)
        if line.endswith(f"# {name}")
    ]
    return number


def test_the_uneven_process_is_explained_by_the_line(job: Path) -> None:
    captures = hiwater.open_run(job).captures
    assert is_job(captures)
    seen = Job(captures)
    assert seen.skew is not None and 3 < seen.skew < 11
    outlier = seen.outliers[0]
    assert outlier.capture.facts["worker"] == "w3"
    assert outlier.phase == "partition"
    assert outlier.causes[0].frame.line == line_of(job, "partition")
    assert 9 * PARTITION <= outlier.causes[0].more_bytes <= 10 * PARTITION + 100
    assert all(0 < (limit_share(one) or 0) < 1 for one in captures)
    assert engine_memory(captures[0]) == EngineMemory(50, 20, 30, 3)


def test_phases_are_summed_over_processes(job: Path) -> None:
    phases = {one.name: one for one in Job(hiwater.open_run(job).captures).phases}
    assert list(phases)[:2] == ["partition", "leak"]
    partition, leak = phases["partition"], phases["leak"]
    assert (partition.count, partition.processes) == (21, 7)
    assert partition.worst.facts["worker"] == "w3"
    assert 10 * PARTITION <= partition.highest_rise_bytes <= 10 * PARTITION + 1000
    assert PARTITION <= partition.median_rise_bytes <= PARTITION + 1000
    assert partition.top is not None and partition.top.frame.line == line_of(job, "partition")
    assert 20 * LEAK <= leak.kept_bytes <= 20 * LEAK + 10_000
    assert leak.worst.facts["worker"] == "w4"
    assert leak.top is not None and leak.top.frame.line == line_of(job, "leak")
    assert (phases["last"].count, phases["last"].unfinished) == (0, 1)


def test_the_text_names_the_culprit_first(job: Path) -> None:
    text = run_hiwater("report", job, "--no-pager", check=True).stdout
    lines = text.splitlines()
    assert lines[0].startswith("hiwater  7 processes on 1 machine, 1 more not recorded")
    assert lines[1].startswith("uneven: w3, process ")
    assert f"tasks.py:{line_of(job, 'partition')} in partition" in lines[1]
    rows = lines[lines.index(next(line for line in lines if line.startswith("Processes"))) + 2 :]
    assert "w5" in rows[0] and "killed" in rows[0]  # the dead first
    assert "at its end" in rows[1] and f"tasks.py:{line_of(job, 'last')}" in rows[1]
    assert "managed 20 B, unmanaged 30 B, spilled 3 B" in rows[2]
    table = text[text.index("Phases of all processes") :].splitlines()
    assert "partition" in table[2] and "w3" in table[2]
    assert "leak" in table[3] and "w4" in table[3] and f"tasks.py:{line_of(job, 'leak')}" in table[3]
    assert "1 process of dask worker w9 on node: it has no hiwater" in text


def test_json_names_the_culprit_first(job: Path) -> None:
    said = json.loads(run_hiwater("report", job, "--format", "json", check=True).stdout)
    for one in said:
        validator_of("report").validate(one)
    about = said[0]["run"]["job"]
    assert about["outliers"][0]["worker"] == "w3"
    assert about["outliers"][0]["causes"][0]["line"] == line_of(job, "partition")
    assert [one["name"] for one in about["phases"]][:2] == ["partition", "leak"]
    assert about["phases"][1]["line"]["line"] == line_of(job, "leak")
    (dead,) = [one for one in said if one["role"]["worker"] == "w5"]
    assert dead["role"]["last_line"]["line"] == line_of(job, "last")
    assert said[0]["run"]["unrecorded"][0]["why"] == "it has no hiwater"


def test_markdown_names_the_culprit_first(job: Path) -> None:
    lines = run_hiwater("report", job, "--format", "markdown", check=True).stdout.splitlines()
    assert lines[2].startswith("- **w3, process ")
    table = lines[lines.index("|---|---:|---:|---:|---|") + 1 :]
    assert "w5" in table[0] and "killed" in table[0]
    phases = lines[lines.index("|---|---:|---:|---:|---:|---|") + 1 :]
    assert phases[0].startswith("| `partition` | 21 |") and phases[1].startswith("| `leak` | 20 |")
    assert all(line.count(" | ") == 5 for line in phases)


def test_the_page_has_the_job(job: Path) -> None:
    page = job.parent / "job.html"
    run_hiwater("report", job, "--html", "-o", page, check=True)
    said = page_reader.Page(page.read_text("utf-8")).unpacked.head  # holds it against its schema, too
    assert said["run"]["job"]["outliers"][0]["worker"] == "w3"
    assert said["run"]["processes"][0]["role"]["worker"] == "w5"


def test_a_program_with_children_is_no_job(tmp_path: Path) -> None:
    run_hiwater("run", "-o", tmp_path / "run.hiw", "-c", "import os; os.fork() and os.wait()", check=True)
    assert not is_job(hiwater.open_run(tmp_path / "run.hiw").captures)


RESERVED = 200_000_000


def test_memory_that_was_never_touched_hides_no_uneven_process(tmp_path: Path) -> None:
    program = f"""
        import sys, time
        from hiwater.contrib.cluster import worker

        number = int(sys.argv[1])
        assert worker.start(f"job/{{number}}.hiw", engine="test", worker=f"w{{number}}", sample=0).is_recording
        reserved = bytes({RESERVED})
        held = b"x" * ((10 if number == 2 else 1) * {PARTITION})
        time.sleep(0.5)  # for two residency snapshots
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    for number in range(4):
        subprocess.run(
            [sys.executable, "program.py", str(number)], cwd=tmp_path, env=child_environment(),
            timeout=PATIENCE_SECONDS, check=True
        )  # fmt: skip
    captures = hiwater.open_run(tmp_path / "job").captures
    assert all(RESERVED - 100_000 < one.peak_untouched_bytes <= RESERVED + 100 for one in captures)
    seen = Job(captures)
    assert seen.skew is not None and 5 < seen.skew < 11
    assert [one.capture.facts["worker"] for one in seen.outliers] == ["w2"]
    assert PARTITION < seen.median_bytes < 2 * PARTITION
    text = run_hiwater("report", tmp_path / "job", "--no-pager", check=True).stdout
    assert text.splitlines()[1].startswith("uneven: w2, process ")
    assert "without memory that was never touched, at most 190.7 MiB of a process" in text
    for one in json.loads(run_hiwater("report", tmp_path / "job", "--format", "json", check=True).stdout):
        validator_of("report").validate(one)
        assert one["role"]["untouched_bytes"] > RESERVED - 100_000
        assert one["run"]["job"]["highest_untouched_bytes"] > RESERVED - 100_000 if "run" in one else True
    page = tmp_path / "job.html"
    run_hiwater("report", tmp_path / "job", "--html", "-o", page, check=True)
    assert page_reader.Page(page.read_text("utf-8")).unpacked.head["run"]["job"]["skew"] == round(seen.skew, 3)


def resident_peak(path: Path) -> int:
    """0: there is no capture yet."""
    try:
        return hiwater.open(path).resident.peak_bytes
    except HiwaterError:
        return 0


def test_what_no_snapshot_saw_untouched_is_bounded_by_resident_memory(tmp_path: Path) -> None:
    program = f"""
        import os, signal, sys
        from hiwater.contrib.cluster import worker

        number = int(sys.argv[1])
        assert worker.start(f"job/{{number}}.hiw", engine="test", worker=f"w{{number}}", sample=0).is_recording
        held = b"x" * (100_000_000 if number == 2 else 1_000_000)
        if number == 2:
            signal.pause()
        reserved = bytes({RESERVED}) if number == 1 else None
        os.kill(os.getpid(), signal.SIGKILL)  # before a residency snapshot of what it reserved
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    for number in range(4):
        words = [sys.executable, "program.py", str(number)]
        with subprocess.Popen(words, cwd=tmp_path, env=child_environment()) as process:
            if number == 2:
                try:
                    wait_until(lambda: resident_peak(tmp_path / "job" / "2.hiw") > 100_000_000)
                finally:
                    process.kill()
    captures = hiwater.open_run(tmp_path / "job").captures
    by_worker = {one.facts["worker"]: one for one in captures}
    assert by_worker["w1"].peak_bytes > RESERVED and used_bytes(by_worker["w1"]) < 100_000_000
    seen = Job(captures).outliers
    last = seen[-1]
    assert seen[0].capture is by_worker["w2"] and seen[0].causes[0].frame.line == 7
    assert last.capture is by_worker["w1"] and last.causes[0].more_bytes <= used_bytes(by_worker["w1"])
