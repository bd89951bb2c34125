"""Counts what one event costs in instructions, with callgrind: the same figure on a busy machine and an idle one.

    python benchmarks/instructions.py [--events object malloc] [--count 50000] [--json FILE]

Each loop runs with COUNT and with 3 COUNT events, plain and recorded; the differences are free of start-up, and the
difference of the two differences is what recording adds to one event. The engine's own instructions are counted apart:
what malloc does depends on where its blocks lie, which no two programs have in common.
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


def cost(event: str, count: int, folder: Path) -> Cost:
    def per_event(*more: str) -> tuple[float, float]:
        few, many = (instructions([event, str(n), *more], folder) for n in (count, 3 * count))
        return (many.whole - few.whole) / (2 * count), (many.engine - few.engine) / (2 * count)

    plain, _ = per_event()
    return Cost(plain, *per_event(str(folder / "capture.hiw")))


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
    chosen = parser.parse_args()
    if reason := lacking():
        print(f"instructions cannot be counted: {reason}", file=sys.stderr)
        return 1
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
