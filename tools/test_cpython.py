#!/usr/bin/env python3
"""Run modules of CPython's regression suite plain and recorded, and compare them test by test.

Each module of `tools/cpython_modules.txt` runs as `python -m test MODULE`, then under `hiwater run`, exact and sampled.
Results and exit codes must be the same, the engine must find itself sound at the end, and the capture's sums must be
right. Interpreters are found as `tools/test_pythons.py` finds them; those without the `test` package are named and left
out.

Exit code: 0 when nothing differs on any interpreter, 1 when something does, 2 when there is no interpreter with the
`test` package.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests" / "helpers")]

import test_pythons  # noqa: E402 - the same

import faithful  # noqa: E402 - found by the line above

MODULES = TOOLS / "cpython_modules.txt"
# Says which of the modules named on the command line the interpreter has; fails where it has no suite.
PROBE = """
import importlib.util, json, sys, test.libregrtest.main
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec("test." + name)]))
"""


def modules(chosen: str = "") -> list[str]:
    """Return the names in the list; with `chosen` "quick" those of the normal test suite alone."""
    lines = [line.split("#")[0].split() for line in MODULES.read_text().splitlines()]
    return [words[0] for words in lines if words and words[0] != "-" and chosen in ("", *words[1:])]


def suite(module: str, seconds: float = 400) -> faithful.Suite:
    """Return the suite of one module; what it leaves changed in its process counts as a failure."""
    words = ("-m", "test", "--fail-env-changed", "--junit-xml", "{junit}", module)
    return faithful.Suite(module, words, seconds)


@dataclass
class Ready:
    """An interpreter that hiwater is built for, and those of the modules that it has."""

    place: faithful.Place
    modules: list[str]


def prepare(one: test_pythons.Interpreter, names: list[str], work: Path, built: bool) -> Ready | str:
    """Build hiwater for an interpreter, unless it is `built`; return why nothing can run on it where that is so."""
    if one.root is not None and not built:
        test_pythons.copy_tree(one.root)
    place = test_pythons.Place(one, work)
    if not built and not place.make():
        return f"no environment could be made: see {place.log}"
    code, said = place.python("-c", PROBE, *names)
    if code != 0:
        return "the package `test` is not installed"
    if not built and not (place.install(*test_pythons.build_packages()) and place.install_hiwater()):
        return f"hiwater could not be built: see {place.log}"
    sources = Path(test_pythons.IN_A_ROOT) / "tree/tests"
    where = faithful.Place(place.executable)
    if one.root is not None:
        where = faithful.Place(place.executable, partial(test_pythons.inside, one.root), one.root, sources)
    return Ready(where, json.loads(said.splitlines()[-1]))


def show(comparison: faithful.Comparison) -> None:
    """Print one line for a module, and one for each thing that is not as it should be."""
    outcomes = [comparison.plain, *comparison.recorded.values()]
    seconds = " ".join(f"{outcome.cpu:7.1f}" for outcome in outcomes)
    word = "DIFFERS" if comparison.wrong else "once" if comparison.once else "same"
    say(f"  {comparison.suite.name:<34} {len(comparison.plain.tests):>6} {seconds}  {word}")
    for line in [*comparison.wrong, *comparison.once]:
        say(f"      {line}")
    if comparison.unsteady:
        say(f"      unsteady without hiwater: {', '.join(sorted(comparison.unsteady))}")


def keep(comparison: faithful.Comparison, path: Path) -> None:
    """Append what came of a module, with the output of runs that were not the same."""
    row = {
        "module": comparison.suite.name, "exit_code": comparison.plain.exit_code, "tests": len(comparison.plain.tests),
        "cpu": [outcome.cpu for outcome in (comparison.plain, *comparison.recorded.values())],
        "wrong": comparison.wrong, "once": comparison.once, "unsteady": sorted(comparison.unsteady),
    }  # fmt: skip
    if comparison.wrong or comparison.once:
        row["output"] = {mode: one.output[-20_000:] for mode, one in comparison.recorded.items()}
        row["plain"] = comparison.plain.output[-20_000:]
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def say(line: str) -> None:
    """Print a line now, whatever stdout is."""
    print(line, flush=True)


def compare_all(place: faithful.Place, suites: list[faithful.Suite], modes: list[str], jobs: int, log: Path) -> bool:
    """Compare each suite; return whether all were the same."""
    comparisons = []
    with ThreadPoolExecutor(jobs) as pool:
        for one in as_completed([pool.submit(faithful.compare, suite, place, modes) for suite in suites]):
            comparisons.append(one.result())
            show(comparisons[-1])
            keep(comparisons[-1], log)
    wrong = [one for one in comparisons if one.wrong or one.once]
    tests = sum(len(one.plain.tests) for one in comparisons)
    unsteady = sum(len(one.unsteady) for one in comparisons)
    say(
        f"  {len(comparisons)} suites, {tests} tests: {len(wrong)} suites differ, {unsteady} tests are "
        "unsteady without hiwater"
    )
    return not wrong


def main() -> int:
    """Compare all that was asked for."""
    parser = argparse.ArgumentParser(description="Compares CPython's regression suite plain and recorded.")
    parser.add_argument("modules", nargs="*", help="modules (default: all of tools/cpython_modules.txt)")
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="3.14, 3.14d …: these interpreters alone"
    )
    parser.add_argument("--mode", action="append", choices=list(faithful.MODES), help="record in this mode alone")
    parser.add_argument("--quick", action="store_true", help="the modules of the normal test suite alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many modules run at the same time")
    parser.add_argument("--built", action="store_true", help="use the environments that are there")
    parser.add_argument("--seconds", type=float, default=400, help="longest time for one run of one module")
    parser.add_argument(
        "--work", type=Path, default=test_pythons.TREE / "build/cpython", help="where environments and logs go"
    )
    arguments = parser.parse_args()
    faithful.default_signals()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    names = arguments.modules or modules("quick" if arguments.quick else "")
    modes = arguments.mode or list(faithful.MODES)
    tested, same = 0, True
    for one in test_pythons.find()[0]:
        if arguments.only and one.name not in arguments.only:
            continue
        ready = prepare(one, names, work, arguments.built)
        if isinstance(ready, str):
            say(f"CPython {one.full}: not tested, {ready}")
            continue
        say(
            f"CPython {one.full} ({one.build}) has {len(ready.modules)} of {len(names)} modules: tests, "
            f"seconds plain, {', '.join(modes)}"
        )
        tested += 1
        suites = [suite(name, arguments.seconds) for name in ready.modules]
        same &= compare_all(ready.place, suites, modes, arguments.jobs, work / f"{one.name}.jsonl")
    if not tested:
        say("no interpreter with the package `test` was found")
        return 2
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
