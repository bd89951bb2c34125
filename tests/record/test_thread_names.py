"""The name of a thread is the last one it had: Python's if the program gave it one there, otherwise the system's."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from recording import Recorded, needs_engine, record

pytestmark = needs_engine

# What the programs of this file share. `Told` is a Python thread that does what it is told, one thing after another.
PRELUDE = """
import ctypes, os, queue, sys, threading
import signatures
heap = signatures.load("heap")
workers = ctypes.CDLL(os.path.join(os.environ["HIWATER_TEST_LIBRARIES"], "workers.so"))
_word, _text = ctypes.c_size_t, ctypes.c_char_p
for _name, _types in {
    "start_worker": [_word, _text], "worker_allocates": [_word, _word], "rename_worker": [_word, _text],
    "worker_renames_itself": [_word, _text, _word], "end_worker": [_word], "rename_thread": [_word, _text],
    "rename_me": [_text], "rename_in_vfork": [_text],
}.items():
    getattr(workers, _name).argtypes = _types

def load(size):
    heap.take_malloc(size)  # @load

class Told:
    def __init__(self, name=None):
        self.work, self.done = queue.SimpleQueue(), queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)
        self.thread.start()
    def run(self):
        while (work := self.work.get()) is not None:
            self.done.put(work())
    def __call__(self, work):
        self.work.put(work)
        return self.done.get()
    def load(self, size):
        self(lambda: load(size))
    def end(self):
        self.work.put(None)
        self.thread.join()

def rename_itself(name):
    threading.current_thread().name = name

def native(number, size):
    assert workers.worker_allocates(number, size) == 0
def start_native(number, name=None):
    assert workers.start_worker(number, name) == 0  # @start
