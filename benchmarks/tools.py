"""How each tool is told to run a program and to leave its result in a folder. Nothing here starts anything."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Command = Callable[[Path, list[str]], list[str]]


@dataclass(frozen=True)
class Tool:
    name: str
    module: str  # what must be importable
    needs: str  # what to install where it is not
    command: Command  # result folder, program with arguments → command line


def python(*before: str) -> list[str]:
    return [sys.executable, *before]


def hiwater(folder: Path, program: list[str], *more: str) -> list[str]:
    command = Path(sys.executable).with_name("hiwater")  # beside the interpreter, as people type it
    return [sys.executable, str(command), "run", "-q", *more, "-o", str(folder / "capture.hiw"), *program]


def hiwater_sampled(folder: Path, program: list[str]) -> list[str]:
    return hiwater(folder, program, "--sample", "64KiB")


def memray(folder: Path, program: list[str]) -> list[str]:
    return [*python("-m", "memray", "run", "-q", "-o"), str(folder / "memray.bin"), *program]


def memray_objects(folder: Path, program: list[str]) -> list[str]:
    return [
        *python("-m", "memray", "run", "-q", "--trace-python-allocators", "-o"),
        str(folder / "memray.bin"),
        *program,
    ]


def memray_aggregate(folder: Path, program: list[str]) -> list[str]:
    return [*python("-m", "memray", "run", "-q", "--aggregate", "-o"), str(folder / "memray.bin"), *program]


def fil(folder: Path, program: list[str]) -> list[str]:
    return [*python("-m", "filprofiler", "--no-browser", "-o"), str(folder / "fil"), "run", *program]


def scalene(folder: Path, program: list[str]) -> list[str]:
    return [*python("-m", "scalene", "run", "-o"), str(folder / "scalene.json"), program[0], "---", *program[1:]]


def tracemalloc(_folder: Path, program: list[str]) -> list[str]:
    return [*python("-X", "tracemalloc"), *program]


def mprof(folder: Path, program: list[str]) -> list[str]:
    return [*python("-m", "mprof", "run", "-o"), str(folder / "mprof.dat"), *python(), *program]


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("hiwater", "hiwater", "hiwater", hiwater),
        Tool("hiwater-sampled", "hiwater", "hiwater", hiwater_sampled),
        Tool("memray", "memray", "memray", memray),
        Tool("memray-objects", "memray", "memray", memray_objects),
        Tool("memray-aggr", "memray", "memray", memray_aggregate),
        Tool("fil", "filprofiler", "filprofiler", fil),
        Tool("scalene", "scalene", "scalene", scalene),
        Tool("tracemalloc", "tracemalloc", "python", tracemalloc),
        Tool("mprof", "mprof", "memory_profiler", mprof),
    )
}


def missing(tool: Tool) -> str:
    """Why the tool cannot run here; "" when it can."""
    if importlib.util.find_spec(tool.module) is None:
        return f"not installed (pip install {tool.needs})"
    if tool.module == "hiwater" and importlib.util.find_spec("hiwater._core") is None:
        return "this build has no engine"
    return ""
