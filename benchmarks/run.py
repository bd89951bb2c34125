"""Runs every program plain and under each tool, in turn, and prints how much slower and larger each tool makes it,
and what it adds to user time, system time and page faults.

    python benchmarks/run.py [--rounds 5] [--programs calls imports] [--tools hiwater memray] [--json FILE]

A round runs a program once under everything, so that a slow minute of the machine hits all alike; quoted is the median
over the rounds of the ratio to the plain run of the same round, and behind it half the distance between lowest and
highest. The means are geometric.
All is measured by `measure.py`. Run it with the interpreter that has the tools installed.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools import TOOLS, Tool, missing

PROGRAMS = Path(__file__).with_name("programs")
MEASURE = Path(__file__).with_name("measure.py")
PATIENCE_SECONDS = 600
# What overhead is quoted for. deep_stack, nothing but allocations under a deep stack, is the worst case and stands by
# itself; the others are ours to look at sides that these leave out.
STANDARD = (
    "list_objects", "calls", "numpy_small", "malloc_blocks", "pandas_etl", "json_roundtrip", "imports",
    "threads_native",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    wall_seconds: float
    peak_rss_bytes: int
    user_seconds: float
    system_seconds: float
    page_faults: int  # minor ones

    @property
    def cpu_seconds(self) -> float:
        return self.user_seconds + self.system_seconds


@dataclass
class Comparison:
    """One program under one tool, against its plain runs."""

    plain: list[Measured] = field(default_factory=list)
    under: list[Measured] = field(default_factory=list)
    failure: str = ""

    def ratios(self, of: Callable[[Measured], float]) -> list[float]:
        """Of the runs under the tool to the plain ones."""
        return [of(under) / of(plain) for under, plain in zip(self.under, self.plain, strict=True)]

    def added(self, of: Callable[[Measured], float]) -> list[float]:
        return [of(under) - of(plain) for under, plain in zip(self.under, self.plain, strict=True)]


@dataclass(frozen=True)
class Figure:
    """What is compared: where a run has it, and how a plain one is shown."""

    title: str
    of: Callable[[Measured], float]
    show: Callable[[float], str]


FIGURES = {
    "wall": Figure("wall time", lambda run: run.wall_seconds, lambda seconds: f"{seconds:.2f} s"),
    "cpu": Figure("processor time", lambda run: run.cpu_seconds, lambda seconds: f"{seconds:.2f} s"),
    "rss": Figure("peak RSS", lambda run: run.peak_rss_bytes, lambda count: f"{count / 2**20:.0f} MiB"),
}
# Of these a plain run may have almost none: quoted is what a tool adds.
ADDED = {
    "user": Figure("user time", lambda run: 1e3 * run.user_seconds, lambda ms: f"{ms:.0f} ms"),
    "system": Figure("system time", lambda run: 1e3 * run.system_seconds, lambda ms: f"{ms:.0f} ms"),
    "faults": Figure("minor page faults", lambda run: run.page_faults, lambda count: f"{count:.0f}"),
}


def measure(command: list[str], folder: Path) -> Measured:
    """Runs a command to its end with its output thrown away. Raises ChildProcessError when it fails, or does not
    end."""
    log = folder / "stderr.txt"
    helper = [sys.executable, "-I", "-S", str(MEASURE), str(log), *command]
    with subprocess.Popen(helper, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            answer, _ = running.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise ChildProcessError(f"did not end within {PATIENCE_SECONDS} s") from None
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, helper)
    status, wall_ns, peak_rss_bytes, user_us, system_us, faults = map(int, answer.split())
    if status:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ChildProcessError(f"ended with {status}: {' '.join(last)}")
    return Measured(wall_ns / 1e9, peak_rss_bytes, user_us / 1e6, system_us / 1e6, faults)


def compare(program: list[str], tools: list[Tool], rounds: int) -> dict[str, Comparison]:
    """All tools over one program. A tool that fails once is not run again."""
    found = {tool.name: Comparison() for tool in tools}
    with tempfile.TemporaryDirectory(prefix="hiwater-benchmark-") as name:
        measure([sys.executable, *program], Path(name))  # files into the cache, byte code written
    for _ in range(rounds):
        plain: Measured | None = None
        for tool in tools:
            comparison = found[tool.name]
            if comparison.failure:
                continue
            with tempfile.TemporaryDirectory(prefix="hiwater-benchmark-") as name:
                folder = Path(name)
                plain = plain or measure([sys.executable, *program], folder)
                try:
                    under = measure(tool.command(folder, program), folder)
                except ChildProcessError as error:
                    comparison.failure = str(error)
                    continue
            comparison.plain.append(plain)
            comparison.under.append(under)
    return found


def program_command(name: str) -> list[str]:
    """The script of a program and its argument: "deep_stack:800" is deep_stack.py with 800."""
    stem, _, argument = name.partition(":")
    return [str(PROGRAMS / f"{stem}.py"), *([argument] if argument else [])]


def median(ratios: list[float]) -> str:
    """The median and, where there are several, half the distance between the lowest and the highest."""
    spread = f" ±{(max(ratios) - min(ratios)) / 2:.2f}" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}{spread}"


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def print_head(title: str, tools: list[Tool]) -> int:
    """Returns how wide each tool's column is."""
    width = max(13, *(len(tool.name) + 2 for tool in tools))
    print(f"\n{title}\n{'program':<16}{'plain':>11}" + "".join(f"{tool.name:>{width}}" for tool in tools))
    return width


