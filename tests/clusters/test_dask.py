"""Dask: real clusters of processes on this machine, with workers that are killed, join late, leave early, or cannot
be recorded."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dask_tasks
import hiwater
from children import run_hiwater
from dask_tasks import HELD, LEAKED, die_once, hold, leak, partition, too_much
from hiwater.errors import AlreadyRecording, BadRequest, BadSize, CaptureUnwritable
from recording import child_environment, needs_engine
from waiting import PATIENCE_SECONDS, wait_until

distributed = pytest.importorskip("distributed", reason="Dask is not installed: make test-clusters")
import hiwater.dask  # noqa: E402 - imports distributed

# Dask's own warnings, of sockets and processes that it leaves to its end, are not what is tested.
pytestmark = [needs_engine, pytest.mark.filterwarnings("default")]
OBJECT = 100  # more than what a bytearray's object takes beside its bytes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=2,
        processes=True,
        dashboard_address=None,
        local_directory=str(tmp_path / "dask"),
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster) as client:
        yield client


def by_worker(path: Path) -> dict[str, Any]:
    run = hiwater.open_run(path)
    assert not run.unrecorded, run.unrecorded
    found = {one.facts["worker"]: one for one in run.captures}
    assert len(found) == len(run.captures)
    return found


def held_by(capture: Any, text: str) -> int:
    """The bytes at the peak of the line with this text."""
    line = 1 + Path(dask_tasks.__file__).read_text().splitlines().index(f"    {text}")
    leaves = [(stack.bytes, stack.frames[-1]) for stack in capture.peak.stacks if stack.frames]
    return sum(held for held, leaf in leaves if leaf.line == line and leaf.file == dask_tasks.__file__)


def left_on_the_workers(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "dask").glob("**/hiwater-*"))


def test_all_workers_are_in_the_job_also_killed_and_late_ones(tmp_path: Path) -> None:
    job, sizes = tmp_path / "job.hiw", [HELD + number for number in range(16)]
    with (
        distributed.LocalCluster(
            n_workers=4,
            threads_per_worker=2,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        first = set(client.ncores())
        with hiwater.dask.profile(client, job, sample=0):
            assert client.gather(client.map(hold, sizes)) == sizes
            assert client.submit(die_once, str(tmp_path / "died")).result() == HELD
            cluster.scale(5)
            wait_until(lambda: len(client.ncores()) == 5)
            late = (set(client.ncores()) - first).pop()
            assert client.submit(hold, 10 * HELD, workers=[late]).result() == 10 * HELD
        assert client.submit(hold, 1).result() == 1
        assert not left_on_the_workers(tmp_path)
    captures = by_worker(job)
    assert len(captures) == 6  # four, the one that took the killed one's place, and the late one
    (killed,) = [one for one in captures.values() if one.process.ended == "killed"]
    assert killed.peak.allocated_bytes >= HELD
    assert {scope.name for scope in killed.scopes} >= {"die_once"}
    (worst,) = [one for name, one in captures.items() if late in name]
    assert 10 * HELD <= held_by(worst, "block = bytearray(size)") <= 10 * HELD + OBJECT
    assert sum(scope.name == "hold" for one in captures.values() for scope in one.scopes) == len(sizes) + 1


SENDS_ITS_FUNCTIONS = """
import sys
import distributed, hiwater.dask

def load(size):
    def inner():
        return bytearray(size)
    return len(inner())

class Loader:
    def load(self, size):
        return len(bytearray(size))

if __name__ == "__main__":
    options = dict(n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory=sys.argv[2])
    with distributed.LocalCluster(processes=True, **options) as cluster, distributed.Client(cluster) as client:
        with hiwater.dask.profile(client, sys.argv[1], sample=0):
            for task in (load, Loader().load, lambda size: len(bytearray(size))):
                client.submit(task, 8 << 20).result()
