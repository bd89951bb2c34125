"""What recording costs a Dask cluster: the start of a worker, and the time of a job.

    python benchmarks/dask_cost.py [--rounds N]

Prints the processor milliseconds that a worker needs to begin its recording, hiwater's imports included. Then the same
tasks without and with recording (sampled, 256 KiB), in turns, on a cluster of two processes: the workers' processor
seconds and those of the clock, and the median of the rounds' ratios. Each round begins with other small objects in the
workers: where the last arena of pymalloc ends decides whether each task maps it anew, which costs up to a fifth,
recorded or not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = """
import sys, time
import distributed
from distributed.diagnostics.plugin import WorkerPlugin
begin = time.process_time()
from hiwater.contrib.cluster import dask_remote, worker
begun = worker.start(sys.argv[1], engine="dask", worker="w", sample="256KiB")
taken = time.process_time() - begin
assert begun.is_recording, begun.why
print(taken * 1000)
"""


def start_milliseconds(rounds: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        commands = [[sys.executable, "-c", START, str(Path(folder, f"{number}.hiw"))] for number in range(rounds)]
        # Without compiled modules, each start would compile hiwater anew.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return [
            float(subprocess.run(one, capture_output=True, text=True, check=True, env=environment).stdout)
            for one in commands
        ]


def work(number: int) -> float:
    import numpy as np

    table = np.random.default_rng(number).random((400, 400))
    rows = [{"key": str(place % 97), "value": float(place)} for place in range(20_000)]
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row["key"], []).append(row["value"])
    return float((table @ table).sum()) + sum(sum(values) for values in groups.values())


def hold(objects: int) -> None:
    """Hold that many small objects in this process, and none of those that were held before."""
    sys.modules["__main__"].held = [(number,) for number in range(objects)]  # type: ignore[attr-defined] # of workers, which have no such module of ours


def job_seconds(client, tasks: int, seed: int) -> tuple[float, float]:
    """Processor seconds of the workers, and seconds of the clock."""
    before, begin = sum(client.run(time.process_time).values()), time.perf_counter()
    client.gather(client.map(work, range(seed, seed + tasks), pure=False))
    taken = time.perf_counter() - begin
    return sum(client.run(time.process_time).values()) - before, taken


def main() -> None:
    import distributed

    import hiwater.dask

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tasks", type=int, default=200)
    arguments = parser.parse_args()
    starts = start_milliseconds(arguments.rounds)
    print(
        f"processor time of the start of a recording in a worker: median {statistics.median(starts):.1f} ms, "
        f"lowest {min(starts):.1f} ms"
    )
    plain, recorded = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        job_seconds(client, arguments.tasks, 0)
        for number in range(arguments.rounds):
            client.run(hold, 20_000 * number // arguments.rounds)
            if number % 2 == 0:
                plain.append(job_seconds(client, arguments.tasks, number))
            with hiwater.dask.profile(client, Path(folder, "job.hiw")):
                recorded.append(job_seconds(client, arguments.tasks, number))
            if number % 2 == 1:
                plain.append(job_seconds(client, arguments.tasks, number))
    for place, name in enumerate(("processor", "clock")):
        alone, with_recording = (statistics.median(one[place] for one in turns) for turns in (plain, recorded))
        ratios = sorted(after[place] / before[place] for before, after in zip(plain, recorded, strict=True))
        print(
            f"job, {name}: {alone:.2f} s alone, {with_recording:.2f} s recorded, ratio "
            f"{statistics.median(ratios):.3f}, "
            f"quarters of the rounds {ratios[len(ratios) // 4]:.3f} to {ratios[-len(ratios) // 4]:.3f}"
        )


if __name__ == "__main__":
    main()
