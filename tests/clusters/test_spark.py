"""A real Spark cluster on this machine, with two executors: the captures of its Python workers, from one application
that does everything."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hiwater
from children import run_hiwater, run_python
from hiwater.capture import Capture, Run
from recording import child_environment, needs_engine

pytestmark = [
    needs_engine,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java, and there is none"),
]
PATIENCE_SECONDS = 900
PARTITIONS = 4
SIZE = 30_000_001
LARGE_PARTITION = 3
STAGES = ("rdd", "pandas", "arrow", "generator")

WORK = """
    import os

    KEPT = []

    def make(size):
        return bytearray(b"x") * size

    def keep(size):
        KEPT.append(make(size))
        return os.getpid()
"""
DAEMON = """
    import os
    from pyspark import daemon

    if __name__ == "__main__":
        open(os.path.join(os.environ["NOTES"], f"daemon-{os.getpid()}"), "x").close()
        daemon.manager()
"""
PROGRAM = f"""
    import json, os, sys, warnings
    from collections.abc import Iterator
    from pathlib import Path

    warnings.simplefilter("ignore")
    import hiwater.spark
    import pandas as pd
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import pandas_udf
    from work import keep

    builder = (
        SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
        .config("spark.python.daemon.module", "own_daemon")
        .config("spark.executorEnv.NOTES", os.environ["NOTES"])
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    )
    spark = hiwater.spark.conf(builder, "captures", sample=0).getOrCreate()
    context = spark.sparkContext

    def is_first_attempt_of(partition):
        context = TaskContext.get()
        return (context.partitionId(), context.attemptNumber()) == (partition, 0)

    def rdd(partition):
        yield keep(1_000_033)

    def dies(partition):
        pid = keep(1_000_003)
        if is_first_attempt_of(1):
            open(os.path.join(os.environ["NOTES"], f"killed-{{pid}}"), "x").close()
            os.kill(pid, 9)
        yield pid

    @pandas_udf("long")
    def pandas(column: pd.Series) -> pd.Series:
        keep(1_000_007)
        return column + 1

    def arrow(batches):
        partition = TaskContext.get().partitionId()
        pid = keep({SIZE} * (10 if partition == {LARGE_PARTITION} else 1))
        for batch in batches:
            yield pa.RecordBatch.from_pydict({{"pid": [pid], "partition": [partition],
                "sum": [pa.compute.sum(batch.column(0)).as_py()]}})

    @pandas_udf("long")
    def generator(columns: Iterator[pd.Series]) -> Iterator[pd.Series]:
        keep(1_000_037)
        for column in columns:
            yield column + 1

    numbers = spark.range(0, 400, 1, {PARTITIONS})
    with hiwater.cluster("job.hiw"):
        parts = context.parallelize(range({PARTITIONS}), {PARTITIONS})
        found = {{"rdd": parts.mapPartitions(rdd).collect()}}
        found["pandas"] = sum(row[0] for row in numbers.select(pandas("id")).collect())
        rows = numbers.mapInArrow(arrow, "pid long, partition long, sum long").collect()
        found["arrow"] = sum(row[2] for row in rows)
        found["culprit"] = next(row[0] for row in rows if row[1] == {LARGE_PARTITION})
        found["generator"] = sum(row[0] for row in numbers.select(generator("id")).collect())
    tracker = context.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup(None) for stage in tracker.getJobInfo(job).stageIds]
    found["failed"] = sum(tracker.getStageInfo(stage).numFailedTasks for stage in stages)
    found["survivors"] = parts.mapPartitions(dies).collect()
    hiwater.spark.collect(spark, "with_killed.hiw")

    from hiwater.contrib.cluster.job import JobCaptures
    from hiwater.contrib.cluster.spark import fetch

    with JobCaptures("fetched.hiw", engine="spark") as job:  # as from machines whose folder is not this one
        (captures,) = Path("captures").absolute().iterdir()
        fetch(context, str(captures), set(), job)
        job.write()
    spark.stop()
    Path("found.json").write_text(json.dumps(found))