"""


def named(folder: Path, text: str, *, sample_bytes: int = 0) -> Recorded:
    """Record a program after PRELUDE."""
    lines = [line.removeprefix("        ") for line in text.splitlines()]
    return record(folder, PRELUDE + "\n".join(lines) + "\n", libraries=["heap", "workers"], sample_bytes=sample_bytes)


def threads(recorded: Recorded) -> dict[str, int]:
    """Bytes of the line `load`, by name of thread."""
    held: dict[str, int] = {}
    for stack in recorded.stacks("load", "native", "end"):
        held[stack.thread] = held.get(stack.thread, 0) + stack.bytes
    return held


def natives(recorded: Recorded) -> dict[str, int]:
    """Bytes of native threads, by the frame that stands for the thread."""
    held: dict[str, int] = {}
    for stack in recorded.capture.stacks("end"):
        if stack.kind == "native" and stack.frames and stack.frames[-1].kind == "native_thread":
            name = stack.frames[-1].function
            held[name] = held.get(name, 0) + stack.bytes
    return held


NAMES = {
    "a python thread that another renames": (
        """
        def main():
            first, second = Told(), Told("second")
            first.load(1_000_003)
            second.load(2_000_003)
            first.thread.name = "reader"
            second.thread.setName("writer")
            first.load(1_000_033)
            second.end()
            first.end()
        """,
        {"reader": 2_000_036, "writer": 2_000_003},
    ),
    "a name given before the thread starts": (
        """
        from concurrent.futures import ThreadPoolExecutor
        def main():
            thread = threading.Thread(target=load, args=(1_000_003,))
            thread.name = "early"
            thread.start()
            thread.join()
            with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
                pool.submit(load, 1_000_033).result()
        """,
        {"early": 1_000_003, "pool_0": 1_000_033},
    ),
    "a name of the systems counts where python has only a number": (
        """
        def main():
            numbered, given, by_another = Told(), Told("given"), Told()
            for told, size in ((numbered, 1_000_003), (given, 1_000_033), (by_another, 1_000_037)):
                told.load(size)
            for name in (b"first", b"second"):
                numbered(lambda: workers.rename_me(name))
                given(lambda: workers.rename_me(name))
            assert workers.rename_thread(by_another.thread.ident, b"third") == 0
            for told in (numbered, given, by_another):
                told.load(10_000_000)
                told.end()
        """,
        {"second": 11_000_003, "given": 11_000_033, "third": 11_000_037},
    ),
    "the programs own name comes after the systems": (
        """
        def main():
            told = Told()
            told(lambda: workers.rename_me(b"system"))
            told.load(1_000_003)
            told.thread.name = "python"
            told(lambda: workers.rename_me(b"system-again"))
            told.load(1_000_033)
            told.end()
        """,
        {"python": 2_000_036},
    ),
    "a native thread that another renames": (
        """
        def main():
            start_native(0)
            native(0, 1_000_003)
            assert workers.rename_worker(0, b"decoder") == 0
            native(0, 1_000_033)
        """,
        {"[thread decoder]": 2_000_036},
    ),
    # The maker may come before the first instruction of the thread, or after.
    "native threads that are named as soon as they are made": (
        """
        def main():
            for number in range(40):
                start_native(number, b"io-%d" % number)
                native(number, 10_000 + number)
        """,
        {f"[thread io-{number}]": 10_000 + number for number in range(40)},
    ),
    # While they have no names they are one to the capture: what they allocated then stays so.
    "native threads that one line started": (
        """
        def main():
            for number in (0, 1):
                start_native(number)
                native(number, 1_000_003)
            assert workers.worker_renames_itself(0, b"first", 1) == 0
            assert workers.rename_worker(1, b"second") == 0
            native(0, 1_000_033)
            native(1, 1_000_037)
        """,
        {"[thread]": 2_000_006, "[thread first]": 1_000_033, "[thread second]": 1_000_037},
    ),
    "a thread that ended keeps its name when its id is used again": (
        """
        def main():
            first = Told("first")
            first.load(1_000_003)
            ident = first.thread.ident
            first.end()
            for number in range(1_000):  # the thread itself may outlive its join for a moment
                again = Told("".join(chr(97 + int(digit)) for digit in str(number)))  # no series
                if again.thread.ident == ident:
                    break
                again.end()
            assert again.thread.ident == ident
            again.load(1_000_033)
            again.thread.name = "again"
            first.thread.name = "too late"
            again.end()
            start_native(0)
            native(0, 2_000_003)
            assert workers.worker_renames_itself(0, b"native", 1) == 0
            assert workers.end_worker(0) == 0
            start_native(0)
            native(0, 2_000_033)
        """,
        {"first": 1_000_003, "again": 1_000_033} | {"[thread native]": 2_000_003, "[thread]": 2_000_033},
    ),
    "threads that are older than the recording": (
        """
        def before():
            global older, numbered, renamed, ended
            older, numbered, renamed, ended = Told("older"), Told(), Told("not-yet"), Told("not-yet-either")
        def main():
            renamed.thread.name = "renamed"
            for told, size in ((older, 1_000_003), (numbered, 1_000_033), (renamed, 1_000_037), (ended, 1_000_039)):
                told.load(size)
            ended.thread.name = "ended"
            ended.end()
        """,
        {
            "older": 1_000_003,
            "Thread-1 (run)": 1_000_033,
            "renamed": 1_000_037,
            "ended": 1_000_039,
        },
    ),
    "a forked child renames nothing of its parents": (
        """
        def main():
            load(1_000_003)
            told = Told("parent")
            told.load(1_000_033)
            child = os.fork()
            if child == 0:
                threading.current_thread().name = "child"
                told.thread.name = "child"
                workers.rename_me(b"child")
                workers.rename_thread(threading.get_ident(), b"child")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert workers.rename_in_vfork(b"child") == 0
        """,
        {"MainThread": 1_000_003, "parent": 1_000_033},
    ),
    "a name is cut between characters": (
        """
        def main():
            told = Told("ä" * 100)
            told.load(1_000_003)
            told.thread.name = "-" + "ä" * 100
            told.load(1_000_033)
        """,
        {"-" + "ä" * 31: 2_000_036},
    ),
    "an empty name says nothing": (
        """
        def main():
            told = Told("named")
            told.load(1_000_003)
            told.thread.name = ""
            told.end()
        """,
        {"named": 1_000_003},
    ),
    # What it allocated stays under the name that it shared: up to its new name in the system, or up to a snapshot.
    "a thread that shares a node is renamed": (
        """
        import hiwater._core as core
        def main():
            for _ in range(30):
                Told().end()
            by_system, by_python, other = Told(), Told(), Told("other")
            for told in (by_system, by_python, other):
                told.load(1_000_003)
            by_system(lambda: workers.rename_me(b"loader"))
            by_python.thread.name = "parser"
            for told in (by_system, by_python, other):
                told.load(1_000_033)
            core.snapshot(sys.argv[0] + ".hiw")
            for told in (by_system, by_python, other):
                told.load(1_000_037)
                told.end()
        """,
        {
            "Thread (run)": 3_000_039,
            "loader": 2_000_070,
            "parser": 1_000_037,
            "other": 3_000_073,
        },
    ),
    # The last name is read at the thread's end; until then, and no longer, the recorder keeps the thread's object.
    "threads that nobody refers to": (
        """
        import weakref
        def work(name, size):
            load(size)
            rename_itself(name)
        def main():
            for name in ("first", "second", "third"):
                thread = threading.Thread(target=work, args=(name, 1_000_003))
                reference = weakref.ref(thread)
                thread.start()
                thread.join()
                del thread
                assert reference() is None
            ended = [threading.Event() for _ in range(3)]
            for event in ended:
                thread = threading.Thread(target=work, args=("no reference", 1_000_003))
                weakref.finalize(thread, event.set)
                thread.start()
                del thread
                assert event.wait(60)
        """,
        {"first": 1_000_003, "second": 1_000_003, "third": 1_000_003, "no reference": 3_000_009},
    ),
}
"""Programs, and what their threads hold at the end by the names that they have then."""


@pytest.mark.parametrize(("program", "held"), NAMES.values(), ids=list(NAMES))
def test_the_name_of_a_thread_is(tmp_path: Path, program: str, held: dict[str, int]) -> None:
    recorded = named(tmp_path, program)
    assert threads(recorded) | natives(recorded) == held


@pytest.mark.parametrize("sample_bytes", [0, 4096])
def test_a_python_thread_that_renames_itself(tmp_path: Path, sample_bytes: int) -> None:
    recorded = named(
        tmp_path,
        """
        def main():
            told = Told()
            told.load(1_000_003)
            told(lambda: rename_itself("loader"))
            told.load(1_000_033)
            told(lambda: rename_itself("parser"))
            told.load(1_000_037)
            told.end()
        """,
        sample_bytes=sample_bytes,
    )
    assert threads(recorded) == {"parser": 3_000_073}
    assert not {stack.thread for stack in recorded.capture.stacks("end")} & {"loader", "Thread-1 (run)"}


@pytest.mark.parametrize(
    "rename",
    [
        "threading.current_thread().name = 'conductor'",
        "threading.main_thread()._name = 'conductor'",
        "workers.rename_me(b'conductor')",
        "workers.rename_thread(threading.get_ident(), b'conductor')",
    ],
)
def test_the_main_thread(tmp_path: Path, rename: str) -> None:
    recorded = named(
        tmp_path,
        f"""
        def main():
            load(1_000_003)
            {rename}
            load(1_000_033)
        """,
    )
    assert threads(recorded) == {"conductor": 2_000_036}


@pytest.mark.parametrize("by_prctl", [0, 1])
def test_a_native_thread_that_renames_itself(tmp_path: Path, by_prctl: int) -> None:
    recorded = named(
        tmp_path,
        f"""
        def main():
            start_native(0)
            native(0, 1_000_003)
            for name in (b"first", b"second"):
                assert workers.worker_renames_itself(0, name, {by_prctl}) == 0
                native(0, 1_000_033)
            assert workers.end_worker(0) == 0
        """,
    )
    assert natives(recorded) == {"[thread second]": 3_000_069}


def test_a_second_recording_knows_what_happened_in_between(tmp_path: Path) -> None:
    recorded = named(
        tmp_path,
        f"""
        import hiwater._core as core
        def before():
            global told
            told = Told("before")
            core.start({str(tmp_path / "first.hiw")!r}, facts={{}}, internal_prefix="/nowhere")
            told.load(1_000_003)
            core.stop(0)
            told.thread.name = "between"
        def main():
            told.load(1_000_033)
        """,
    )
    assert threads(recorded) == {"between": 1_000_033}


def test_many_names(tmp_path: Path) -> None:
    """1,000 names and as many renames are followed; then threads share one name, and those that live at the end have
    their last."""
    recorded = named(
        tmp_path,
        """
        def main():
            told = Told()
            told.load(1_000_003)
            told(lambda: [workers.rename_me(b"request-%d" % number) for number in range(1_200)])
            for number in range(1_200):
                thread = threading.Thread(target=load, args=(100,), name=f"worker-{number}-of-{number}x")
                thread.start()
                thread.join()
            for _ in range(10):  # a name that is known
                thread = threading.Thread(target=load, args=(2_000_003,), name="worker-0-of-0x")
                thread.start()
                thread.join()
        """,
    )
    held = threads(recorded)
    assert held["request-1199"] == 1_000_003
    assert held["worker-0-of-0x"] == 20_000_130
    assert len(held) <= 1_002
    assert sum(held.values()) == 1_000_003 + 1_200 * 100 + 20_000_030
    assert held["[other threads]"] == 100 * (1_200 - (len(held) - 2))


@pytest.mark.parametrize(
    ("names", "common"),
    [
        ("[None] * 5_000", "Thread (load)"),
        ("[f'ThreadPoolExecutor-{n}_0' for n in range(500)]", "ThreadPoolExecutor"),
        ("[f'10.0.{n % 9}.{n}:{50_000 + n}/in' for n in range(500)]", "/in"),
    ],
)
def test_short_threads_whose_names_differ_in_numbers_share_a_node(tmp_path: Path, names: str, common: str) -> None:
    """A few have nodes of their own. The rest add none, however many requests a server answers in a thread each."""
    recorded = named(
        tmp_path,
        f"""
        def main():
            for name in {names}:
                thread = threading.Thread(target=load, args=(101,), name=name)
                thread.start()
                thread.join()
        """,
    )
    held = threads(recorded)
    count = len(eval(names))
    assert sum(held.values()) == 101 * count
    assert 2 <= len(held) <= 12 and held[common] >= 101 * (count - 11), held
    assert len(recorded.capture.tables["nodes"]) < 2_000


def test_short_threads_that_name_themselves_share_a_node(tmp_path: Path) -> None:
    """That of the names they start with: their own are read when they end."""
    recorded = named(
        tmp_path,
        """
        def job(number):
            rename_itself(f"job {number}")
            load(101)
        def main():
            for number in range(500):
                thread = threading.Thread(target=job, args=(number,))
                thread.start()
                thread.join()
        """,
    )
    held = threads(recorded)
    assert sum(held.values()) == 101 * 500
    assert 2 <= len(held) <= 24 and held["Thread (job)"] >= 101 * (500 - 22), held
    assert len(recorded.capture.tables["nodes"]) < 2_000


@pytest.mark.parametrize(
    "start", ['start_native(0, b"io-%d" % n)', 'start_native(0); workers.worker_renames_itself(0, b"io-%d" % n, n % 2)']
)
def test_short_native_threads_share_a_node_too(tmp_path: Path, start: str) -> None:
    recorded = named(
        tmp_path,
        f"""
        def main():
            for n in range(60):
                {start}
                native(0, 10_000)
                assert workers.end_worker(0) == 0
        """,
    )
    held = natives(recorded)
    assert sum(held.values()) == 600_000
    assert len(held) <= 12 and held["[thread io]"] >= 480_000, held


def test_native_threads_that_take_names_of_others_share_theirs(tmp_path: Path) -> None:
    recorded = named(
        tmp_path,
        """
        def main():
            for n in range(60):
                start_native(0)
                workers.worker_renames_itself(0, b"io-%d" % (n % 12), n % 2)
                native(0, 10_000)
                assert workers.end_worker(0) == 0
        """,
    )
    held = natives(recorded)
    assert sum(held.values()) == 600_000
    assert {name: held[name] for name in held if "-" in name} == {f"[thread io-{n}]": 50_000 for n in range(8)}


def test_threads_of_a_pool_have_names_of_their_own(tmp_path: Path) -> None:
    """None has ended before the last one starts. The functions' own numbers keep threads apart."""
    recorded = named(
        tmp_path,
        """
        def load_1(size): load(size)
        def load_2(size): load(size)
        def main():
            workers = [Told() for _ in range(20)]
            for told in workers:
                told.load(1_003)
            for told in workers:
                told.end()
            for _ in range(40):
                for function in (load_1, load_2):
                    thread = threading.Thread(target=function, args=(101,))
                    thread.start()
                    thread.join()
        """,
    )
    held = threads(recorded)
    assert {name: held[name] for name in held if "(run)" in name} == {f"Thread-{n} (run)": 1_003 for n in range(1, 21)}
    assert held["Thread (load_1)"] > 2_000 and held["Thread (load_2)"] > 2_000


