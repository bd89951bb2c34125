"""Runs CPython's own benchmarks (pyperformance) plain and under each tool, and prints how much slower each makes them.

    python benchmarks/pyperformance_table.py [--tools hiwater hiwater-sampled] [--rounds 3] [--results FILE] [--write]
                                             [benchmark …]

Run it with an interpreter that has pyperformance, what its benchmarks need, and the tools. A benchmark that does not
run there is named, and one with several functions stands for its first. Each run is one process with one warm-up and
two values. All runs of a benchmark have equally many loops, and so many that a plain value takes `--seconds`. The tools
take turns, so that a slow minute of the machine hits all alike. Quoted are ratios of the shortest values, which pyperf
takes within the process: starting a recording and ending it is not in them. Beside them stand ratios of the processor's
time of the whole process, with start and end.

Results go to `--results` as they come, one line of JSON for each benchmark. One that is there is not run again.
`--write` puts the table into docs/performance.md.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyperformance import _manifest
from run import geometric_mean
from tools import TOOLS, missing, python

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
_TABLE = re.compile(r"(<!-- table: benchmarks/pyperformance_table.py -->\n).*?(<!-- end of table -->)", re.DOTALL)
_LONGEST_SECONDS = 300
_WORST_NAMED = 3
Row = dict[str, Any]


class Run(NamedTuple):
    """One process of a benchmark: its shortest value, and the processor's time of all it started."""

    seconds: float
    cpu_seconds: float


def benchmarks(names: Sequence[str]) -> list[Any]:
    """Those of pyperformance's default group, by name; all without names."""
    found = sorted(_manifest.load_manifest(None).resolve_group("default"), key=lambda each: each.name)
    return [each for each in found if not names or each.name in names]


def run(tool: str, benchmark: Any, loops: int, values: int = 2) -> Run:
    """Raises ChildProcessError where the benchmark fails, with the end of what it said."""
    read, write = os.pipe()
    options = f"--worker --worker-task 0 -l {loops} -n {values} -w 1 --pipe {write}".split()
    words = [benchmark.runscript, *benchmark.extra_opts, *options]
    with tempfile.TemporaryDirectory() as folder, open(read) as answer:
        command = python(*words) if tool == "plain" else TOOLS[tool].command(Path(folder), words)
        before = os.times()
        process = subprocess.Popen(
            command, pass_fds=[write], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        os.close(write)
        try:
            said = process.communicate(timeout=_LONGEST_SECONDS)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise ChildProcessError(f"longer than {_LONGEST_SECONDS} s") from None
        after = os.times()
        if process.returncode != 0:
            raise ChildProcessError(said.strip()[-300:] or f"exit code {process.returncode}")
        found = json.loads(answer.read())["benchmarks"][0]["runs"][0]["values"]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Run(min(found), cpu)


def measured(benchmark: Any, tools: Sequence[str], rounds: int, seconds: float) -> Row:
    """All runs of a benchmark; under "failed" the tools that it does not run under, with the reason."""
    row: Row = {"benchmark": benchmark.name, "failed": {}}
    try:
        row["loops"] = loops = max(1, math.ceil(seconds / run("plain", benchmark, 1, 1).seconds))
    except ChildProcessError as error:
        return row | {"failed": {"plain": str(error)}}
    for _ in range(rounds):
        for tool in ("plain", *tools):
            if tool in row["failed"]:
                continue
            try:
                row.setdefault(tool, []).append(run(tool, benchmark, loops))
            except ChildProcessError as error:
                row["failed"][tool] = str(error)
    return row


def ratios(rows: Sequence[Row], tool: str) -> dict[str, tuple[float, float]]:
    """For each benchmark that ran under the tool: ratios to the plain run, of the shortest value and of the
    processor's time."""
    ran = (row for row in rows if "plain" in row and tool in row and tool not in row["failed"])
    return {
        row["benchmark"]: tuple(  # type: ignore[misc]  # there are two
            min(each[of] for each in row[tool]) / min(each[of] for each in row["plain"]) for of in (0, 1)
        )
        for row in ran
    }


def table(rows: Sequence[Row], tools: Sequence[str]) -> Iterator[str]:
    """As Markdown."""
    yield "| tool | benchmarks | geometric mean | P90 | worst | CPU time: geometric mean |"
    yield "|---|---:|---:|---:|---|---:|"
    for tool in tools:
        found = ratios(rows, tool)
        if len(found) < 2:
            continue
        wall = {name: both[0] for name, both in found.items()}
        worst = ", ".join(
            f"{name} {wall[name]:.2f}" for name in sorted(wall, key=lambda each: -wall[each])[:_WORST_NAMED]
        )
        p90 = statistics.quantiles(wall.values(), n=10, method="inclusive")[-1]
        cpu = geometric_mean([both[1] for both in found.values()])
        yield f"| {tool} | {len(found)} | {geometric_mean(list(wall.values())):.3f} | {p90:.2f} | {worst} | {cpu:.3f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", help="the default is all")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=["hiwater", "hiwater-sampled"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="the least time of a plain value (default: 0.3)")
    parser.add_argument("--results", type=Path, default=Path("pyperformance.jsonl"))
    parser.add_argument("--write", action="store_true", help="into the documentation")
    arguments = parser.parse_args()
    for tool in arguments.tools:
        if why := missing(TOOLS[tool]):
            parser.error(f"{tool}: {why}")
    text = arguments.results.read_text() if arguments.results.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    known = {row["benchmark"] for row in rows}
    for benchmark in benchmarks(arguments.benchmarks):
        if benchmark.name in known:
            continue
        begun = time.monotonic()
        rows.append(measured(benchmark, arguments.tools, arguments.rounds, arguments.seconds))
        with arguments.results.open("a") as stream:
            stream.write(json.dumps(rows[-1]) + "\n")
        said = [f"{tool} {wall:.2f}" for tool in arguments.tools for wall, _ in ratios(rows[-1:], tool).values()]
        said += [f"{tool}: {why.splitlines()[-1]}" for tool, why in rows[-1]["failed"].items()]
        print(f"{benchmark.name:32} {time.monotonic() - begun:5.1f} s  ", *said, file=sys.stderr, flush=True)
    text = "\n".join(table(rows, arguments.tools))
    print(text)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_TABLE.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
