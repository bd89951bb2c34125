"""mprof's files: text, one record a line, in any order.

    CMDLINE command line
    MEM  MiB seconds                      seconds are since 1970
    CHLD pid MiB seconds
    FUNC module.name MiB seconds MiB seconds level       at its start, at its end, depth; old files have no level

Other lines are skipped, also a truncated last one.
"""

from __future__ import annotations

import glob
import os
from collections import defaultdict

from hiwater._os.sizes import BYTES_PER_MIB
from hiwater.errors import MissingCapture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hiwater.analysis.curves import Plot

    Profile = dict[str, Any]

PATTERN = "mprofile_??????????????*.dat"


def get_profile_filenames(args: Sequence[str]) -> list[str]:
    """File names for names and numbers: 0 is the oldest file in this folder, -1 the newest, "all" means every one.
    Raises MissingCapture."""
    here = sorted(glob.glob(PATTERN))
    if list(args) == ["all"]:
        return here
    found = []
    for word in args:
        if os.path.exists(word):
            found.append(word)
            continue
        try:
            found.append(here[int(word)])
        except ValueError:
            raise MissingCapture(f"there is no file {word!r}", "give a file or its number in `mprof list`") from None
        except IndexError:
            raise MissingCapture(
                f"there is no profile number {word}", f"there are {len(here)} here, the newest is -1"
            ) from None
    return found


def read_mprofile_file(filename: str) -> Profile:
    """The records of a file: mem_usage and timestamp as lists, func_timestamp, filename, cmd_line, children.

    `func_timestamp` is {name: [(start, end, MiB at start, MiB at end, level)]} and `children` {pid: [(MiB, seconds)]},
    as mprof has them. Raises MissingCapture.
    """
    memory: list[tuple[float, float]] = []
    functions: dict[str, list[tuple[float, float, float, float, int]]] = defaultdict(list)
    children: dict[int, list[tuple[float, float]]] = defaultdict(list)
    command = None
    try:
        with open(filename, encoding="utf-8", errors="replace") as file:
            for line in file:
                kind, _, rest = line.rstrip("\n").partition(" ")
                try:
                    if kind == "CMDLINE":
                        command = rest
                    elif kind == "MEM":
                        used, at = map(float, rest.split())
                        memory.append((at, used))
                    elif kind == "CHLD":
                        pid, used_there, when = rest.split()
                        children[int(pid)].append((float(used_there), float(when)))
                    elif kind == "FUNC":
                        name, *numbers = rest.split()
                        first, start, last, end = map(float, numbers[:4])
                        functions[name].append((start, end, first, last, int(numbers[4]) if len(numbers) > 4 else 0))
                except ValueError:
                    continue
    except OSError as error:
        raise MissingCapture(f"{filename!r} cannot be read ({error.strerror})", "check the name") from error
    memory.sort()
    return {
        "mem_usage": [used for _, used in memory],
        "timestamp": [at for at, _ in memory],
        "func_timestamp": dict(functions),
        "filename": filename,
        "cmd_line": command,
        "children": dict(children),
    }


def filter_mprofile_mem_usage_by_function(prof: Profile, func: str | None) -> list[float]:
    """The samples taken while a function ran; for None all samples."""
    if func is None:
        used: list[float] = prof["mem_usage"]
        return used
    spans = prof["func_timestamp"].get(func, [])
    pairs = zip(prof["timestamp"], prof["mem_usage"], strict=True)
    return [used for at, used in pairs if any(start <= at <= end for start, end, *_ in spans)]


def function_labels(dotted_function_names: Iterable[str]) -> dict[str, str]:
    """A short label for each dotted name: its last part, or as many parts as distinguish it from the others."""
    names = sorted(set(dotted_function_names))
    labels: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            label = ".".join(parts[-count:])
            if sum(other == label or other.endswith("." + label) for other in names) == 1:
                break
        labels[name] = label
    return labels


def plot_of(profile: Profile, *, functions: bool = True) -> Plot:
    """The plot of a file's records over time, from the first sample on."""
    import numpy as np

    from hiwater.analysis.curves import Curve, Plot, Span

    times = profile["timestamp"]
    start = times[0] if times else 0.0
    title = profile["cmd_line"] or profile["filename"]
    curves = []
    if times:
        used = np.array(profile["mem_usage"]) * BYTES_PER_MIB
        curves.append(Curve("resident", "resident", np.array(times) - start, used))
    for pid, samples in profile["children"].items():
        at = np.array([when for _, when in samples]) - start
        curves.append(Curve(f"child {pid}", "child", at, np.array([used for used, _ in samples]) * BYTES_PER_MIB))
    labels = function_labels(profile["func_timestamp"])
    spans = [
        Span(labels[name], begin - start, end - start, level)
        for name, runs in profile["func_timestamp"].items()
        for begin, end, _, _, level in runs
    ]
    return Plot(title, tuple(curves), tuple(spans) if functions else ())
