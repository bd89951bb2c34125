"""What meters and scopes cost: prints the tables of docs/scopes.md.

    python benchmarks/meters.py            the tables
    python benchmarks/meters.py --check    exit code 1 when a budget is exceeded: 5 us a hot reading, 30 us a scope

Each figure is the best of many short repeats, since others use the machine too: what the work costs, not what waiting
does.
"""

import argparse
import gc
import os
import platform
import resource
import sys
import time
import timeit

import hiwater
from hiwater import meters
from hiwater.errors import MeterUnavailable
from hiwater.meters import counters

HOT = ("resident", "heap", "python")
READING_BUDGET_US, SCOPE_BUDGET_US = 5.0, 30.0


def best_us(function, number, repeat=25):
    """Microseconds a call."""
    function()
    gc.disable()
    best = min(timeit.repeat(function, number=number, repeat=repeat)) / number * 1e6
    gc.enable()
    return best


def meter_rows():
    for name in meters.NAMES:
        meter = meters.create(name)
        try:
            meter.open()
        except MeterUnavailable as error:
            yield name, None, None, str(error)
            continue
        number, repeat = (500, 25) if name in {*HOT, "tracemalloc", "cgroup"} else (10, 3)
        traits = meter.traits
        exact = (
            "exact"
            if traits.exact and not traits.error_bytes
            else f"± {traits.error_bytes >> 10} KiB"
            if traits.exact
            else "at least"
        )
        yield (
            name,
            best_us(meter.now, number, repeat),
            best_us(meter.read_and_reset, number, repeat),
            f"{exact} | {traits.source}",
        )
        meter.close()


def scope_rows():
    tracker = hiwater.track("all by default")
    bare = hiwater.track("resident", meters=("resident",))
    heap = hiwater.track("heap", meters=("heap",))

    def scope(tracker):
        def once():
            with tracker:
                pass

        return once

    yield "one scope, resident only", best_us(scope(bare), 200)
    yield "one scope, heap only", best_us(scope(heap), 200)
    yield "one scope, resident, heap and Python", best_us(scope(tracker), 200)
    with tracker:
        yield "the same inside another", best_us(scope(tracker), 200)
        with tracker, tracker, tracker, tracker, tracker, tracker, tracker, tracker, tracker:
            yield "the same inside ten others", best_us(scope(tracker), 200)
    measured = hiwater.track("f")(lambda: None)
    yield "a decorated function", best_us(measured, 200)
    time.sleep(1.5)  # counting has ended
    started = time.perf_counter()
    with tracker:
        pass
    yield "the first scope after a second of none", (time.perf_counter() - started) * 1e6
    with tracker as run:
        yield "reading `usage` of an open scope", best_us(lambda: run.usage, 200)
    yield "printing a result", best_us(lambda: str(run), 100)
    yield "breakdown() of this process", best_us(hiwater.breakdown, 1, 5)


def main():
    parser = argparse.ArgumentParser(description="What meters and scopes cost.")
    parser.add_argument("--check", action="store_true", help="fail when a budget is exceeded")
    check = parser.parse_args().check
    over = []
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"Python {platform.python_version()}, Linux {os.uname().release.split('-')[0]}, {os.cpu_count()} "
        f"CPUs, a process of {size} MiB\n"
    )
    print("| meter | reading, µs | read and reset, µs | peak | source |\n|---|---:|---:|---|---|")
    for name, now, read_and_reset, words in meter_rows():
        if now is None:
            print(f"| `{name}` | – | – | – | {words} |")
            continue
        print(f"| `{name}` | {now:.1f} | {read_and_reset:.1f} | {words} |")
        if name in HOT and now > READING_BUDGET_US:
            over.append(name)
    print(
        f"| CPU, faults, switches, I/O | {best_us(counters.read, 500):.1f} | – | exact | getrusage and /proc/self/io |"
    )
    print("\n| scope | µs |\n|---|---:|")
    for words, cost in scope_rows():
        print(f"| {words} | {cost:,.0f} |")
        if words.startswith("one scope") and cost > SCOPE_BUDGET_US:
            over.append(words)
    if check and over:
        sys.exit(f"over budget: {', '.join(over)}")


if __name__ == "__main__":
    main()
