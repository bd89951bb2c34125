"""What recording costs a Ray job: the time of its tasks, and the start of a worker.

    python benchmarks/ray_workers.py [--pairs N] [--starts N] [--sample SIZE]

Tasks: two actors of one job, one in a recorded worker process and one whose worker is not recorded, do the same tasks
in turns, 20 at a time. Printed are the medians over all pairs of actors of the ratio of the times, of the clock as the
job's driver sees it and of the workers' processors. The actors of each pair hold other small objects than those of the
next: where the last arena of pymalloc ends decides whether each task maps it anew, which costs up to a fifth, recorded
or not. The ratio "of the least" compares the fastest pair of each kind, which do not map it.

Starts: the milliseconds from the request for an actor in a new worker process to its first answer, and the processor
time until then, of jobs in turns, with and without recording.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from typing import Any

INIT = """
import json, os, sys, time
import ray
import hiwater.ray
from hiwater.contrib.cluster.ray_worker import OFF, VARIABLE

def init(environment):
    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False,
        runtime_env=environment)
"""

TASKS = (
    INIT
    + """
init(hiwater.ray.env(sample=sys.argv[1] or None))

@ray.remote(num_cpus=0)
class Worker:
    def hold(self, objects):
        self.held = [(number,) for number in range(objects)]

    def work(self):
        words = [str(number) for number in range(20_000)]
        assert {word[:3] for word in words}
        return time.process_time()

kinds = {"plain": Worker.options(runtime_env={"env_vars": {VARIABLE: OFF}}), "sampled": Worker}
pairs = int(sys.argv[2])
for pair in range(pairs):
    actors = {kind: actor.remote() for kind, actor in kinds.items()}
    for actor in actors.values():
        actor.hold.remote(20_000 * pair // pairs + 1)
        ray.get([actor.work.remote() for _ in range(20)])
    clock, processor = {}, {}
    for turn in range(16):
        for kind in sorted(actors, reverse=turn % 2 == 0):
            before = ray.get(actors[kind].work.remote())
            began = time.perf_counter()
            done = ray.get([actors[kind].work.remote() for _ in range(20)])
            clock.setdefault(kind, []).append(time.perf_counter() - began)
            processor.setdefault(kind, []).append(done[-1] - before)
    print(json.dumps([clock, processor]), flush=True)
    for actor in actors.values():
        ray.kill(actor)
"""
)

STARTS = (
    INIT
    + """
init(hiwater.ray.env(sample=sys.argv[1] or None) if sys.argv[2] == "sampled" else {"env_vars": {"PLAIN": "1"}})

@ray.remote(num_cpus=0)
class Fresh:
    def answer(self):
        return time.process_time()

starts, used = [], []
for _ in range(6):
    began = time.perf_counter()
    actor = Fresh.remote()
    used.append(1000 * ray.get(actor.answer.remote()))
    starts.append(1000 * (time.perf_counter() - began))
    ray.kill(actor)
print(json.dumps([sorted(starts)[3], sorted(used)[3]]))
"""
)


def run(program: str, *arguments: str) -> list[Any]:
    """Each line that the program printed, from JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def show_tasks(sample: str, pairs: int) -> None:
    figures = run(TASKS, sample, str(pairs))
    for what, of_pairs in zip(("clock", "processors"), zip(*figures, strict=True), strict=True):
        medians = [{kind: statistics.median(times) for kind, times in one.items()} for one in of_pairs]
        ratios = sorted(one["sampled"] / one["plain"] for one in medians)
        least = {kind: min(one[kind] for one in medians) for kind in ("plain", "sampled")}
        print(
            f"tasks, {what}: {statistics.median(ratios):.3f} times as long (quarters "
            f"{ratios[len(ratios) // 4]:.3f} to {ratios[-len(ratios) // 4]:.3f}), "
            f"of the least {least['sampled'] / least['plain']:.3f}; {1000 * least['plain']:.1f} ms for 20",
            flush=True,
        )


def show_starts(sample: str, turns: int) -> None:
    figures: dict[str, list[list[float]]] = {"plain": [], "sampled": []}
    for turn in range(turns):
        for kind in sorted(figures, reverse=turn % 2 == 1):
            figures[kind] += run(STARTS, sample, kind)
    plain, sampled = ([statistics.median(column) for column in zip(*figures[kind], strict=True)] for kind in figures)
    print(
        f"a worker starts in {plain[0]:.0f} ms, {sampled[0] - plain[0]:+.0f} ms if it is recorded; "
        f"{sampled[1] - plain[1]:+.1f} ms of processor time"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument(
        "--sample", default="", help="the size below which blocks are sampled; default: that of hiwater.ray.env()"
    )
    options = parser.parse_args()
    show_tasks(options.sample, options.pairs)
    show_starts(options.sample, options.starts)


if __name__ == "__main__":
    main()
