"""What recording costs a Ray job: the same job in turns, plain and sampled, each with a Ray of its own.

    python benchmarks/ray_workers.py [--turns N]

Prints, for each turn, the seconds of 200 tasks in workers that run already, and the milliseconds from the request of an actor in a new worker process to its
first answer; at the end, the ratio of the medians of the first, and the difference of the medians of the second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

PROGRAM = """
import json, sys, time
import ray
import hiwater.ray

environment = hiwater.ray.env() if sys.argv[1] == "sampled" else {"env_vars": {"PLAIN": "1"}}
ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False, runtime_env=environment)

@ray.remote
def work(size):
    words = [str(number) for number in range(size)]
    return len({word[:3] for word in words})

@ray.remote(num_cpus=0)
class Fresh:
    def answer(self):
        return 1

ray.get([work.remote(20_000) for _ in range(20)])
began = time.perf_counter()
ray.get([work.remote(20_000) for _ in range(200)])
seconds = time.perf_counter() - began
starts = []
for _ in range(5):
    began = time.perf_counter()
    actor = Fresh.remote()
    ray.get(actor.answer.remote())
    starts.append(1000 * (time.perf_counter() - began))
    ray.kill(actor)
print(json.dumps([seconds, sorted(starts)[2]]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    figures: dict[str, list[list[float]]] = {"plain": [], "sampled": []}
    for turn in range(turns):
        for kind in ("plain", "sampled") if turn % 2 == 0 else ("sampled", "plain"):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, kind],
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            figures[kind].append(json.loads(done.stdout.splitlines()[-1]))
            print("{:<8} 200 tasks {:.3f} s, a new worker {:.0f} ms".format(kind, *figures[kind][-1]), flush=True)
    tasks, starts = (
        [statistics.median(one[place] for one in figures[kind]) for kind in ("plain", "sampled")] for place in (0, 1)
    )
    print(f"job {tasks[1] / tasks[0]:.3f} times as long, a worker starts {starts[1] - starts[0]:+.0f} ms")


if __name__ == "__main__":
    main()
