"""Where resident memory was, as a recording noted it: in the capture, the text report and JSON."""

import json
import os
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater, run_python
from hiwater.capture import ResidencySnapshot
from hiwater.capture.residency_snapshots import highest
from hiwater.capture.untouched import untouched_bytes
from places import HELPERS
from recording import child_environment, needs_engine

pytestmark = needs_engine

MIB = 2**20
HALF = """
import mmap, time
half = mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
half.madvise(mmap.MADV_NOHUGEPAGE)
for page in range(0, 64 << 20, 4096):
    half[page] = 1
objects = [object() for _ in range(500_000)]
time.sleep(1.2)
half.close()
"""


def recorded(folder: Path, text: str, *, older: bool = False) -> Path:
    program, capture = folder / "program.py", folder / "c.hiw"
    program.write_text(text)
    words = ("run", "-q", "-o", capture, program)
    if older:
        done = run_python(HELPERS / "older_kernel.py", "-m", "hiwater", *words, env=child_environment())
    else:
        done = run_hiwater(*words)
    assert done.returncode == 0, done.stderr
    return capture


def resident_of(look: ResidencySnapshot, name: str) -> int:
    return next(part.resident_bytes for part in look.parts if part.name == name)


def test_the_highest_look_is_near_the_peak_and_names_who_holds_what(tmp_path: Path) -> None:
    capture = hiwater.open(recorded(tmp_path, HALF))
    look = highest(capture.residency_snapshots)
    assert look is not None
    assert capture.resident.peak_bytes * 0.93 < look.resident_bytes <= capture.resident.peak_bytes + 2 * MIB
    assert sum(part.resident_bytes for part in look.parts) == look.resident_bytes
    assert abs(resident_of(look, "anonymous maps") + resident_of(look, "unexplained") - 64 * MIB) < 2 * MIB
    # A look is taken whenever there is clearly more than at the one before: what came after the last one may all be of
    # objects.
    assert resident_of(look, "Python objects, live") > 500_000 * 16 - capture.resident.peak_bytes * 0.07
    assert resident_of(look, "hiwater's overhead") > MIB
    (block,) = [block for block in look.large if block.bytes == 128 * MIB]
    assert (block.touched_bytes, block.from_malloc) == (64 * MIB, False)
    assert (block.frames[-1].line, os.path.basename(block.frames[-1].file)) == (3, "program.py")


def test_the_last_look_is_of_the_end(tmp_path: Path) -> None:
    capture = hiwater.open(recorded(tmp_path, HALF))
    last = capture.residency_snapshots[-1]
    assert last.at_ns > capture.process.duration_ns * 0.5
    assert resident_of(last, "anonymous maps") < 4 * MIB
    assert abs(last.resident_bytes - capture.resident.end_bytes) < 4 * MIB


ZEROS = "import numpy, time\nzeros = numpy.zeros(96 << 20, dtype='u1')\nzeros[:16 << 20] = 1\n"


def check_the_zeros(look: ResidencySnapshot | None) -> None:
    assert look is not None
    (block,) = [block for block in look.large if abs(block.bytes - 96 * MIB) <= 8192]
    assert block.from_malloc and block.frames[-1].line == 2
    assert 16 * MIB <= block.touched_bytes <= 20 * MIB  # a huge page comes whole


