"""What docs/what-the-numbers-mean.md says of kinds and sizes is what recordings show."""

import ctypes
import math
import re
from pathlib import Path

import pytest

from hiwater._os.sizes import parse_size
from places import ROOT
from recording import Recorded, needs_engine, record

PAGE = (ROOT / "docs/what-the-numbers-mean.md").read_text()
TEXT = " ".join(PAGE.split())
# | `code` | `kind` | bytes |
EXAMPLES = [
    (code, kind, int(size.replace(",", "")))
    for code, kind, size in re.findall(r"^\| `([^`]+)` \| `(\w+)` \| ([\d,]+) \|$", PAGE, re.MULTILINE)
]
KIB, MIB = 1 << 10, 1 << 20


def said(pattern: str) -> tuple[float, ...]:
    """The numbers that the page gives where it says so; there is one such place."""
    found = re.findall(pattern, TEXT)
    assert len(found) == 1, f"the page says {pattern!r} {len(found)} times"
    numbers = found[0] if isinstance(found[0], tuple) else found
    return tuple(float(number.replace(",", "")) for number in numbers)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    lines = [f"    kept.append({code})  # @example{number}" for number, (code, _, _) in enumerate(EXAMPLES)]
    text = "import mmap\nimport numpy\nnumpy.empty(1)\nkept = [None] * 100\nkept.clear()\ndef main():\n" + "\n".join(
        lines
    )
    return record(tmp_path_factory.mktemp("examples"), text + "\n")


@needs_engine
@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[code for code, _, _ in EXAMPLES])
def test_examples_are_of_the_kind_and_size_that_the_page_says(recorded: Recorded, number: int) -> None:
    _, kind, size = EXAMPLES[number]
    held = {name: recorded.held(f"example{number}", name, "end") for name in ("python", "native", "mapping", "shared")}
    # An object that is the handle of other memory is itself a small Python block.
    assert held[kind] == size
    assert all(other < 300 for name, other in held.items() if name != kind)


def test_there_are_examples_of_each_kind_that_an_allocation_can_have() -> None:
    assert {kind for _, kind, _ in EXAMPLES} == {"python", "native", "mapping", "shared"}
    assert any(kind == "python" and size > 512 for _, kind, size in EXAMPLES)


def test_what_malloc_takes_for_a_block() -> None:
    asked, taken = said(r"a block of (\d+) bytes takes (\d+)")
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc_usable_size.argtypes = library.free.argtypes = [ctypes.c_void_p]
    blocks = [library.malloc(ctypes.c_size_t(int(asked))) for _ in range(1000)]
    # The least of them: malloc serves a few from larger pieces that were freed, where what remains is too small for a
    # block.
    usable = min(map(library.malloc_usable_size, blocks))
    for block in blocks:
        library.free(block)
    assert usable + 8 == taken  # the word before the block is malloc's


def test_standard_errors() -> None:
    step, many, error, few, least = said(
        r"(\d+) KiB and (\d+) MiB of small blocks give ([\d.]+) MiB, a single stack of (\d+) MiB gives ([\d.]+) MiB"
    )
    for sampled, shown in ((many, error), (few, least)):
        assert round(math.sqrt(step * KIB * sampled * MIB) / MIB, 1) == shown


def test_units() -> None:
    kib, mib = said(r"1 KiB is (\d+) bytes, 1 MiB is (\d+) KiB")
    assert (parse_size("1KiB"), parse_size("1MiB")) == (kib, mib * kib)
    binary, decimal = said(r"`64KiB` is ([\d,]+) bytes, `64KB` is ([\d,]+)")
    assert (parse_size("64KiB"), parse_size("64KB")) == (binary, decimal)


@needs_engine
def test_arenas_are_slack_of_the_size_that_the_page_says(tmp_path: Path) -> None:
    (size,) = said(r"takes arenas of (\d+) MiB")
    found = record(tmp_path, "def main():\n    main.kept = [bytes(400) for _ in range(20_000)]\n")
    slack = sum(stack.bytes for stack in found.capture.stacks("end") if stack.kind == "slack")
    blocks = sum(stack.blocks for stack in found.capture.stacks("end") if stack.kind == "slack")
    # Beside the arenas there are tables that find them.
    assert slack // (int(size) * MIB) >= 8
    assert slack < (blocks + 1) * size * MIB
