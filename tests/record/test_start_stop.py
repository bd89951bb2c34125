"""Starting and stopping, over and over and at odd moments, leaves the process as it was found."""

import subprocess
import sys
from pathlib import Path

import compiled
from recording import child_environment, needs_engine, rounds

pytestmark = needs_engine

AGAIN_AND_AGAIN = """
import os, sys, time
import hiwater._core as core
path, rounds = sys.argv[1], int(sys.argv[2])
package = os.path.dirname(core.__file__)

def once():
    core.start(path, facts={"argv": "x"}, internal_prefix=package)
    kept = [bytes(700), {"a": 1}, str(rounds)]
    core.stop(0)

def threads():
    until = time.monotonic() + 60  # the kernel shows a thread that was waited for until it has removed it
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until: time.sleep(0.01)
    return len(os.listdir("/proc/self/task"))

def state():
    # The file itself is page cache; what is ours is anonymous memory, descriptors, mappings and threads.
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "anonymous": int(status["RssAnon"].split()[0]) * 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum(1 for _ in open("/proc/self/maps")),
        "threads": threads(),
    }

for _ in range(200): once()
before = state()
for _ in range(rounds): once()
after = state()
print(before, after, sep="\\n")
assert after["descriptors"] == before["descriptors"]
assert after["threads"] == before["threads"]
assert after["mappings"] <= before["mappings"] + 4
assert after["anonymous"] < before["anonymous"] + (1 << 19)
"""


def run(folder: Path, text: str, *arguments: str) -> str:
    script = folder / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_many_recordings_do_not_grow(tmp_path: Path) -> None:
    run(tmp_path, AGAIN_AND_AGAIN, str(tmp_path / "again.hiw"), str(rounds(1_500)))


BETWEEN = """
import os, sys
import hiwater._core as core
path, library = sys.argv[1:]
package = os.path.dirname(core.__file__)

def recorded(work):
    core.start(path, facts={}, internal_prefix=package)
    before = core.counters()["native_live_bytes"]
    kept = work()
    grown = core.counters()["native_live_bytes"] - before
    core.stop(0)
    return grown

assert "ctypes" not in sys.modules and "_ctypes" not in sys.modules
print("nothing", recorded(lambda: None))

# libffi comes with ctypes, which keeps a pointer that it looked up outside of any recording.
import ctypes
libc = ctypes.CDLL(None)
take = libc.malloc
take.argtypes, take.restype = [ctypes.c_size_t], ctypes.c_void_p
take(1)
print("ctypes", recorded(lambda: take(1_000_003)))

# A library that is new, with calls of its own and no pointer yet.
lookup = ctypes.CDLL(library)
for name in ("take_kept", "take_stored"):
    getattr(lookup, name).argtypes, getattr(lookup, name).restype = [ctypes.c_size_t], ctypes.c_void_p
print("stored", recorded(lambda: lookup.take_stored(1_000_003)))

# The same modules as at the recording before, and a pointer in the data of one that was not there then.
lookup.keep_dlsym()
print("kept", recorded(lambda: lookup.take_kept(1_000_003)))
print("again", recorded(lambda: lookup.take_kept(1_000_003)))
print("stored again", recorded(lambda: lookup.take_stored(1_000_003)))
"""


def test_what_came_between_two_recordings_is_found_by_the_second(tmp_path: Path) -> None:
    """Modules are looked through again only when one came or went; their data is each time."""
    output = run(tmp_path, BETWEEN, str(tmp_path / "between.hiw"), str(compiled.library("lookup")))
    figures = {name: int(figure) for name, figure in (line.rsplit(" ", 1) for line in output.splitlines())}
    assert figures.pop("nothing") < 100_000
    assert list(figures) == ["ctypes", "stored", "kept", "again", "stored again"]
    for name, figure in figures.items():
        assert 1_000_003 <= figure < 1_100_000, name


