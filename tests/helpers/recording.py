"""Records a program in a fresh interpreter and reads back what the capture says about its lines.

A program is the text of a module with a function `main()`, which is recorded; `before()` and `after()`, where it has
them, run outside the recording. A line is named by a comment at its end: `block = take(10)  # @first` is "first".
"""

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import compiled
import naive_reader
from naive_reader import NaiveCapture, Stack
from places import EXTENSIONS

SHARE = int(os.environ.get("HIWATER_TEST_SHARE", "1"))
"""HIWATER_TEST_SHARE=n runs one in n of the rounds that only repeat and of the tests of each grid, and makes the
widest captures n times smaller."""
needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("hiwater._core") is None, reason="this build has no engine (HIWATER_ENGINE=OFF)"
)


def rounds(whole: int) -> int:
    """How many of this number of random examples are to be tried."""
    return -(-whole // SHARE)


DRIVER = """\
import os, sys, sysconfig
sys.path.insert(0, {extensions!r})
sys.setrecursionlimit(20_000)
import hiwater._core as _core
import program

def _record():
    paths = sysconfig.get_paths()
    _core.start(
        {capture!r},
        facts={{"argv": "program.py"}},
        internal_prefix=os.path.dirname(_core.__file__),
        sample_bytes={sample_bytes},
    )
    try:
        program.main()
        {self_check}
    finally:
        _core.stop(None if hasattr(program, "after") else 0)  # a process that ends keeps some hooks

getattr(program, "before", lambda: None)()
_record()
getattr(program, "after", lambda: None)()
"""


@dataclass(frozen=True)
class Recorded:
    """What one recorded run left: its capture, and the program's own words."""

    program: Path
    path: Path
    capture: NaiveCapture
    stdout: str
    stderr: str

    def line(self, name: str) -> int:
        """The number of the line that ends in `# @name`."""
        lines = self.program.read_text().splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# @{name}")]
        assert len(numbers) == 1, f"{len(numbers)} lines are called {name}"
        return numbers[0]

    def stacks(self, name: str, kind: str | None = None, at: str = "peak") -> list[Stack]:
        """The stacks whose innermost Python frame is the named line."""
        place = (str(self.program), self.line(name))
        return [
            stack
            for stack in self.capture.stacks(at)
            if kind in (None, stack.kind) and stack.leaf is not None and (stack.leaf.file, stack.leaf.line) == place
        ]

    def held(self, name: str, kind: str | None = "native", at: str = "peak") -> int:
        return sum(stack.bytes for stack in self.stacks(name, kind, at))

    def blocks(self, name: str, kind: str | None = "native", at: str = "peak") -> int:
        return sum(stack.blocks for stack in self.stacks(name, kind, at))

    def through(self, function: str, kind: str | None = "native", at: str = "peak") -> int:
        """What stacks that pass through the named function held."""
        return sum(s.bytes for s in self.capture.stacks(at) if kind in (None, s.kind) and s.passes(function))


def write_program(
    folder: Path, text: str, *, capture: Path, sample_bytes: int = 0, self_check: bool = True
) -> tuple[Path, Path]:
    """Writes the program and the driver that records it; gives both paths."""
    program, driver = folder / "program.py", folder / "driver.py"
    program.write_text(textwrap.dedent(text))
    driver.write_text(
        DRIVER.format(
            extensions=str(EXTENSIONS),
            capture=str(capture),
            sample_bytes=sample_bytes,
            self_check="_core.self_check()" if self_check else "",
        )
    )
    return program, driver


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONMALLOC", "HIWATER_"))
    }
    environment["HIWATER_TEST_LIBRARIES"] = str(compiled.libraries())
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment | dict(extra or {})


def record(
    folder: Path,
    text: str,
    *,
    libraries: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    sample_bytes: int = 0,
    timeout: float = 300,
    options: Sequence[str] = (),
) -> Recorded:
    """Runs the program recorded, in a fresh interpreter with these options; fails the test where the books do not add
    up."""
    for name in libraries:
        compiled.library(name)
    path = folder / "capture.hiw"
    program, driver = write_program(folder, text, capture=path, sample_bytes=sample_bytes)
    done = subprocess.run(
        [sys.executable, *options, driver],
        cwd=folder, capture_output=True, text=True, timeout=timeout, check=False, env=child_environment(environment),
    )  # fmt: skip
    assert done.returncode == 0, f"the program ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    capture = naive_reader.read(path)
    capture.check()
    assert capture.header["state"] == 2, "the capture says it has not ended"
    assert capture.header["lost_events"] == 0
    return Recorded(program, path, capture, done.stdout, done.stderr)