"""


@dataclass(frozen=True)
class Application:
    folder: Path
    found: dict[str, Any]

    def run(self, name: str) -> Run:
        return hiwater.open_run(self.folder / name)


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Application:
    folder = tmp_path_factory.mktemp("spark")
    for name, text in (("work", WORK), ("own_daemon", DAEMON), ("program", PROGRAM)):
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    environment = child_environment(
        {"PYSPARK_PYTHON": sys.executable, "NOTES": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    )
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), environment.get("PYTHONPATH")]))
    done = run_python("program.py", folder=folder, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return Application(folder, json.loads((folder / "found.json").read_text()))


def first_process(lines: list[str]) -> str:
    """The first row of the table of processes."""
    return lines[next(place for place, line in enumerate(lines) if line.startswith("Processes")) + 2]


def made(capture: Capture) -> int:
    """The bytes that tasks made and kept."""
    return sum(stack.bytes for stack in capture.end.stacks if stack.frames and stack.frames[-1].function == "make")


def cost(size: int) -> int:
    return sys.getsizeof(bytearray(b"x") * size)


def test_results_are_right_and_no_task_failed(application: Application) -> None:
    assert application.found["failed"] == 0
    assert [application.found[name] for name in ("pandas", "generator")] == [sum(range(1, 401))] * 2
    assert application.found["arrow"] == sum(range(400))
    assert len(application.found["survivors"]) == PARTITIONS


def test_the_sums_of_all_workers_are_exact(application: Application) -> None:
    expected = cost(SIZE) * (PARTITIONS - 1) + cost(10 * SIZE)
    expected += PARTITIONS * sum(cost(size) for size in (1_000_033, 1_000_007, 1_000_037))
    captures = application.run("job.hiw").captures
    assert sum(made(capture) for capture in captures) == expected
    assert {capture.facts["engine"] for capture in captures} == {"spark"}
    assert {capture.facts["worker"] for capture in captures} <= {"executor 0", "executor 1"}


def test_the_worker_of_the_large_partition_is_named_first(application: Application) -> None:
    culprit = application.found["culprit"]
    lines = run_hiwater("report", "job.hiw", folder=application.folder, check=True).stdout.splitlines()
    (at_once,) = [line for line in lines if "allocated at once by" in line]
    assert "work.py:7 in make" in at_once
    (highest,) = [line for line in lines if line.startswith("highest: ")]
    assert f" · {culprit} on " in highest and "work.py" in highest
    assert f" · {culprit} on " in first_process(lines)
    report = json.loads(
        run_hiwater("report", "job.hiw", "--format", "json", folder=application.folder, check=True).stdout
    )
    first = report[0] if isinstance(report, list) else report
    assert first["aggregate"]["headline"]["function"] == "make"
    assert first["run"]["job"]["outliers"][0]["pid"] == culprit


def test_tasks_are_phases_of_their_stages(application: Application) -> None:
    captures = application.run("job.hiw").captures
    phases = [phase for capture in captures for phase in capture.scopes]
    of_stage = {name: sum(phase.name == name for phase in phases) for name in {phase.name for phase in phases}}
    assert sorted(of_stage.values()) == [PARTITIONS] * len(STAGES)
    (culprit,) = [one for one in captures if one.process.pid == application.found["culprit"]]
    kept = {phase: (phase.allocated_end_bytes or 0) - (phase.allocated_start_bytes or 0) for phase in culprit.scopes}
    (large,) = [phase for phase, size in kept.items() if cost(10 * SIZE) <= size < cost(11 * SIZE)]
    marker = max(
        (one for one in culprit.markers if one.name and one.at_ns <= large.start_ns), key=lambda one: one.at_ns
    )
    assert marker.name == f"{large.name}, partition {LARGE_PARTITION}, attempt 0"


def test_a_killed_worker_is_in_the_job_and_the_first_row(application: Application) -> None:
    (note,) = application.folder.glob("killed-*")
    pid = int(note.name.removeprefix("killed-"))
    (killed,) = [one for one in application.run("with_killed.hiw").captures if one.process.pid == pid]
    assert killed.process.ended == "killed"
    assert made(killed) >= cost(1_000_003)
    assert pid not in application.found["survivors"]
    text = run_hiwater("report", "with_killed.hiw", folder=application.folder, check=True).stdout
    first = first_process(text.splitlines())
    assert f" · {pid} on " in first and "killed" in first
    assert text.count("killed, no sign of life") == 1


def test_the_daemon_of_the_user_still_runs(application: Application) -> None:
    daemons = {int(path.name.removeprefix("daemon-")) for path in application.folder.glob("daemon-*")}
    assert {one.facts["ppid"] for one in application.run("job.hiw").captures} <= {str(pid) for pid in daemons}


def test_captures_of_other_machines_are_fetched_by_tasks(application: Application) -> None:
    fetched, here = application.run("fetched.hiw"), application.run("with_killed.hiw")
    assert {one.process.pid for one in fetched.captures} >= {one.process.pid for one in here.captures}
    assert not fetched.unrecorded
    assert sum(map(made, fetched.captures)) == sum(map(made, here.captures))


def test_workers_that_spark_ended_count_as_idle(application: Application) -> None:
    (captures,) = (application.folder / "captures").iterdir()
    text = run_hiwater("report", captures, folder=application.folder, check=True).stdout
    assert "ended by Spark, idle" in text
    assert text.count("killed, no sign of life") == 1