def test_slots_and_allocators_are_as_before(tmp_path: Path) -> None:
    """After stop every relocated slot of every module holds the bytes it held before start."""
    run(
        tmp_path,
        """
import ctypes, os, re, sys
import hiwater._core as core

def slots():
    found = {}
    pattern = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\\S+) (\\S+) \\S+ \\S+ +(/\\S+\\.so\\S*|\\S*/python\\S*)$")
    for line in open("/proc/self/maps"):
        match = pattern.match(line.rstrip())
        # Data that the loader has made read-only again: tables of addresses, which nothing else changes.
        if match and match[3] == "r--p":
            start, end = int(match[1], 16), int(match[2], 16)
            found[match[5], match[4]] = ctypes.string_at(start, end - start)
    return found

package = os.path.dirname(core.__file__)
def once():
    core.start(sys.argv[1], facts={}, internal_prefix=package)
    kept = bytes(1000)
    core.stop(0)
once()
before = slots()
once()
after = slots()
assert len(before) > 5
assert before.keys() <= after.keys(), set(before) ^ set(after)
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
""",
        str(tmp_path / "slots.hiw"),
    )


def test_what_cannot_be_started_says_so(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import os, sys
import hiwater._core as core
package = os.path.dirname(core.__file__)
def start(path):
    core.start(path, facts={}, internal_prefix=package)
try:
    start("/no/such/folder/capture.hiw")
except OSError as error:
    assert error.errno == 2, error
else:
    raise SystemExit("a capture was made in a folder that is not there")
assert not core.is_recording()
core.stop()
start(sys.argv[1])
assert core.is_recording()
try:
    start(sys.argv[1] + ".second")
except core.EngineFault as error:
    assert str(error)
else:
    raise SystemExit("two recordings at once")
assert core.is_recording()
core.stop(3)
core.stop(4)
assert not core.is_recording()
""",
        str(tmp_path / "first.hiw"),
    )


def test_start_and_stop_while_threads_allocate(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
import os, sys, threading, zlib
import hiwater._core as core
rounds = int(sys.argv[2])
package = os.path.dirname(core.__file__)
over = False
def busy():
    data = os.urandom(10_000)
    while not over:
        zlib.decompress(zlib.compress(data, 1))
        [str(n) for n in range(100)]
workers = [threading.Thread(target=busy) for _ in range(3)]
for worker in workers: worker.start()
for _ in range(rounds):
    core.start(sys.argv[1], facts={}, internal_prefix=package)
    [bytes(n) for n in range(0, 5_000, 50)]
    core.self_check()
    core.stop(0)
over = True
for worker in workers: worker.join()
""",
        str(tmp_path / "busy.hiw"),
        str(rounds(200)),
    )


def test_a_snapshot_is_a_whole_capture(tmp_path: Path) -> None:
    import naive_reader

    run(
        tmp_path,
        """
import os, sys
import hiwater._core as core
core.start(sys.argv[1], facts={"who": "me"}, internal_prefix=os.path.dirname(core.__file__))
first = bytearray(1_000_003)
core.snapshot(sys.argv[2])
second = bytearray(50_000_021)
core.stop(0)
""",
        str(tmp_path / "whole.hiw"),
        str(tmp_path / "snapshot.hiw"),
    )
    snapshot, whole = naive_reader.read(tmp_path / "snapshot.hiw"), naive_reader.read(tmp_path / "whole.hiw")
    for capture in (snapshot, whole):
        capture.check()
        assert capture.facts["who"] == "me"
    assert 1_000_004 <= snapshot.peak_bytes < 5_000_000
    assert whole.peak_bytes >= 51_000_000


BESIDE_THREADS = """
import os, sys, threading
import hiwater._core as core
def room():
    return int(next(line for line in open("/proc/self/status") if line.startswith("FDSize:")).split()[1])
leave = threading.Event()
others = [threading.Thread(target=leave.wait) for _ in range(4)]
for other in others: other.start()
before = room()
core.start(sys.argv[1], facts={}, internal_prefix=os.path.dirname(core.__file__))
ours = sorted(map(int, os.listdir("/proc/self/fd")))[4:]  # the others are the standard streams and the folder
enough = len(ours) > 5
core.stop(0)
leave.set()
print(before == room(), enough, all(39 < number < before for number in ours))
"""


def test_a_start_beside_threads_does_not_make_the_table_of_open_files_larger(tmp_path: Path) -> None:
    # Each thread would have to stop using the former table first, for which the kernel waits some 10 ms.
    assert run(tmp_path, BESIDE_THREADS, str(tmp_path / "run.hiw")).split() == ["True", "True", "True"]


def test_the_engine_adds_no_callback_to_the_end_of_the_program() -> None:
    code = "import atexit; before = atexit._ncallbacks(); import hiwater._core; print(atexit._ncallbacks() - before)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split() == [b"0"]
