"""A hundred readings of this process's memory by every common way, and why two of them differ.

First, what each costs. Then a program that makes growing and shrinking arrays, and what `resource`, psutil and hiwater
say of each: ru_maxrss is the most there ever was, so an array that is gone cannot lower it; hiwater's scope has a peak
for each step.

    python examples/backends.py [plot.png]

With matplotlib and a file name it draws both.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import psutil

import hiwater
from hiwater import meters

MIB = 2**20
READINGS = 100
STEPS = [*range(1, 16), *range(14, 3, -1)]


def by_ps() -> float:
    """Ask another program: a fork and an exec for each reading."""
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    return int(answer.stdout) / 1024


def by_resource() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def backends() -> dict[str, Callable[[], float]]:
    """Return the ways, in MiB each."""
    kept = psutil.Process()
    ours = {name: meters.create(name) for name in ("resident", "heap")}
    found: dict[str, Callable[[], float]] = {
        "resource (ru_maxrss)": by_resource,
        "psutil, kept Process": lambda: kept.memory_info().rss / MIB,
        "psutil, new Process each time": lambda: psutil.Process(os.getpid()).memory_info().rss / MIB,
        "psutil, PSS": lambda: kept.memory_full_info().pss / MIB,
        "tracemalloc, snapshot": lambda: sum(s.size for s in tracemalloc.take_snapshot().statistics("filename")) / MIB,
        "ps": by_ps,
    }
    for name, meter in ours.items():
        try:
            meter.open()
        except hiwater.HiwaterError as error:
            print(f"hiwater {name}: {error}")
        else:
            found[f"hiwater {name}"] = lambda meter=meter: meter.now() / MIB
    return found


def time_readings() -> dict[str, float]:
    """Return milliseconds for READINGS readings by each way, cheapest first."""
    took = {}
    for name, read in backends().items():
        if name.startswith("tracemalloc"):
            tracemalloc.start()
        try:
            read()
            began = time.perf_counter()
            for _ in range(READINGS):
                read()
            took[name] = (time.perf_counter() - began) * 1e3
        except OSError as error:
            print(f"{name}: {error}")
        finally:
            tracemalloc.stop()
    return dict(sorted(took.items(), key=lambda pair: pair[1]))


def grow_and_shrink() -> list[tuple[float, float, float, float]]:
    """Return (resource, psutil, hiwater's resident peak of the step, its heap peak above start) in MiB for each
    step."""
    process = psutil.Process()
    rows = []
    for size in STEPS:
        with hiwater.track(f"step {size}") as step:
            array = np.ones((1000 * size, 100 * size))
            array += 1
        heap = step.usage.levels.get("heap")
        rows.append(
            (
                by_resource(),
                process.memory_info().rss / MIB,
                step.usage.resident.peak_bytes / MIB,
                heap.peak_above_start_bytes / MIB if heap else float("nan"),
            )
        )
    return rows


def plot(path: str, took: dict[str, float], rows: list[tuple[float, float, float, float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    left.barh(list(took), list(took.values()))
    left.set(xscale="log", xlabel=f"ms for {READINGS} readings")
    for column, name in enumerate(
        ("resource: ru_maxrss", "psutil: RSS after", "hiwater: resident peak", "hiwater: heap peak above start")
    ):
        right.plot([row[column] for row in rows], label=name)
    right.set(xlabel="step", ylabel="MiB")
    right.legend()
    figure.savefig(path)


def main() -> None:
    took = time_readings()
    print(f"{READINGS} readings:")
    for name, milliseconds in took.items():
        print(f"  {name:32}{milliseconds:10.2f} ms")
    rows = grow_and_shrink()
    print("\nstep   resource     psutil  peak of the step  heap peak above start   (MiB)")
    for size, row in zip(STEPS, rows, strict=True):
        print(f"{size:4} {row[0]:10.1f} {row[1]:10.1f} {row[2]:17.1f} {row[3]:22.1f}")
    if len(sys.argv) > 1:
        try:
            plot(sys.argv[1], took, rows)
        except ImportError:
            print("no picture without matplotlib: pip install hiwater[plot]")


if __name__ == "__main__":
    main()