"""


def test_functions_of_the_main_module_keep_their_file(tmp_path: Path) -> None:
    """Dask sends them without it."""
    script = tmp_path / "script.py"
    script.write_text(SENDS_ITS_FUNCTIONS)
    subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path / "job.hiw", tmp_path / "dask"],
        check=True,
        env=child_environment(),
        timeout=PATIENCE_SECONDS,
    )
    (capture,) = hiwater.open_run(tmp_path / "job.hiw").captures
    codes = capture.tables["codes"][["file", "function", "first_line"]].tolist()
    places = [
        (capture.tables.string(function), line)
        for file, function, line in codes
        if capture.tables.string(file) == str(script)
    ]
    assert sorted(places) == [("<lambda>", 18), ("Loader.load", 11), ("load", 5), ("load.<locals>.inner", 6)]
    assert capture.peak.stacks[0].frames[-1].file == str(script)
    assert capture.problems() == []


def test_sums_are_exact_for_each_kind_of_task(tmp_path: Path, client: Any) -> None:
    job = tmp_path / "job.hiw"
    (one, other) = client.ncores()
    with hiwater.dask.profile(client, str(job), sample=0):
        futures = [client.submit(partition, n, HELD, workers=[one], pure=False) for n in range(4)]
        distributed.wait(futures)
        distributed.wait([client.submit(leak, HELD, workers=[other], pure=False) for _ in range(3)])
        client.run(LEAKED.clear)
    captures = by_worker(job)
    for address, text, count in ((one, "return bytearray(size)", 4), (other, "LEAKED.append(bytearray(size))", 3)):
        (capture,) = [held for name, held in captures.items() if address in name]
        assert count * HELD <= held_by(capture, text) <= count * (HELD + OBJECT)
    del futures


def test_an_asynchronous_client(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            distributed.LocalCluster(
                n_workers=1,
                processes=True,
                dashboard_address=None,
                asynchronous=True,
                local_directory=str(tmp_path / "dask"),
            ) as cluster,
            distributed.Client(cluster, asynchronous=True) as client,
        ):
            with pytest.raises(BadRequest, match="async with"), hiwater.dask.profile(client, tmp_path / "no.hiw"):
                pass
            async with hiwater.dask.profile(client, tmp_path / "job.hiw"):
                assert await client.submit(hold, HELD) == HELD

    asyncio.run(work())
    (capture,) = by_worker(tmp_path / "job.hiw").values()
    assert capture.process.ended == "exit"
    assert {scope.name for scope in capture.scopes} == {"hold"}
    assert capture.peak.allocated_bytes >= HELD


def test_a_worker_that_leaves_early_sends_its_capture(tmp_path: Path, cluster: Any, client: Any) -> None:
    with hiwater.dask.profile(client, tmp_path / "job.hiw", sample=0):
        (leaving, _) = client.ncores()
        assert client.submit(hold, HELD, workers=[leaving]).result() == HELD
        client.retire_workers([leaving])
        wait_until(
            lambda: leaving not in client.ncores() and len(list((tmp_path / "dask").glob("**/hiwater-*/*.hiw"))) == 1
        )
    captures = by_worker(tmp_path / "job.hiw")
    (left,) = [one for name, one in captures.items() if leaving in name]
    assert left.peak.allocated_bytes >= HELD
    assert len(captures) == 2


def test_the_own_figures_of_the_worker_are_beside_ours(tmp_path: Path, client: Any) -> None:
    with hiwater.dask.profile(client, tmp_path / "job.hiw"):
        (one, _) = client.ncores()
        kept = client.submit(partition, 0, 8 * HELD, workers=[one])
        distributed.wait(kept)
    (capture,) = [held for name, held in by_worker(tmp_path / "job.hiw").items() if one in name]
    own = hiwater.dask.own_figures(capture)
    assert own is not None and own.managed_bytes >= 8 * HELD
    assert own.spilled_bytes == 0
    assert own.unmanaged_bytes == own.process_bytes - own.managed_bytes


def test_a_task_over_the_limit_gets_memory_error(tmp_path: Path, client: Any) -> None:
    before = client.run(resource.getrlimit, resource.RLIMIT_AS)
    with hiwater.dask.profile(client, tmp_path / "job.hiw", limit="4GiB"):
        with pytest.raises(MemoryError):
            client.submit(too_much).result()
        assert client.submit(hold, HELD).result() == HELD
    refused = [one for one in by_worker(tmp_path / "job.hiw").values() if one.refusals]
    assert len(refused) == 1
    assert client.run(resource.getrlimit, resource.RLIMIT_AS) == before


def test_bad_requests_are_refused_before_anything_starts(tmp_path: Path, client: Any) -> None:
    with pytest.raises(CaptureUnwritable):
        hiwater.dask.profile(client, tmp_path / "none" / "job.hiw")
    with pytest.raises(BadSize):
        hiwater.dask.profile(client, tmp_path / "job.hiw", sample="much")
    with pytest.raises(BadSize):
        hiwater.dask.profile(client, tmp_path / "job.hiw", limit="more")
    with hiwater.dask.profile(client, tmp_path / "job.hiw"):
        with pytest.raises(AlreadyRecording), hiwater.dask.profile(client, tmp_path / "other.hiw"):
            pass
        assert client.submit(hold, HELD).result() == HELD
    assert len(by_worker(tmp_path / "job.hiw")) == 2


def test_the_current_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="uses no cluster yet"):
        hiwater.cluster(tmp_path / "job.hiw")
    with (
        distributed.LocalCluster(
            n_workers=1, processes=True, dashboard_address=None, local_directory=str(tmp_path / "dask")
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        with monkeypatch.context() as both:
            ray = types.ModuleType("ray")  # the real one is in an environment of its own
            ray.is_initialized = lambda: True
            both.setitem(sys.modules, "ray", ray)
            with pytest.raises(BadRequest, match="several clusters: dask, ray"):
                hiwater.cluster(tmp_path / "job.hiw")
        with hiwater.cluster(tmp_path / "job.hiw", sample=0):
            assert client.submit(hold, HELD).result() == HELD
    (capture,) = by_worker(tmp_path / "job.hiw").values()
    assert HELD <= held_by(capture, "block = bytearray(size)") <= HELD + OBJECT


def test_a_planted_culprit_is_named_first(tmp_path: Path, cluster: Any, client: Any) -> None:
    cluster.scale(4)
    wait_until(lambda: len(client.ncores()) == 4)
    workers = list(client.ncores())
    with hiwater.dask.profile(client, tmp_path / "job.hiw"):
        sizes = [10 * HELD if number == 2 else HELD for number in range(4)]
        futures = [
            client.submit(partition, number, size, workers=[workers[number]]) for number, size in enumerate(sizes)
        ]
        distributed.wait(futures)
        for _ in range(4):
            client.submit(leak, HELD, workers=[workers[1]], pure=False).result()
        client.run(LEAKED.clear)
    text = run_hiwater("report", tmp_path / "job.hiw", "--no-pager", check=True).stdout
    uneven = text.splitlines()[1]
    assert uneven.startswith("uneven: ") and workers[2] in uneven
    assert "dask_tasks.py" in uneven and "in partition" in uneven and "during partition" in uneven
    said = json.loads(run_hiwater("report", tmp_path / "job.hiw", "--format", "json", check=True).stdout)
    about = said[0]["run"]["job"]
    assert workers[2] in about["outliers"][0]["worker"]
    assert about["outliers"][0]["causes"][0]["function"] == "partition"
    first, second = about["phases"][:2]
    assert (first["name"], second["name"]) == ("partition", "leak")
    assert workers[1] in second["worst_worker"]
    assert second["kept_bytes"] >= 0.9 * 4 * HELD  # less what Dask itself freed meanwhile
    del futures


def test_a_client_that_is_closed_inside_the_block_is_replaced(tmp_path: Path, cluster: Any, client: Any) -> None:
    with hiwater.dask.profile(client, tmp_path / "job.hiw", sample=0):
        assert client.submit(hold, HELD).result() == HELD
        client.close()
    assert max(one.peak.allocated_bytes for one in by_worker(tmp_path / "job.hiw").values()) >= HELD
    assert not left_on_the_workers(tmp_path)


def test_a_cluster_that_is_closed_inside_the_block_leaves_its_captures(tmp_path: Path) -> None:
    work = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    cluster = distributed.LocalCluster(**work, local_directory=str(tmp_path / "dask"))
    client = distributed.Client(cluster)
    with hiwater.dask.profile(client, tmp_path / "job.hiw", sample=0):
        assert client.submit(hold, HELD).result() == HELD
        client.close()
        cluster.close()
    captures = by_worker(tmp_path / "job.hiw")
    assert len(captures) == 2 and max(one.peak.allocated_bytes for one in captures.values()) >= HELD
    assert not left_on_the_workers(tmp_path)


def test_a_cluster_that_left_nothing_is_a_warning(tmp_path: Path) -> None:
    cluster = distributed.LocalCluster(
        n_workers=1, processes=False, dashboard_address=None, local_directory=str(tmp_path / "dask")
    )
    client = distributed.Client(cluster)
    profile = hiwater.dask.profile(client, tmp_path / "job.hiw")
    profile.__enter__()
    profile._places, profile._kept_at = {}, ("", "")  # as of machines elsewhere
    client.close()
    cluster.close()
    with pytest.warns(RuntimeWarning, match="were not merged"):
        profile.__exit__(None, None, None)
    assert not (tmp_path / "job.hiw").exists()


def test_a_worker_without_hiwater_works_and_is_named(tmp_path: Path, cluster: Any, client: Any) -> None:
    (tmp_path / "without.py").write_text("import sys\nsys.modules['hiwater'] = None\n")
    recorded = set(client.ncores())
    command = [
        "distributed.cli.dask_worker", cluster.scheduler_address, "--no-dashboard", "--no-nanny",
        "--name", "bare", "--preload", str(tmp_path / "without.py"), "--local-directory", str(tmp_path / "dask"),
    ]  # fmt: skip
    with start_of(command, tmp_path) as process:
        with hiwater.dask.profile(client, tmp_path / "job.hiw"):
            wait_until(lambda: len(client.ncores()) == 3)
            (bare,) = set(client.ncores()) - recorded
            assert client.submit(len, "abc", workers=[bare]).result() == 3
            assert client.submit(hold, HELD).result() == HELD
        assert client.submit(len, "abcd", workers=[bare]).result() == 4
        process.terminate()
    run = hiwater.open_run(tmp_path / "job.hiw")
    assert len(run.captures) == 2
    (missing,) = run.unrecorded
    assert bare in missing.program and "hiwater" in missing.why


def start_of(words: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        env=child_environment({"PYTHONPATH": str(Path(dask_tasks.__file__).parent)}),
        cwd=folder,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_workers_that_preload_hiwater(tmp_path: Path) -> None:
    where = tmp_path / "scheduler.json"
    stale = tmp_path / "dask" / "hiwater-preload" / "tcp___127.0.0.1_1-{}.hiw"  # of a cluster that crashed
    stale.parent.mkdir(parents=True)
    of_before = subprocess.run(
        [sys.executable, "-c",
            f"import hiwater, os; hiwater.record({str(stale)!r}.format('%p')).start(); os.kill(os.getpid(), 9)"],
        env=child_environment(), check=False,
    )  # fmt: skip
    assert of_before.returncode == -9 and len(list(stale.parent.iterdir())) == 1
    started: list[subprocess.Popen[str]] = []
    try:
        started.append(
            start_of(
                [
                    "distributed.cli.dask_scheduler",
                    "--port",
                    "0",
                    "--no-dashboard",
                    "--scheduler-file",
                    str(where),
                    "--preload",
                    "hiwater.dask",
                ],
                tmp_path,
            )
        )
        started.extend(
            start_of(
                [
                    "distributed.cli.dask_worker", "--scheduler-file", str(where), "--no-dashboard", "--name", name,
                    "--local-directory", str(tmp_path / "dask"), "--preload", "hiwater.dask", "--preload-nanny",
                    "hiwater.dask",
                ],
                tmp_path,
            )
            for name in ("one", "two")
        )  # fmt: skip
        wait_until(where.exists)
        with distributed.Client(scheduler_file=str(where)) as client:
            client.wait_for_workers(2, timeout=PATIENCE_SECONDS)
            killed_in = set(client.ncores())
            assert client.submit(die_once, str(tmp_path / "died")).result() == HELD
            wait_until(lambda: len(client.ncores()) == 2 and set(client.ncores()) != killed_in)
            assert client.gather(client.map(hold, [HELD, HELD + 1])) == [HELD, HELD + 1]
            hiwater.dask.collect(client, tmp_path / "job.hiw")
            client.shutdown()
    finally:
        for process in started:
            process.kill()
            process.wait(PATIENCE_SECONDS)
    captures = by_worker(tmp_path / "job.hiw")
    assert sorted(one.process.ended for one in captures.values()) == ["exit", "exit", "killed"]
    assert {name.partition(" ")[0] for name in captures} == {"one", "two"}
    assert all(scope.name in {"hold", "die_once"} for one in captures.values() for scope in one.scopes)


def test_a_killed_worker_without_a_nanny(tmp_path: Path, cluster: Any, client: Any) -> None:
    command = [
        "distributed.cli.dask_worker", cluster.scheduler_address, "--no-dashboard", "--no-nanny", "--name", "alone",
        "--local-directory", str(tmp_path / "dask"),
    ]  # fmt: skip
    recorded = set(client.ncores())
    with hiwater.dask.profile(client, tmp_path / "job.hiw"):
        with start_of(command, tmp_path) as process:
            wait_until(lambda: len(client.ncores()) == 3)
            assert client.submit(hold, HELD, workers=list(set(client.ncores()) - recorded)).result() == HELD
            process.kill()
        wait_until(lambda: len(client.ncores()) == 2)
    captures = by_worker(tmp_path / "job.hiw")
    (alone,) = [one for name, one in captures.items() if name.startswith("alone")]
    assert alone.process.ended == "killed"