def test_a_block_of_malloc_is_named_by_its_line(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    check_the_zeros(hiwater.open(recorded(tmp_path, ZEROS)).residency_snapshots[-1])


def test_an_older_kernel_that_finds_no_ranges_of_pages_itself_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    capture = hiwater.open(recorded(tmp_path, ZEROS + "time.sleep(0.5)\n", older=True))
    check_the_zeros(highest(capture.residency_snapshots))


SHORT_PEAKS = {
    "free": "block = bytearray(b'x') * (96 << 20)\ndel block\n",
    "munmap": "import mmap\nblock = mmap.mmap(-1, 96 << 20)\nblock.write(bytes(96 << 20))\nblock.close()\n",
    "free among threads": """import threading
def work():
    block = bytearray(b'x') * (96 << 20)
    del block
    many = [[] for _ in range(10_000)]
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
}


@pytest.mark.parametrize("options", [(), ("--sample", "512KiB")], ids=["exact", "sampled"])
@pytest.mark.parametrize("text", SHORT_PEAKS.values(), ids=SHORT_PEAKS)
def test_a_peak_that_a_release_ends_at_once_has_a_snapshot(text: str, options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)
    # The program waits for the sampler's thread for a limited time, and on a busy machine that thread may come, or come
    # to its end, too late.
    for _ in range(3):
        run_hiwater("run", "-q", *options, "-o", tmp_path / "c.hiw", tmp_path / "program.py")
        capture = hiwater.open(tmp_path / "c.hiw")
        snapshot = highest(capture.residency_snapshots)
        assert snapshot is not None
        # Up to a twentieth of the peak may have been touched since.
        lines = {block.frames[-1].line for block in snapshot.large if block.touched_bytes >= 80 * MIB and block.frames}
        is_near = snapshot.resident_bytes >= capture.resident.peak_bytes * 0.95
        if is_near and lines & {1, 2, 3}:
            break
    assert is_near and lines & {1, 2, 3}


RISING = """
held, count = [], 200_000
while count < 2_000_000:
    held += [str(number) for number in range(count // 25)]
    count += count // 25
    block = b"x" * (2 << 20)
    del block
"""


def test_a_program_that_reaches_one_peak_after_another_spends_little_on_snapshots(tmp_path: Path) -> None:
    capture = hiwater.open(recorded(tmp_path, RISING))
    assert 3 <= len(capture.residency_snapshots) <= 30  # for 59 peaks; on a busy machine some are taken for the time
    look = highest(capture.residency_snapshots)
    assert look is not None
    assert look.resident_bytes >= capture.resident.peak_bytes * 0.95


UNTOUCHED = "    mmap.mmap(-1, 1 << 30).close()\n"
RISING_AND_FALLING = """
import mmap
for size in (4, 8, 12, 16, 24, 32, 48, 64):
    block = b"x" * (size << 20)
    del block
"""


def has_snapshot_near_the_peak(folder: Path, text: str) -> bool:
    capture = hiwater.open(recorded(folder, text))
    snapshot = highest(capture.residency_snapshots)
    return snapshot is not None and snapshot.resident_bytes >= capture.resident.peak_bytes * 0.95


def test_peaks_between_much_that_is_never_touched_have_snapshots_as_often_as_without(tmp_path: Path) -> None:
    # On a busy machine some come too late, with and without.
    without = sum(has_snapshot_near_the_peak(tmp_path, RISING_AND_FALLING) for _ in range(10))
    between = sum(has_snapshot_near_the_peak(tmp_path, RISING_AND_FALLING + UNTOUCHED) for _ in range(10))
    assert between >= without - 5


def test_memory_that_is_never_touched_makes_nobody_wait(tmp_path: Path) -> None:
    text = "import mmap\nfor n in range(300):\n    mmap.mmap(-1, (64 + n % 7) << 20).close()\n"
    capture = hiwater.open(recorded(tmp_path, text))
    assert capture.resident.peak_bytes < 64 * MIB
    assert len(capture.residency_snapshots) <= 8


def test_views_show_it(tmp_path: Path) -> None:
    path = recorded(tmp_path, HALF)
    text = run_hiwater("report", path, "--full", check=True).stdout
    assert "Where resident memory was" in text and "unexplained" in text
    assert "one block of 128.0 MiB had 64.0 MiB resident: <module>" in text
    told = json.loads(run_hiwater("report", path, "--format", "json", check=True).stdout)
    for look in (told["breakdown"], told["breakdown_at_end"]):
        assert sum(part["resident_bytes"] for part in look["parts"]) == look["resident_bytes"]
    assert told["breakdown"]["resident_bytes"] >= told["breakdown_at_end"]["resident_bytes"]


@pytest.mark.parametrize(
    "ending", ["os.execv('/bin/true', ['true'])", "os.kill(os.getpid(), 15)", "os.kill(os.getpid(), 9)"]
)
def test_what_was_written_before_an_abrupt_end_was_touched(tmp_path: Path, ending: str) -> None:
    """The last residency snapshot before such an end may be from the middle of the writing. Nothing tells of what
    came after it."""
    text = f"""
import os
held = []
for _ in range(6):
    held.append(b"\\x01" * (20 << 20))
{ending}
"""
    program, capture = tmp_path / "program.py", tmp_path / "c.hiw"
    program.write_text(text)
    run_hiwater("run", "-q", "-o", capture, program)
    peak = hiwater.open(capture).peak
    assert peak.allocated_bytes >= 120 * MIB
    assert untouched_bytes(peak) < 2 * MIB
