"""What recording costs a Ray job: the same job in turns, plain and sampled, each with a Ray of its own.

    python benchmarks/ray_workers.py [--turns N] [--sample SIZE]

Prints, for each turn, the seconds of 1,000 tasks in workers that run already, of the clock and of the workers' processors, and for an actor in a new worker
process the milliseconds from its request to its first answer, and of processor time until then. At the end, the ratios of the medians of the former, and the
differences of the medians of the latter. Workers hold other small objects in each turn: where the last arena of pymalloc ends decides whether each task maps it
anew, which costs up to a fifth, recorded or not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

PROGRAM = """
import json, os, sys, time
import ray
import hiwater.ray

environment = hiwater.ray.env(sample=sys.argv[3] or None) if sys.argv[1] == "sampled" else {"env_vars": {"PLAIN": "1"}}
ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False, runtime_env=environment)

held, objects = [], int(sys.argv[2])

@ray.remote
def work(size):
    if not held:
        held.extend((number,) for number in range(objects))
    words = [str(number) for number in range(size)]
    assert {word[:3] for word in words}
    return os.getpid(), time.process_time()

@ray.remote(num_cpus=0)
class Fresh:
    def answer(self):
        return time.process_time()

before = dict(sorted(ray.get([work.remote(20_000) for _ in range(20)])))
began = time.perf_counter()
done = ray.get([work.remote(20_000) for _ in range(1000)])
seconds = time.perf_counter() - began
processor = sum(last - before[pid] for pid, last in dict(sorted(done)).items())
starts, used = [], []
for _ in range(5):
    began = time.perf_counter()
    actor = Fresh.remote()
    used.append(1000 * ray.get(actor.answer.remote()))
    starts.append(1000 * (time.perf_counter() - began))
    ray.kill(actor)
print(json.dumps([seconds, processor, sorted(starts)[2], sorted(used)[2]]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument(
        "--sample", default="", help="the size below which blocks are sampled; default: that of hiwater.ray.env()"
    )
    options = parser.parse_args()
    turns = options.turns
    figures: dict[str, list[list[float]]] = {"plain": [], "sampled": []}
    for turn in range(turns):
        for kind in ("plain", "sampled") if turn % 2 == 0 else ("sampled", "plain"):
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, kind, str(20_000 * turn // turns + 1), options.sample],
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            figures[kind].append(json.loads(done.stdout.splitlines()[-1]))
            print(
                "{:<8} 1,000 tasks {:.3f} s, processors {:.3f} s; a new worker {:.0f} ms, processor {:.0f} ms".format(
                    kind, *figures[kind][-1]
                ),
                flush=True,
            )
    plain, sampled = ([statistics.median(column) for column in zip(*figures[kind], strict=True)] for kind in figures)
    print(
        f"job {sampled[0] / plain[0]:.3f} times as long, {sampled[1] / plain[1]:.3f} times the processor time; "
        f"a worker starts {sampled[2] - plain[2]:+.0f} ms, {sampled[3] - plain[3]:+.1f} ms of processor time"
    )


if __name__ == "__main__":
    main()
