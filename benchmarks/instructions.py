"""Counts what one event costs in instructions, with callgrind: the same figure on a busy machine and an idle one.

    python benchmarks/instructions.py [--events object malloc] [--count 50000] [--json FILE]
    python benchmarks/instructions.py --check | --renew

Each loop runs with COUNT and with 3 COUNT events, plain and recorded; the differences are free of start-up, and the
difference of the two differences is what recording adds to one event. The engine's own instructions are counted apart:
what malloc does depends on where its blocks lie, which no two programs have in common. So those are what --check
compares with the committed figures of instructions.json.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from events import EVENTS

HERE = Path(__file__).parent
COMMITTED = HERE / "instructions.json"
TOLERANCE = 0.01


@dataclass(frozen=True)
class Cost:
    """Instructions for one event."""

    plain: float
    recorded: float
    engine: float  # of `recorded`, those of hiwater's library itself

    @property
    def added(self) -> float:
        return self.recorded - self.plain


@dataclass(frozen=True)
class Count:
    """Instructions of one run."""

    whole: int
    engine: int


def instructions(arguments: list[str], folder: Path) -> Count:
    """How many instructions one run of `events.py` takes."""
    output = folder / "callgrind.out"
    valgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={output}"]
    command = [*valgrind, sys.executable, str(HERE / "events.py"), *arguments]
    environment = os.environ | {"HIWATER_CHURN": str(folder / "churn.so"), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    profile = folder / "callgrind.out-01"  # of the loop's thread: what the recorder's own does depends on time
    if done.returncode or not profile.exists():
        sys.exit(f"{' '.join(arguments)} under valgrind ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return read_count(profile)


def read_count(profile: Path) -> Count:
    """Adds up a profile of callgrind's: lines of costs, after lines that say which object ("ob=") they are of."""
    objects: dict[str, str] = {}  # by the number that stands for it after its first mention
    whole = engine = 0
    here = is_call = False
    for line in profile.read_text().splitlines():
        if named := re.match(r"c?ob=(\(\d+\))(?: (.*))?$", line):
            number, name = named.groups()
            objects[number] = name or objects[number]
            if line.startswith("ob="):
                here = Path(objects[number]).name.startswith("_core.")
        elif line.startswith("calls="):
            is_call = True
        elif line[:1] in set("0123456789+-*"):
            if not is_call:  # the line after "calls=" is what the called function costs
                instructions_of_line = int(line.split()[1])
                whole += instructions_of_line
                engine += instructions_of_line if here else 0
            is_call = False
    return Count(whole, engine)


def per_event(folder: Path, event: str, count: int, *capture: str) -> tuple[float, float]:
    """The instructions of one event, and of these the engine's."""
    few, many = (instructions([event, str(n), *capture], folder) for n in (count, 3 * count))
    return (many.whole - few.whole) / (2 * count), (many.engine - few.engine) / (2 * count)


def cost(event: str, count: int, folder: Path) -> Cost:
    plain, _ = per_event(folder, event, count)
    return Cost(plain, *per_event(folder, event, count, str(folder / "capture.hiw")))


def compare(count: int, *, renew: bool) -> int:
    """Counts the events that instructions.json has figures of; 1 where one takes more than that."""
    committed = json.loads(COMMITTED.read_text())
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != committed["python"]:
        sys.exit(f"the figures of {COMMITTED.name} are of CPython {committed['python']}, and this is {here}")
    too_many = False
    with tempfile.TemporaryDirectory(prefix="hiwater-instructions-") as name:
        compile_churn(Path(name))
        for event, before in committed["engine"].items():
            _, now = per_event(Path(name), event, count, str(Path(name, "capture.hiw")))
            print(f"{event:<14}{before:>9.0f}{now:>9.0f}   {EVENTS[event][0]}")
            too_many |= now > before * (1 + TOLERANCE)
            committed["engine"][event] = round(now, 1)
    if renew:
        COMMITTED.write_text(json.dumps(committed, indent=1) + "\n")
    elif too_many:
        print(
            f"An event takes the engine more instructions than {COMMITTED.name} has. Make it cheaper, or "
            "write the new\n"
            "figures with `python benchmarks/instructions.py --renew`, and say in the commit what they are paid for.\n"
            f"They are of {committed['compiler']}: another compiler makes other code."
        )
    return int(too_many and not renew)


def compile_churn(folder: Path) -> None:
    subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", folder / "churn.so", HERE / "churn.c"], check=True)


def lacking() -> str:
    """What is not here and needed; "" when all is."""
    for program in ("valgrind", "cc"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if importlib.util.find_spec("hiwater") is None or importlib.util.find_spec("hiwater._core") is None:
        return "hiwater is not installed, or built without its engine"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--events", nargs="+", default=list(EVENTS), choices=list(EVENTS), metavar="NAME")
    parser.add_argument("--count", type=int, default=50_000, help="events in the short run (default: 50000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    parser.add_argument("--check", action="store_true", help="compare the engine's with instructions.json")
    parser.add_argument("--renew", action="store_true", help="write the engine's into instructions.json")
    chosen = parser.parse_args()
    if reason := lacking():
        print(f"instructions cannot be counted: {reason}", file=sys.stderr)
        return 1
    if chosen.check or chosen.renew:
        return compare(chosen.count, renew=chosen.renew)
    costs: dict[str, Cost] = {}
    print(f"{'event':<14}{'plain':>9}{'recorded':>9}{'added':>9}{'engine':>9}   what one event is")
    with tempfile.TemporaryDirectory(prefix="hiwater-instructions-") as name:
        compile_churn(Path(name))
        for event in chosen.events:
            figure = costs[event] = cost(event, chosen.count, Path(name))
            figures = (f"{number:>9.0f}" for number in (figure.plain, figure.recorded, figure.added, figure.engine))
            print(f"{event:<14}{''.join(figures)}   {EVENTS[event][0]}")
    if chosen.json:
        by_event = {event: asdict(figure) | {"added": figure.added} for event, figure in costs.items()}
        chosen.json.write_text(json.dumps({"schema": "hiwater.instructions/2", "events": by_event}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
