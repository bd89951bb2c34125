"""Ray: real clusters of two nodes on this machine, whose workers record themselves, and the job that `collect()` and
`profile()` make."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hiwater
import page_reader
from children import run_hiwater, run_python
from hiwater.capture import Capture
from hiwater.capture.run import Run
from hiwater.capture.timeline import ScopeSpan
from hiwater.errors import BadSize, NotRecording
from recording import child_environment, needs_engine

pytestmark = [
    needs_engine,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.slow,
]
GUARD_SECONDS = 300
BYTES_HEADER = sys.getsizeof(b"")
LEAKED, LEAKS = 10_000_000, 8
SMALL, LARGE = 1_000_000, 10_000_000
KILLED = 3_000_000
SHARED = 24_000_000

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
import ray
from ray.cluster_utils import Cluster
import hiwater.ray

folder = Path(sys.argv[1])
node = dict(num_cpus=1, object_store_memory=100_000_000)
cluster = Cluster(initialize_head=True, head_node_args=dict(node, include_dashboard=False))
cluster.add_node(**node, resources={{"second": 1}})

def own_hook():
    (folder / f"hook.{{os.getpid()}}").write_text(os.environ["OWN"])

{start}

@ray.remote
def load(size):
    block = b"x" * size
    time.sleep(0.05)
    return len(block)

@ray.remote
def read(array):
    return float(array.sum()), os.getpid()

@ray.remote
def where():
    return os.getpid()

@ray.remote
class Cache:
    def __init__(self):
        self.kept = []

    def add(self, size):
        block = b"x" * size
        self.kept.append(block)
        return os.getpid()

@ray.remote
class Served:
    async def answer(self):
        return os.getpid()

result = {{}}
def work():
    result["sizes"] = ray.get([load.remote({large} if n == 5 else {small}) for n in range(10)])
    cache = Cache.options(num_cpus=0, name="shard").remote()
    result["leaking"] = ray.get([cache.add.remote({leaked}) for _ in range({leaks})])[0]
    doomed = [Cache.options(num_cpus=0, max_restarts=0).remote() for _ in range(2)]
    result["killed"], result["killed_too"] = ray.get([one.add.remote({killed}) for one in doomed])
    for pid in (result["killed"], result["killed_too"]):
        os.kill(pid, signal.SIGKILL)
    served = Served.options(num_cpus=0).remote()
    result["asynchronous"] = ray.get([served.answer.remote() for _ in range(5)])[0]
    array = ray.put(np.ones({shared} // 8))
    result["sum"], result["reader"] = ray.get(read.remote(array))
    result["second"] = ray.get(where.options(resources={{"second": 0.1}}).remote())
    result["nodes"] = len(ray.nodes())
    return cache, served  # actors that still live when the captures are collected

{end}
(folder / "result.json").write_text(json.dumps(result))
ray.shutdown()
cluster.shutdown()
"""
COLLECTED = """
ray.init(address=cluster.address, runtime_env=hiwater.ray.env({"worker_process_setup_hook": own_hook,
    "env_vars": {"OWN": "called"}}, sample=0))
""", """
actors = work()
broken = {"env_vars": {"HIWATER_RAY": json.dumps({"sample": "much"})}}
result["unrecorded"] = ray.get(where.options(runtime_env=broken).remote())
result["job"] = str(hiwater.ray.collect(folder / "job.hiw"))
result["after"] = ray.get(actors[0].add.remote(1))
"""  # fmt: skip
PROFILED = """
ray.init(address=cluster.address, runtime_env=hiwater.ray.env({"worker_process_setup_hook": "hooks.own",
    "env_vars": {"OWN": str(folder), "PYTHONPATH": str(folder)}}))
""", """
with hiwater.cluster(folder / "job.hiw"):
    kept = bytes(9_000_000)
    actors = work()
"""  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """What a program left: its own words, and the job."""

    folder: Path
    result: dict[str, Any]
    run: Run

    def of(self, pid: int) -> Capture:
        (found,) = (one for one in self.run.captures if one.process.pid == pid)
        return found

    @property
    def json(self) -> list[dict[str, Any]]:
        text = run_hiwater("report", self.folder / "job.hiw", "--format", "json", check=True).stdout
        found: list[dict[str, Any]] = json.loads(text)
        return found


