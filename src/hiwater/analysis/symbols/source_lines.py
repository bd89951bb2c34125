"""The source lines of native code, and the functions that a compiler put inline: by `symbolic`, `llvm-symbolizer` or
`addr2line`, whichever is there first.

A file that a capture names may be anything. So each of these reads it in a process of its own, which is given little
time and memory, no debuginfod to ask, and the descriptor of the file that was checked, not its path.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import groupby
from posixpath import normpath

from hiwater.capture.native_frames import NativePlace

_MOST_SECONDS, _MOST_BYTES, _MOST_INLINED = 20, 2 << 30, 32
_SYMBOLIC = """\
import json, sys
path, sys.path[:] = sys.argv[1], json.loads(sys.argv[2])
from symbolic.debuginfo import Archive
cache = next(Archive.open(path).iter_objects()).make_symcache()
for line in sys.stdin:
    print(json.dumps([(one.symbol, one.full_path or "", one.line) for one in cache.lookup(int(line, 16))]))
"""

Places = tuple[NativePlace, ...]
"""What one address is in: the function, and below it those that were put inline, each at its line."""


def finder() -> str | None:
    """What can find source lines here. Elsewhere than on Linux a file that is open has no name to be passed on."""
    if not os.path.isdir("/proc/self/fd"):
        return None
    if find_spec("symbolic") is not None:
        return "symbolic"
    return next(filter(shutil.which, ("llvm-symbolizer", "addr2line")), None)


def find(descriptor: int, addresses: Sequence[int], seconds: float) -> list[Places] | None:
    """For each address of an open file what it is in, by mangled names; None where that cannot be found."""
    path, program = f"/proc/self/fd/{descriptor}", finder()
    if program is None:
        return None
    command = {
        "symbolic": [sys.executable, "-I", "-c", _SYMBOLIC, path, json.dumps(sys.path)],
        "llvm-symbolizer": [program, f"--obj={path}", "--inlines", "--no-demangle", "--output-style=JSON"],
        "addr2line": [program, "-a", "-f", "-i", "-e", path],
    }[program]
    # What is in the file has no say in what is asked of the network.
    environment = {name: value for name, value in os.environ.items() if name != "DEBUGINFOD_URLS"}
    with suppress(OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError, IndexError):
        done = subprocess.run(
            command, input="".join(f"{address:#x}\n" for address in addresses), capture_output=True, encoding="utf-8",
            errors="replace", check=True, timeout=min(seconds, _MOST_SECONDS), env=environment, pass_fds=(descriptor,),
            preexec_fn=lambda: _limit(descriptor),
        )  # fmt: skip
        read = {"symbolic": _of_symbolic, "llvm-symbolizer": _of_llvm, "addr2line": _of_addr2line}[program]
        found = [*map(_cleaned, read(done.stdout.splitlines()))]
        return found if len(found) == len(addresses) else None
    return None


def _limit(descriptor: int) -> None:
    """Bound the process that is about to read a file, which it maps as a whole."""
    import resource

    most = _MOST_BYTES + 2 * os.fstat(descriptor).st_size
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _cleaned(innermost_first: Sequence[tuple[str, str, int]]) -> Places:
    return tuple(
        NativePlace(function, normpath(file) if file and line else "", line if file else 0)
        for function, file, line in reversed(innermost_first[-_MOST_INLINED:])
    )


def _of_symbolic(lines: Sequence[str]) -> Iterator[list[tuple[str, str, int]]]:
    for line in lines:
        yield [(str(function), str(file), int(number)) for function, file, number in json.loads(line)]


def _of_llvm(lines: Sequence[str]) -> Iterator[list[tuple[str, str, int]]]:
    for line in lines:
        found = json.loads(line).get("Symbol", [])
        yield [(str(one["FunctionName"]), str(one["FileName"]), int(one["Line"])) for one in found]


def _of_addr2line(lines: Sequence[str]) -> Iterator[list[tuple[str, str, int]]]:
    """An address, and below it pairs of lines: a function, a place. It gives an inlined function without a mangled
    name that of the function around it: of equal ones the outermost is the one that is so called."""
    starts = [number for number, line in enumerate(lines) if line.startswith("0x")]
    for begin, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        pairs = zip(lines[begin + 1 : end : 2], lines[begin + 2 : end : 2], strict=True)
        named = [(function.replace("??", ""), *_place(place)) for function, place in pairs]
        yield [[*same][-1] for _, same in groupby(named, key=lambda one: one[0])]


def _place(text: str) -> tuple[str, int]:
    file, _, line = text.partition(" (discriminator")[0].rpartition(":")
    return file.replace("??", ""), int(line) if line.isdecimal() else 0
