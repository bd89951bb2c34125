"""The layer below the engines: a worker process that records itself, and the job that merges the captures. All
processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hiwater
from children import run_python
from hiwater.contrib.cluster import worker
from hiwater.contrib.cluster.job import JobCaptures
from hiwater.errors import CaptureUnwritable, NotRecording
from recording import child_environment, needs_engine
from waiting import PATIENCE_SECONDS, wait_until

pytestmark = needs_engine
HELD = 7_000_001

PROGRAM = """
    import os, sys, threading
    from hiwater.contrib.cluster import worker

    begun = worker.start(sys.argv[1], engine="test", worker=sys.argv[2], restart="3")
    assert begun.path and not begun.why, begun.why
    assert worker.start("/nowhere/else.hiw", engine="test", worker="other") is begun
    token = worker.phase_begin("load")
    kept = bytearray({held})
    worker.phase_end(token)
    worker.relabel("late " + sys.argv[2])
    {ending}
"""


def end_worker(path: Path, name: str, ending: str = "") -> int:
    with run_worker(path, name, ending) as process:
        assert process.wait(PATIENCE_SECONDS) == (3 if "3" in ending else 0)
    return process.pid


def run_worker(path: Path, name: str, ending: str) -> subprocess.Popen[str]:
    program = textwrap.dedent(PROGRAM).format(held=HELD, ending=ending)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path), name], env=child_environment(), stdout=subprocess.PIPE, text=True
    )


def in_child(program: str, *words: object) -> str:
    done = run_python("-c", textwrap.dedent(program), *map(str, words), env=child_environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "worker.stop()", "sys.exit(3)"])
def test_a_worker_records_itself_until_its_end(tmp_path: Path, ending: str) -> None:
    pid = end_worker(tmp_path / "new folder" / "%p.hiw", "w1", ending)
    capture = hiwater.open(tmp_path / "new folder" / f"{pid}.hiw")
    facts = capture.facts
    assert [facts[name] for name in ("engine", "worker", "restart")] == ["test", "late w1", "3"]
    assert capture.process.ended == "exit"
    assert HELD <= capture.peak.allocated_bytes < HELD + 1_000_000
    (phase,) = [scope for scope in capture.scopes if scope.name == "load"]
    assert (phase.allocated_end_bytes or 0) - (phase.allocated_start_bytes or 0) >= HELD


def test_a_killed_worker_is_in_the_job(tmp_path: Path) -> None:
    with run_worker(tmp_path / "killed.hiw", "w1", "print('ready', flush=True); threading.Event().wait()") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    end_worker(tmp_path / "ended.hiw", "w2")
    with JobCaptures(tmp_path / "job.hiw", engine="test") as job:
        assert job.add_file(tmp_path / "killed.hiw")
        assert job.add_pieces(worker.pieces(tmp_path / "ended.hiw"))
        job.lost("w3", "node7", "it has no hiwater", pid=77)
        assert job.write() == tmp_path / "job.hiw"
    run = hiwater.open_run(tmp_path / "job.hiw")
    assert {one.facts["worker"]: one.process.ended for one in run.captures} == {"late w1": "killed", "late w2": "exit"}
    assert all(HELD <= one.peak.allocated_bytes < HELD + 1_000_000 for one in run.captures)
    (missing,) = run.unrecorded
    assert (missing.pid, missing.program, missing.why) == (77, "test worker w3 on node7", "it has no hiwater")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended.hiw", "job.hiw", "killed.hiw"]


def test_a_worker_that_cannot_be_recorded_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    program = """
        import sys
        from hiwater.contrib.cluster import worker

        refused = worker.start(sys.argv[1] + "/file/no.hiw", engine="test", worker="w")
        assert not refused.path and not refused.is_recording
        assert worker.current() is None and worker.stop() == "" and worker.phase_begin("p") == 0
        bad = worker.start(sys.argv[1] + "/bad.hiw", engine="test", worker="w", sample="many")
        again = worker.start(sys.argv[1] + "/good.hiw", engine="test", worker="w")
        assert again.is_recording, again.why
        print(refused.why, bad.why, sep="\\n")
    """
    first, second = in_child(program, tmp_path).splitlines()
    assert "file" in first
    assert "'many' is not a size" in second
    assert hiwater.open(tmp_path / "good.hiw").process.ended == "exit"
    assert not (tmp_path / "bad.hiw").exists()


def test_a_process_that_is_recorded_already_says_so(tmp_path: Path) -> None:
    program = """
        import sys, hiwater
        from hiwater.contrib.cluster import worker

        with hiwater.record(sys.argv[1] + "/outer.hiw"):
            print(worker.start(sys.argv[1] + "/inner.hiw", engine="test", worker="w").why)
    """
    assert "recorded already" in in_child(program, tmp_path)


def test_a_forked_child_is_a_worker_of_its_own(tmp_path: Path) -> None:
    program = """
        import os, sys
        from hiwater.contrib.cluster import worker

        worker.start(sys.argv[1] + "/%p.hiw", engine="test", worker="parent")
        child = os.fork()
        if not child:
            assert worker.current() is None
            begun = worker.start(sys.argv[1] + "/%p.hiw", engine="test", worker="child")
            assert begun.is_recording, begun.why
            kept = bytearray(3_000_000)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert worker.current().is_recording
    """
    in_child(program, tmp_path)
    names = {hiwater.open(path).facts["worker"] for path in tmp_path.glob("*.hiw")}
    assert names == {"parent", "child"}


def test_a_limit_holds_until_the_stop(tmp_path: Path) -> None:
    program = """
        import sys
        from hiwater.contrib.cluster import worker

        begun = worker.start(sys.argv[1] + "/run.hiw", engine="test", worker="w", limit="1GiB")
        assert not begun.why, begun.why
        try:
            bytearray(2 << 30)
        except MemoryError:
            print("refused")
        worker.stop()
        bytearray(2 << 30)
    """
    assert in_child(program, tmp_path) == "refused\n"
    assert hiwater.open(tmp_path / "run.hiw").refusals


def test_a_damaged_capture_counts_as_not_recorded(tmp_path: Path) -> None:
    end_worker(tmp_path / "good.hiw", "w1")
    (tmp_path / "foreign").write_bytes(b"no capture")
    pieces = list(worker.pieces(tmp_path / "good.hiw"))
    with JobCaptures(tmp_path / "job.hiw", engine="test") as job:
        assert not job.add_file(tmp_path / "foreign", "w2", "node")
        assert not job.add_pieces([pieces[0][:-9]], "w3")
        assert not job.add_pieces([b"not compressed"], "w4")
        assert job.add_pieces(pieces[:1], "w1")
        assert job.captures == 1
        job.write()
    run = hiwater.open_run(tmp_path / "job.hiw")
    assert [one.program for one in run.unrecorded] == ["test worker w2 on node", "test worker w3", "test worker w4"]
    assert "cannot be read" in run.unrecorded[0].why and "damaged" in run.unrecorded[1].why


def test_a_job_replaces_only_captures(tmp_path: Path) -> None:
    end_worker(tmp_path / "w.hiw", "w1")
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(CaptureUnwritable):
        JobCaptures(tmp_path / "data.csv", engine="test")
    with JobCaptures(tmp_path / "job.hiw", engine="test") as job:
        job.lost("w9", "", "why")
        with pytest.raises(NotRecording, match="w9: why"):
            job.write()
    assert not (tmp_path / "job.hiw").exists()
    for _ in range(2):  # the second time, over the first
        with JobCaptures(tmp_path / "job.hiw", engine="test") as job:
            job.add_file(tmp_path / "w.hiw")
            job.write()
    assert len(hiwater.open_run(tmp_path / "job.hiw").captures) == 1


def test_pieces_are_small_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end_worker(tmp_path / "w.hiw", "w1")
    monkeypatch.setattr(worker, "PIECE_BYTES", 100_000)
    pieces = list(worker.pieces(tmp_path / "w.hiw"))
    assert len(pieces) == -(-os.path.getsize(tmp_path / "w.hiw") // 100_000) > 2
    with JobCaptures(tmp_path / "job.hiw", engine="test") as job:
        job.add_pieces(pieces)
        job.write()
    (capture,) = hiwater.open_run(tmp_path / "job.hiw").captures
    assert capture.facts["worker"] == "late w1"


def test_the_spool_is_removed(tmp_path: Path) -> None:
    end_worker(tmp_path / "w.hiw", "w1")
    with JobCaptures(tmp_path / "job.hiw", engine="test") as job:
        job.add_pieces(worker.pieces(tmp_path / "w.hiw"))
        assert len(list(tmp_path.glob(".hiwater-job-*/*.hiw"))) == 1
    wait_until(lambda: not list(tmp_path.glob(".hiwater-job-*")))
