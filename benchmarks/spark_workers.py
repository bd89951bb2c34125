"""What recording costs a Spark application: the start of a worker, and the time of a job.

    python benchmarks/spark_workers.py [--forks N] [--rounds N]

Needs pyspark, pandas, pyarrow and Java. Prints the milliseconds from the fork of a worker to the moment when it can
begin, as wall and as CPU time, plain and recorded, and the seconds of the same job in two applications, plain and
sampled, which take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORKS = """
import json, os, sys, time
from pyspark import daemon
from hiwater.contrib.cluster import spark_worker
if sys.argv[1] == "recorded":
    spark_worker.arm()
times = []
for _ in range(int(sys.argv[2])):
    ready, told = os.pipe()
    begun = time.perf_counter()
    child = os.fork()
    if not child:
        os.write(told, str(time.process_time()).encode())
        os._exit(0)
    used = float(os.read(ready, 100))
    times.append((time.perf_counter() - begun, used))
    os.waitpid(child, 0)
    os.close(ready), os.close(told)
print(json.dumps(times))
"""
JOB = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
import hiwater.spark
import pandas as pd
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
if sys.argv[1] == "sampled":
    builder = hiwater.spark.conf(builder, sys.argv[2])
spark = builder.getOrCreate()
from pyspark.sql.functions import pandas_udf

@pandas_udf("double")
def score(column: pd.Series) -> pd.Series:
    words = column.map(lambda number: f"{number:020d}")
    return words.str.len() + words.map(hash) % 7

numbers = spark.range(0, 200_000, 1, 4)
def job():
    return numbers.select(score("id").alias("s")).groupBy().sum().collect()
job()
print("ready", flush=True)
for _ in sys.stdin:
    begun = time.perf_counter()
    job()
    print(time.perf_counter() - begun, flush=True)
spark.stop()
"""


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def forks(kind: str, count: int, folder: str) -> tuple[float, float]:
    """Medians of wall and CPU milliseconds."""
    with_folder = environment() | {"HIWATER_SPARK_FOLDER": folder}
    done = subprocess.run(
        [sys.executable, "-c", FORKS, kind, str(count)], env=with_folder, check=True, capture_output=True, text=True
    )
    wall, cpu = (1000 * statistics.median(column) for column in zip(*json.loads(done.stdout), strict=True))
    return wall, cpu


def started(kind: str, folder: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", JOB, kind, folder], env=environment(), cwd=folder, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def once(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("plain", "recorded"):
            wall, cpu = forks(kind, arguments.forks, folder)
            print(f"start of a worker, {kind}: {wall:.1f} ms, CPU {cpu:.1f} ms (medians of {arguments.forks})")
        if not arguments.rounds:
            return
        applications = [started(kind, folder) for kind in ("plain", "sampled")]
        rounds = [[once(application) for application in applications] for _ in range(arguments.rounds)]
        for application in applications:
            application.communicate()
        ratios = [sampled / unrecorded for unrecorded, sampled in rounds]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(
            f"job: plain {medians[0]:.2f} s, sampled {medians[1]:.2f} s, ratio "
            f"{statistics.median(ratios):.3f} (medians of {len(rounds)} turns)"
        )


if __name__ == "__main__":
    main()
