"""Methods that `dataclasses` and `namedtuple` generate have no file: those of hiwater's own classes are hiwater's,
all others the program's."""

import subprocess
import sys
from pathlib import Path

import naive_reader
from recording import child_environment, needs_engine

pytestmark = needs_engine

BYTES = 1_000_003
FIELDS = 1000

# The buffer and the tuple are made by C functions, so the generated method is the innermost frame.
CLASSES = f"""
import collections, dataclasses, functools

@dataclasses.dataclass(frozen=True)
class Record:
    block: bytearray = dataclasses.field(default_factory=functools.partial(bytearray, {BYTES}))

Row = collections.namedtuple("Row", [f"field_{{number}}" for number in range({FIELDS})])
VALUES = tuple(range({FIELDS}))

def make():
    Record()
    Row(*VALUES)

def call(function):
    return function()
"""

DRIVER = """
import sys
from hiwater import _core
import own.classes, classes

written = eval("lambda: bytearray(2_000_003)")  # also of the file "<string>"
_core.start(sys.argv[1], facts={}, internal_prefix=sys.argv[2])
own.classes.make()
MAKE
own.classes.call(written)
_core.stop(0)
"""


def generated(folder: Path, made_by_program: str) -> dict[str, list[int]]:
    """Bytes of each block larger than 4,000 bytes whose innermost frame is in "<string>", by function."""
    (folder / "own").mkdir()
    for file in (folder / "own" / "classes.py", folder / "classes.py"):
        file.write_text(CLASSES)
    (folder / "driver.py").write_text(DRIVER.replace("MAKE", made_by_program))
    words = [sys.executable, folder / "driver.py", folder / "made.hiw", folder / "own"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=child_environment())
    assert done.returncode == 0, done.stderr
    capture = naive_reader.read(folder / "made.hiw")
    capture.check()
    found: dict[str, list[int]] = {}
    for account in capture.tables["accounts"][1:]:
        frames = capture.frames(account["node"])[1]
        if frames and frames[-1].file == "<string>" and account["total_bytes"] > 4000:
            found.setdefault(frames[-1].function, []).append(account["total_bytes"])
    return found


def test_generated_methods_that_hiwater_calls_are_its_own(tmp_path: Path) -> None:
    found = generated(tmp_path, "")
    assert {name: len(sizes) for name, sizes in found.items()} == {"<lambda>": 1}
    assert 2_000_003 <= found["<lambda>"][0] < 2_001_000  # what the program wrote counts, whoever calls it


def test_those_of_the_program_count(tmp_path: Path) -> None:
    found = generated(tmp_path, "classes.make()")
    assert set(found) == {"__create_fn__.<locals>.__init__", "<lambda>"}
    (record,) = found["__create_fn__.<locals>.__init__"]
    assert BYTES <= record < BYTES + 1000
    row, written = sorted(found["<lambda>"])
    assert 8 * FIELDS <= row < BYTES  # the tuple, its arguments, and the frame that they are passed in
    assert 2_000_003 <= written < 2_001_000