PROGRAM = """
import sys, threading
import hiwater
kept = []

def load(size):
    kept.append(bytearray(size))

def start(size, name):
    def run():
        load(size)
        threading.current_thread().name = name
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

start(30_000_000, "loader")
with hiwater.record("window.hiw") as window:
    start(20_000_000, "loader")
    start(10_000_000, "parser")
    window.snapshot("snapshot.hiw")
threading.current_thread().name = "conductor"
load(5_000_000)
"""


def run_program(folder: Path) -> Path:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    run_hiwater("run", "-q", "-o", "run.hiw", program.name, folder=folder, check=True)
    return folder / "run.hiw"


def report(capture: Path, *words: str) -> str:
    return run_hiwater("report", capture, "--at", "end", *words, check=True).stdout


def test_reports_agree(tmp_path: Path) -> None:
    """Two threads that ended up with one name are one thread to every report."""
    capture = run_program(tmp_path)
    wanted = {"loader": 50_000_000, "parser": 10_000_000, "conductor": 5_000_000}

    def large(rows: Iterable[tuple[str, int]]) -> dict[str, int]:
        held: dict[str, int] = {}
        for name, count in rows:
            held[name] = held.get(name, 0) + count
        return {name: count // 1_000_000 * 1_000_000 for name, count in held.items() if count >= 1_000_000}

    table = csv.DictReader(report(capture, "--by", "thread", "--format", "csv").splitlines())
    rows = [(row["function"], int(row["self_bytes"])) for row in table]
    assert len({name for name, _ in rows}) == len(rows)
    assert large(rows) == wanted
    stacks = csv.DictReader(report(capture, "--format", "csv").splitlines())
    assert large((row["thread"], int(row["held_bytes"])) for row in stacks) == wanted
    told = json.loads(report(capture, "--format", "json"))
    assert large((row["thread"], row["bytes"]) for row in told["stacks"]) == wanted
    assert not {row["thread"] for row in told["stacks"]} & {"MainThread", "Thread-1 (run)"}
    opened = hiwater.open(capture)
    assert large((stack.thread, stack.bytes) for stack in opened.end.stacks) == wanted
    names, _ = opened.tables.paths.threads(opened.tables.account_node)
    assert len(set(names)) == len(names)
    text = report(capture, "--by", "thread", "--format", "tree")
    assert text.count("loader") == 1
    assert "MainThread" not in text


def test_windows_and_snapshots_have_the_names_of_their_time(tmp_path: Path) -> None:
    run_program(tmp_path)
    for name in ("window.hiw", "snapshot.hiw"):
        names = {stack.thread for stack in hiwater.open(tmp_path / name).end.stacks if stack.bytes > 1_000_000}
        assert names == {"loader", "parser"}, name
