"""Measures what hiwater costs against the bounds it promises to keep; exits with 1 where one is broken.

    python benchmarks/overhead.py [--rounds 5] [--modes exact sampled] [program …]

The programs, pairs and medians are those of `run.py`. Nothing else should be running: a bound is a promise about the
program, not about a busy machine.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from run import FIGURES, STANDARD, Comparison, compare, geometric_mean, program_command
from tools import TOOLS, missing

MIB = 1 << 20
DEEPER_BOUND = 1.3  # 800 frames against 128: beyond a stated depth the cost stays flat
START_BOUND_MS = 45


@dataclass(frozen=True)
class Mode:
    """A way of recording, and what it may cost: ratios of wall time; of peak RSS a ratio and bytes on top."""

    tool: str
    mean: float
    single: float
    deep: float
    rss_factor: float
    rss_extra_bytes: int


MODES = {
    "exact": Mode("hiwater", 1.18, 1.7, 3.5, 1.3, 12 * MIB),
    "sampled": Mode("hiwater-sampled", 1.06, 1.25, 1.15, 1.05, 10 * MIB),
}


@dataclass(frozen=True)
class Finding:
    what: str
    measured: float
    bound: float
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.measured <= self.bound


def pairs(mode: Mode, program: list[str], rounds: int) -> Comparison:
    """Plain and recorded runs in turn. Raises ChildProcessError when either fails."""
    comparison = compare(program, [TOOLS[mode.tool]], rounds)[mode.tool]
    if comparison.failure:
        raise ChildProcessError(comparison.failure)
    return comparison


def standard_programs(mode: Mode, rounds: int, names: Sequence[str]) -> Iterator[Finding]:
    medians = []
    for name in names:
        comparison = pairs(mode, program_command(name), rounds)
        medians.append(statistics.median(comparison.ratios(FIGURES["wall"].of)))
        yield Finding(f"{name}: wall time", medians[-1], mode.single, "x")
        yield Finding(f"{name}: peak RSS", *rss_and_bound(mode, comparison), "MiB")
        yield Finding(
            f"{name}: processor time", statistics.median(comparison.ratios(FIGURES["cpu"].of)), mode.single, "x"
        )
    yield Finding("geometric mean of wall time", geometric_mean(medians), mode.mean, "x")


def rss_and_bound(mode: Mode, comparison: Comparison) -> tuple[float, float]:
    plain = statistics.median(run.peak_rss_bytes for run in comparison.plain)
    under = statistics.median(run.peak_rss_bytes for run in comparison.under)
    return under / MIB, (mode.rss_factor * plain + mode.rss_extra_bytes) / MIB


def deep_stacks(mode: Mode, rounds: int) -> Iterator[Finding]:
    ratios = pairs(mode, program_command("deep_stack"), rounds).ratios(FIGURES["wall"].of)
    yield Finding("deep_stack: wall time", statistics.median(ratios), mode.deep, "x")
    deep, deeper = (pairs(mode, program_command(f"deep_stack:{depth}"), rounds) for depth in (128, 800))
    ratios = [b.wall_seconds / a.wall_seconds for a, b in zip(deep.under, deeper.under, strict=True)]
    yield Finding("deep_stack: depth 800 against 128", statistics.median(ratios), DEEPER_BOUND, "x")


def start(mode: Mode, rounds: int) -> Iterator[Finding]:
    comparison = pairs(mode, ["-c", "pass"], 3 * rounds)
    both = zip(comparison.plain, comparison.under, strict=True)
    added = [1000 * (under.wall_seconds - plain.wall_seconds) for plain, under in both]
    yield Finding("start and end", statistics.median(added), START_BOUND_MS, "ms")


def findings(mode: Mode, rounds: int, names: Sequence[str]) -> Iterator[Finding]:
    if names == STANDARD:
        yield from start(mode, rounds)
        yield from deep_stacks(mode, rounds)
    yield from standard_programs(mode, rounds, names)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("programs", nargs="*", default=STANDARD, help="some of the standard ones (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each pair (default: 5)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: all")
    arguments = parser.parse_args()
    if reason := missing(TOOLS["hiwater"]):
        print(f"nothing to measure: hiwater is {reason}", file=sys.stderr)
        return 1
    broken = 0
    try:
        for name in arguments.modes:
            print(f"{name}:")
            for finding in findings(MODES[name], arguments.rounds, arguments.programs):
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