def print_table(figure: Figure, results: dict[str, dict[str, Comparison]], tools: list[Tool]) -> None:
    width = print_head(f"{figure.title}, as a multiple of the plain run", tools)
    means: dict[str, dict[str, float]] = {tool.name: {} for tool in tools}
    for program, by_tool in results.items():
        row = f"{program:<16}{plain_figure(by_tool, figure):>11}"
        for tool in tools:
            comparison = by_tool[tool.name]
            ratios = comparison.ratios(figure.of)
            row += f"{'failed' if comparison.failure else median(ratios):>{width}}"
            if ratios and not comparison.failure:
                means[tool.name][program] = statistics.median(ratios)
        print(row)
    for label, wanted in (("mean of standard", set(STANDARD)), ("mean of all", set(results))):
        figures = [[ratio for name, ratio in means[tool.name].items() if name in wanted] for tool in tools]
        print(f"{label:<27}" + "".join(f"{mean_figure(ratios):>{width}}" for ratios in figures))


def print_added(results: dict[str, dict[str, Comparison]], tools: list[Tool]) -> None:
    for figure in ADDED.values():
        width = print_head(f"{figure.title}, what is added to the plain run", tools)
        for program, by_tool in results.items():
            added = [by_tool[tool.name].added(figure.of) for tool in tools]
            cells = [figure.show(statistics.median(values)) if values else "failed" for values in added]
            print(f"{program:<16}{plain_figure(by_tool, figure):>11}" + "".join(f"{cell:>{width}}" for cell in cells))


def plain_figure(by_tool: dict[str, Comparison], figure: Figure) -> str:
    runs = [run for comparison in by_tool.values() for run in comparison.plain]
    return figure.show(statistics.median(map(figure.of, runs))) if runs else "-"


def mean_figure(ratios: list[float]) -> str:
    return f"{geometric_mean(ratios):.2f} of {len(ratios)}" if ratios else "-"


def as_json(results: dict[str, dict[str, Comparison]], rounds: int) -> dict[str, object]:
    """Every single measurement, for machines."""
    programs: dict[str, object] = {}
    for program, by_tool in results.items():
        programs[program] = {
            name: {
                "failure": comparison.failure,
                "ratios": {which: comparison.ratios(figure.of) for which, figure in FIGURES.items()},
                "plain": [asdict(run) for run in comparison.plain],
                "under": [asdict(run) for run in comparison.under],
            }
            for name, comparison in by_tool.items()
        }
    return {"schema": "hiwater.benchmark/2", "python": sys.version.split()[0], "rounds": rounds, "programs": programs}


def arguments() -> argparse.Namespace:
    known = sorted(path.stem for path in PROGRAMS.glob("*.py"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each pair (default: 5)")
    programs_help = f"of {', '.join(known)}; a colon adds an argument: deep_stack:800"
    parser.add_argument("--programs", nargs="+", default=known, metavar="NAME", help=programs_help)
    tools_help = f"of {', '.join(TOOLS)}"
    parser.add_argument("--tools", nargs="+", default=list(TOOLS), choices=list(TOOLS), metavar="NAME", help=tools_help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every measurement")
    chosen = parser.parse_args()
    for name in chosen.programs:
        if name.partition(":")[0] not in known:
            parser.error(f"there is no program {name!r}: choose from {', '.join(known)}")
    if chosen.rounds < 1:
        parser.error("--rounds takes a number from 1")
    return chosen


def installed(names: list[str]) -> list[Tool]:
    """The tools that are here; a line on stderr for each that is not."""
    tools = []
    for name in names:
        if reason := missing(TOOLS[name]):
            print(f"{name}: left out, {reason}", file=sys.stderr)
        else:
            tools.append(TOOLS[name])
    return tools


def main() -> int:
    chosen = arguments()
    tools = installed(chosen.tools)
    if not tools:
        print("none of the tools is installed here", file=sys.stderr)
        return 1
    results: dict[str, dict[str, Comparison]] = {}
    for name in chosen.programs:
        print(f"{name} …", file=sys.stderr)
        try:
            results[name] = compare(program_command(name), tools, chosen.rounds)
        except ChildProcessError as error:
            print(f"{name}: left out, the plain program {error}", file=sys.stderr)
    if not results:
        return 1
    for figure in FIGURES.values():
        print_table(figure, results, tools)
    print_added(results, tools)
    failures = [(p, n, c.failure) for p, by_tool in results.items() for n, c in by_tool.items() if c.failure]
    for program_name, tool_name, failure in failures:
        print(f"{tool_name} on {program_name} {failure}", file=sys.stderr)
    if chosen.json:
        chosen.json.write_text(json.dumps(as_json(results, chosen.rounds), indent=1) + "\n")
    return 1 if any(name.startswith("hiwater") for _, name, _ in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
