"""Counts what one event costs in instructions, with callgrind: the same figure on a busy machine and an idle one.

    python benchmarks/instructions.py [--events object malloc] [--count 20000] [--json FILE]

Each loop runs with COUNT and with 3 COUNT events, plain and recorded; the differences are free of start-up, and the
difference of the two differences is the recorder's share of one event.
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

    @property
    def added(self) -> float:
        return self.recorded - self.plain


def instructions(arguments: list[str], folder: Path) -> int:
    """How many instructions one run of `events.py` takes."""
    output = folder / "callgrind.out"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}"]
    command = [*valgrind, sys.executable, str(HERE / "events.py"), *arguments]
    environment = os.environ | {"HIWATER_CHURN": str(folder / "churn.so"), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not collected:
        sys.exit(f"{' '.join(arguments)} under valgrind ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return int(collected[1])


def cost(event: str, count: int, folder: Path) -> Cost:
    def per_event(*more: str) -> float:
        few, many = (instructions([event, str(n), *more], folder) for n in (count, 3 * count))
        return (many - few) / (2 * count)

    return Cost(per_event(), per_event(str(folder / "capture.hiw")))


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
    parser.add_argument("--count", type=int, default=20_000, help="events in the short run (default: 20000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    chosen = parser.parse_args()
    if reason := lacking():
        print(f"instructions cannot be counted: {reason}", file=sys.stderr)
        return 1
    costs: dict[str, Cost] = {}
    print(f"{'event':<14}{'plain':>9}{'recorded':>10}{'added':>9}   what one event is")
    with tempfile.TemporaryDirectory(prefix="hiwater-instructions-") as name:
        compile_churn(Path(name))
        for event in chosen.events:
            figure = costs[event] = cost(event, chosen.count, Path(name))
            print(f"{event:<14}{figure.plain:>9.0f}{figure.recorded:>10.0f}{figure.added:>9.0f}   {EVENTS[event][0]}")
    if chosen.json:
        figures = {event: asdict(figure) | {"added": figure.added} for event, figure in costs.items()}
        chosen.json.write_text(json.dumps({"schema": "hiwater.instructions/1", "events": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
