"""Measures what hiwater costs against the bounds it promises to keep; exits with 1 where one is broken.

    python benchmarks/overhead.py [--rounds 5]

The programs, pairs and medians are those of `run.py`. Nothing else should be running: a bound is a promise about the program,
not about a busy machine.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from run import STANDARD, Comparison, compare, geometric_mean, program_command
from tools import TOOLS, missing

MIB = 1 << 20
MEAN_BOUND = 1.25
SINGLE_BOUND = 1.9
DEEP_BOUND = 3.5
DEEPER_BOUND = 1.3  # 800 frames against 128: beyond a stated depth the cost stays flat
RSS_FACTOR, RSS_EXTRA_BYTES = 1.35, 16 * MIB
START_BOUND_MS = 60


@dataclass(frozen=True)
class Finding:
    what: str
    measured: float
    bound: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound


def pairs(program: list[str], rounds: int) -> Comparison:
    """Plain and recorded runs in turn. Raises ChildProcessError when either fails."""
    comparison = compare(program, [TOOLS["hiwater"]], rounds)["hiwater"]
    if comparison.failure:
        raise ChildProcessError(comparison.failure)
    return comparison


def standard_programs(rounds: int) -> Iterator[Finding]:
    medians = []
    for name in STANDARD:
        comparison = pairs(program_command(name), rounds)
        medians.append(statistics.median(comparison.wall_ratios()))
        yield Finding(f"{name}: wall time", medians[-1], SINGLE_BOUND, "x")
        yield Finding(f"{name}: peak RSS", *rss_and_bound(comparison), "MiB")
    yield Finding("geometric mean of wall time", geometric_mean(medians), MEAN_BOUND, "x")


def rss_and_bound(comparison: Comparison) -> tuple[float, float]:
    plain = statistics.median(run.peak_rss_bytes for run in comparison.plain)
    under = statistics.median(run.peak_rss_bytes for run in comparison.under)
    return under / MIB, (RSS_FACTOR * plain + RSS_EXTRA_BYTES) / MIB


def deep_stacks(rounds: int) -> Iterator[Finding]:
    yield Finding(
        "deep_stack: wall time",
        statistics.median(pairs(program_command("deep_stack"), rounds).wall_ratios()),
        DEEP_BOUND,
        "x",
    )
    deep, deeper = (pairs(program_command(f"deep_stack:{depth}"), rounds) for depth in (128, 800))
    ratios = [b.wall_seconds / a.wall_seconds for a, b in zip(deep.under, deeper.under, strict=True)]
    yield Finding("deep_stack: depth 800 against 128", statistics.median(ratios), DEEPER_BOUND, "x")


def start(rounds: int) -> Iterator[Finding]:
    comparison = pairs(["-c", "pass"], 3 * rounds)
    both = zip(comparison.plain, comparison.under, strict=True)
    added = [1000 * (under.wall_seconds - plain.wall_seconds) for plain, under in both]
    yield Finding("start and end", statistics.median(added), START_BOUND_MS, "ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each pair (default: 5)")
    rounds = parser.parse_args().rounds
    if reason := missing(TOOLS["hiwater"]):
        print(f"nothing to measure: hiwater is {reason}", file=sys.stderr)
        return 1
    broken = 0
    try:
        for part in (start, deep_stacks, standard_programs):
            for finding in part(rounds):
                broken += not finding.holds
                verdict = "holds" if finding.holds else "BROKEN"
                figures = f"{finding.measured:>9.2f} of {finding.bound:>7.2f} {finding.unit:<4}"
                print(f"{finding.what:<36}{figures}{verdict}", flush=True)
    except ChildProcessError as error:
        print(f"a program failed: {error}", file=sys.stderr)
        return 1
    print(f"{broken} bounds broken" if broken else "all bounds hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
