"""A recording of nothing holds nothing: what hiwater itself does inside the window is not the program's."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import naive_reader
from recording import child_environment, needs_engine

pytestmark = needs_engine

# How the window is opened and closed. Each is run twice in one process: what is loaded at first use is loaded in the
# first.
WINDOWS = {
    "with": "with hiwater.record(path, **options): pass",
    "start and stop": """
        recorder = hiwater.record(path, **options)
        recorder.start()
        recorder.stop()
    """,
    "stopped twice": """
        with hiwater.record(path, **options) as recorder:
            recorder.stop()
    """,
    "asked about": """
        with hiwater.record(path, **options) as recorder:
            recorder.path, recorder.recording, recorder.kept_in_memory
            recorder.summary()
    """,
    "with snapshots": """
        with hiwater.record(path, **options) as recorder:
            recorder.snapshot()
            recorder.snapshot(beside)
    """,
    "in a thread": """
        go, done = threading.Lock(), threading.Lock()
        go.acquire(), done.acquire()
        def window():
            go.acquire()
            with hiwater.record(path, **options): pass
            done.release()
        thread = threading.Thread(target=window)
        thread.start()
        go.release()
        done.acquire()  # nothing but this, which allocates nothing, while the thread records
        thread.join()
    """,
    "beside a thread that rests": """
        over, rests = threading.Lock(), threading.Lock()
        over.acquire(), rests.acquire()
        def rest():
            rests.release()
            over.acquire()
        thread = threading.Thread(target=rest)
        thread.start()
        rests.acquire()
        with hiwater.record(path, **options): pass
        over.release()
        thread.join()
    """,
    "with scopes loaded": """
        with hiwater.track("before"): pass
        with hiwater.record(path, **options): pass
    """,
    "with a scope open": """
        with hiwater.track("around"):
            with hiwater.record(path, **options): pass
    """,
}

DRIVER = """
import sys, threading
import hiwater.compat

options = eval(sys.argv[2])
for number in (1, 2):
    path = f"{{sys.argv[1]}}.{{number}}.hiw"
    beside = path + ".snapshot"
{window}
"""


def record_nothing(folder: Path, window: str, options: str) -> list[naive_reader.NaiveCapture]:
    script = folder / "nothing.py"
    script.write_text(DRIVER.format(window=textwrap.indent(textwrap.dedent(window), "    ")))
    done = subprocess.run(
        [sys.executable, script, folder / "capture", options],
        capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [naive_reader.read(folder / f"capture.{number}.hiw") for number in (1, 2)]


# From 3.14 on the interpreter copies the functions that `atexit` knows before it calls them, outside any frame. One is
# the recorder's, where it ends the recording of a whole program.
OF_THE_INTERPRETER = [()] if sys.version_info >= (3, 14) else []


def allocated(capture: naive_reader.NaiveCapture) -> list[tuple[str, int, int, tuple[naive_reader.Frame, ...]]]:
    """What the recording saw, freed since or not: kind, bytes, blocks, frames."""
    return [
        (kind, account["total_bytes"], account["total_blocks"], capture.frames(account["node"])[1])
        for account in capture.tables["accounts"][1:]
        if account["total_blocks"]
        for kind in [naive_reader.KINDS[account["kind"]]]
        if kind in naive_reader.COUNTED and capture.frames(account["node"])[1] not in OF_THE_INTERPRETER
    ]


@pytest.mark.parametrize(
    "options", ["{}", "{'sample': 1}", "{'sample': 65536}"], ids=["exact", "sample 1", "sample 64 KiB"]
)
@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_is_recorded_of_nothing(tmp_path: Path, window: str, options: str) -> None:
    """Neither of the first recording of a process, nor of the next."""
    for capture in record_nothing(tmp_path, WINDOWS[window], options):
        capture.check()
        assert allocated(capture) == []
        assert (capture.header["exact_total_bytes"], capture.header["exact_total_blocks"]) == (0, 0)


SCOPES = """
def main():
    with hiwater.track("first"): pass
    with hiwater.track("second"): pass
    with hiwater.compat.ResourceTracker(monitoring_interval=10): pass

with hiwater.record(path, **options):
    main()
"""


def test_what_scopes_do_for_themselves_is_not_recorded(tmp_path: Path) -> None:
    """Only the objects that the program's own lines make: nothing under a frame of a library, and no thread of
    hiwater's."""
    for capture in record_nothing(tmp_path, SCOPES, "{}"):
        outer = {frames[-1].file for _, _, _, frames in allocated(capture)}
        assert {Path(file).name for file in outer} <= {"nothing.py"}


@pytest.mark.parametrize(
    "start", [["-m", "hiwater"], [str(Path(sys.executable).with_name("hiwater"))]], ids=["module", "command"]
)
def test_running_nothing_records_nothing(tmp_path: Path, start: list[str]) -> None:
    words = [sys.executable, *start, "run", "-o", tmp_path / "nothing.hiw", "-c", "pass"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=child_environment())
    assert done.returncode == 0, done.stderr
    assert allocated(naive_reader.read(tmp_path / "nothing.hiw")) == []