def run_program(folder: Path, start: str, end: str) -> Ran:
    program = PROGRAM.format(
        start=start, end=end, small=SMALL, large=LARGE, leaked=LEAKED, leaks=LEAKS, killed=KILLED, shared=SHARED
    )
    (folder / "program.py").write_text(program)
    (folder / "hooks.py").write_text(
        "import os\ndef own():\n    open(f\"{os.environ['OWN']}/hook.{os.getpid()}\", 'w').close()\n"
    )
    for _ in range(3):
        done = run_python(
            str(folder / "program.py"),
            str(folder),
            env={**child_environment(), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
        )
        if "timed out during startup" not in done.stderr:  # Ray waits 30 s for a node, which a busy machine exceeds
            break
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((folder / "result.json").read_text())
    return Ran(folder, result, hiwater.open_run(folder / "job.hiw"))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_program(tmp_path_factory.mktemp("collected"), *COLLECTED)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_program(tmp_path_factory.mktemp("profiled"), *PROFILED)


def made_by(capture: Capture, function: str) -> tuple[int, int]:
    """Bytes and blocks that `function` itself held at the end of a capture."""
    held = [stack for stack in capture.end.stacks if stack.frames and stack.frames[-1].function.endswith(function)]
    large = [stack for stack in held if stack.bytes > SMALL]  # the rest is the list's own
    return sum(stack.bytes for stack in large), sum(stack.blocks for stack in large)


@pytest.mark.parametrize("kind", ["collected", "profiled"])
def test_every_worker_of_both_nodes_is_in_the_job(kind: str, request: pytest.FixtureRequest) -> None:
    ran = request.getfixturevalue(kind)
    result, pids = ran.result, {one.process.pid for one in ran.run.captures}
    assert result["sizes"] == [SMALL] * 5 + [LARGE] + [SMALL] * 4 and result["sum"] == SHARED / 8
    assert result["nodes"] == 2
    assert {result[name] for name in ("leaking", "killed", "killed_too", "asynchronous", "reader", "second")} <= pids
    assert all(one.facts["engine"] == "ray" for one in ran.run.captures)
    workers = {one.process.pid: one.facts["worker"] for one in ran.run.captures}
    assert workers[result["leaking"]] == "Cache shard"
    assert workers[result["killed"]] == "Cache"
    assert workers[result["asynchronous"]] == "Served"
    assert workers[result["second"]] == "worker"


def test_the_killed_workers_left_their_captures_and_are_in_the_page(collected: Ran) -> None:
    killed = [collected.result[name] for name in ("killed", "killed_too")]
    for pid in killed:
        capture = collected.of(pid)
        assert capture.process.ended == "killed"
        assert made_by(capture, "add") == (KILLED + BYTES_HEADER, 1)
    page = collected.folder / "job.html"
    subprocess.run(
        [sys.executable, "-m", "hiwater", "report", str(collected.folder / "job.hiw"), "--html", "-o", str(page)],
        env=child_environment(), timeout=GUARD_SECONDS, check=True,
    )  # fmt: skip
    rows = page_reader.Page(page.read_text("utf-8")).unpacked.head["run"]["processes"]
    assert {row["pid"] for row in rows if row["is_dead"]} == set(killed)


def test_sums_are_exact(collected: Ran) -> None:
    assert made_by(collected.of(collected.result["leaking"]), "add") == (LEAKS * (LEAKED + BYTES_HEADER), LEAKS)


def test_sampled_sums_are_within_their_errors(profiled: Ran) -> None:
    capture = profiled.of(profiled.result["leaking"])
    assert capture.process.sample_bytes == 256 << 10
    held, _ = made_by(capture, "add")
    assert held == LEAKS * (LEAKED + BYTES_HEADER)  # blocks above the sample size are all recorded
    assert {one.facts["worker"] for one in profiled.run.captures} >= {"driver", "worker", "Cache", "Cache shard"}
    (driver,) = (one for one in profiled.run.captures if one.facts["worker"] == "driver")
    assert driver.process.ended == "exit" and driver.peak.allocated_bytes > 9_000_000
    assert not list(profiled.folder.glob("job.hiw.driver*"))


def test_what_leaks_is_named_first(collected: Ran) -> None:
    text = run_hiwater("report", collected.folder / "job.hiw", check=True).stdout
    assert "in Cache.add" in text.splitlines()[1]
    first = collected.json[0]
    assert first["aggregate"]["headline"]["function"] == "Cache.add"
    worst = max(collected.run.captures, key=lambda one: one.peak.allocated_bytes)
    assert worst.process.pid == collected.result["leaking"]


def rise(scope: ScopeSpan) -> int:
    return (scope.allocated_peak_bytes or 0) - (scope.allocated_start_bytes or 0)


def test_tasks_are_phases_and_the_large_one_leads(collected: Ran) -> None:
    scopes = [(one.process.pid, scope) for one in collected.run.captures for scope in one.scopes]
    loads = sorted((pid, scope.start_ns, rise(scope)) for pid, scope in scopes if scope.name == "load")
    assert len(loads) == 10 and max(rose for _, _, rose in loads) >= LARGE
    # The first task of each worker also has what Ray imports for it.
    later = [rose for (before, _, _), (pid, _, rose) in pairwise(loads) if before == pid]
    assert all(SMALL <= rose < 2 * SMALL or LARGE <= rose < 2 * LARGE for rose in later), loads
    assert sum(rose >= LARGE for rose in later) <= 1
    names = {pid: {scope.name for one, scope in scopes if one == pid} for pid, _ in scopes}
    assert names[collected.result["leaking"]] == {"Cache.__init__", "Cache.add"}
    assert "Served.answer" in names[collected.result["asynchronous"]]


def test_the_object_store_is_not_the_heap(collected: Ran) -> None:
    import hiwater.ray

    reader = collected.of(collected.result["reader"])
    own = hiwater.ray.own_figures(reader)
    assert own is not None and SHARED <= own["object_store_bytes"] <= own["process_bytes"]
    large = [stack for stack in reader.peak.stacks if stack.bytes >= SHARED and stack.kind != "mapping"]
    assert not large


@pytest.mark.parametrize("kind", ["collected", "profiled"])
def test_the_users_own_hook_is_called_in_every_worker(kind: str, request: pytest.FixtureRequest) -> None:
    ran = request.getfixturevalue(kind)
    called = {int(path.name.removeprefix("hook.")) for path in ran.folder.glob("hook.*")}
    recorded = {one.process.pid for one in ran.run.captures if one.facts["worker"] != "driver"}
    assert recorded <= called
    if kind == "collected":
        assert {path.read_text() for path in ran.folder.glob("hook.*")} == {"called"}
        assert ran.result["unrecorded"] in called


def test_a_worker_that_cannot_be_recorded_is_named(collected: Ran) -> None:
    (missing,) = collected.run.unrecorded
    assert str(collected.result["unrecorded"]) in missing.program and "'much' is not a size" in missing.why
    assert collected.result["after"] == collected.result["leaking"]  # workers go on after the collection


def in_child(program: str) -> str:
    done = run_python("-c", textwrap.dedent(program), env={**child_environment(), "RAY_USAGE_STATS_ENABLED": "0"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_environments() -> None:
    from hiwater.ray import env

    changed = env({"env_vars": {"A": "b"}, "worker_process_setup_hook": "their.hook"}, sample="1MiB", limit="2GiB")
    assert changed["worker_process_setup_hook"] == "hiwater.ray.setup" and changed["env_vars"]["A"] == "b"
    options = json.loads(changed["env_vars"]["HIWATER_RAY"])
    assert options == {"sample": "1MiB", "limit": "2GiB", "hook": "their.hook"}
    with pytest.raises(BadSize):
        env(sample="much")
    with pytest.raises(BadSize):
        env(limit="much")


def test_without_ray_there_is_nothing_to_collect(tmp_path: Path) -> None:
    from hiwater.ray import collect

    with pytest.raises(NotRecording, match="not initialised"):
        collect(tmp_path / "job.hiw")


def test_the_hook_imports_nothing_of_the_driver() -> None:
    loaded = in_child("""
        import sys
        from hiwater.ray import setup
        print([name for name in ("numpy", "ray", "rich", "zlib", "hiwater.capture.reader") if name in sys.modules])
    """)
    assert loaded in {"['zlib']\n", "[]\n"}


def test_names_of_tasks_are_bounded() -> None:
    from contextlib import nullcontext

    from hiwater.contrib.cluster.ray_worker import Tasks

    tasks = Tasks(lambda *_: nullcontext(), None)
    names = [tasks(f"ray::part {number}", "ray::IDLE")._name for number in range(1000)]
    assert len(set(names)) == 201 and names[0] == "part 0" and names[-1] == "tasks with further names"
