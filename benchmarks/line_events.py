"""What a line event costs: a loop of 20,000 trivial lines, plain and measured line by line.

    python benchmarks/line_events.py [--lines 20000] [--repeat 5] [--json FILE]

Each figure is the best of several runs. Peers are measured beside it where they are installed.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

SETUPS = {
    "hiwater": "heap and resident memory",
    "hiwater, resident=False": "heap alone",
    "memory_profiler": "resident memory, where it is installed",
}


def loop(lines: int) -> int:
    number = 0
    while number < lines // 2:
        number += 1
    return number


def best(run: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of `repeat` runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def with_hiwater(lines: int, repeat: int, resident: bool) -> float:
    from hiwater.lines import LineProfiler

    profiler = LineProfiler([loop], resident=resident)
    with profiler:
        taken = best(lambda: loop(lines), repeat)
    events = sum(line.calls for line in profiler.results()[0].lines)
    assert events >= lines * repeat, f"{events} events were seen of {lines * repeat}"
    return taken


def with_memory_profiler(lines: int) -> float:
    import memory_profiler

    profiler = memory_profiler.LineProfiler()
    measured = profiler(loop)
    return best(lambda: measured(lines), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lines", type=int, default=20_000, help="lines the loop runs (default: 20000)")
    parser.add_argument("--repeat", type=int, default=5, help="runs to take the best of (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    chosen = parser.parse_args()
    plain = best(lambda: loop(chosen.lines), chosen.repeat)
    taken = {
        "hiwater": with_hiwater(chosen.lines, chosen.repeat, True),
        "hiwater, resident=False": with_hiwater(chosen.lines, chosen.repeat, False),
    }
    if importlib.util.find_spec("memory_profiler"):
        taken["memory_profiler"] = with_memory_profiler(chosen.lines)
    print(
        f"{'':<26}{'ms':>9}{'more':>9}{'ratio':>8}{'ns a line':>11}   ({chosen.lines:,} lines, plain "
        f"{plain * 1e3:.2f} ms)"
    )
    figures = {}
    for name, seconds in taken.items():
        more = seconds - plain
        figures[name] = {"seconds": seconds, "more_seconds": more, "ns_a_line": more / chosen.lines * 1e9}
        print(
            f"{name:<26}{seconds * 1e3:>9.2f}{more * 1e3:>9.2f}{seconds / plain:>8.0f}"
            f"{more / chosen.lines * 1e9:>11.0f}"
            f"   {SETUPS[name]}"
        )
    if chosen.json:
        python = ".".join(map(str, sys.version_info[:3]))
        said = {"schema": "hiwater.line-events/1", "python": python, "lines": chosen.lines, "plain_seconds": plain}
        chosen.json.write_text(json.dumps({**said, "setups": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
