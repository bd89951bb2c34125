"""Programs that call a library with known functions, recorded with native frames."""

import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import compiled
import hiwater
from children import run_command
from hiwater.analysis.symbols.naming import FunctionNames
from hiwater.capture.native_frames import Frames
from recording import child_environment

HEAD = """\
import ctypes, sys
native = ctypes.CDLL(sys.argv[1])
"""


def record(folder: Path, program: str, *options: str, environment: Mapping[str, str] = {}) -> Path:
    (folder / "program.py").write_text(HEAD + textwrap.dedent(program))
    done = run_command([sys.executable, "-m", "hiwater", "run", "-q", *options, "-o", "run.hiw", "program.py",
            compiled.library("native_frames")], folder=folder, env=child_environment(environment))  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (folder / "out").write_text(done.stdout)
    return folder / "run.hiw"


def stacks(path: Path, bytes_: int, frames: Frames = Frames.mixed, cache: Path | None = None) -> list[list[str]]:
    """The functions of the stacks that hold blocks of this size at the end, root first."""
    capture = hiwater.open(path)
    if frames is not Frames.python:
        capture.show_frames(frames, FunctionNames(cache or path.parent / "cache").of)
    assert capture.problems() == []
    found = [
        one for one in capture.end.stacks if one.bytes and one.bytes % bytes_ == 0 and one.bytes // one.blocks == bytes_
    ]
    return [[frame.function for frame in one.frames] for one in found]


def native_part(stack: list[str]) -> list[str]:
    """From the library's first function on."""
    names = ("first", "many", "aligned", "wander", "after_exception", "after_jump", "in_thread", "in_signal")
    return stack[next(i for i, name in enumerate(stack) if name in names) :]


def recorded_with_a_copy(tmp_path: Path) -> tuple[Path, Path]:
    """A library that a test may change or delete, and the capture of a program that used it."""
    library = tmp_path / "copy.so"
    shutil.copy(compiled.library("native_frames"), library)
    return library, record(tmp_path, f"""
        native = ctypes.CDLL({str(library)!r})
        native.first(10_007)
    """, "--native")  # fmt: skip
