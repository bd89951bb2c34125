"""Long runs: a recorded program allocates, starts threads and forks very often, and neither time nor memory for one
more may grow.

`make test-long` runs it: 10⁹ allocations, 10⁵ threads started by C, 10⁵ by Python, 10⁵ forks beside threads that
allocate. `WORDS='--share 100'` runs a hundredth of each. `make test-service-hour` runs a service that makes 100,000
allocations a second for an hour; `--share 6` is ten minutes of it. Each part is recorded in a process of its own, which
measures itself at ten moments. Exits 1 where something grows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import hiwater

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import compiled

PAGE = os.sysconf("SC_PAGE_SIZE")
ROOM = 4 << 20  # bytes by which memory and capture may grow: slices of time become more, and tables double
SEGMENT = 1 << 20  # bytes by which a small capture grows at a time
WARM_UP = (1, 1)  # chunks of parts that do not count: they bring what measuring itself needs into the tables
PARTS = 10  # of a run; the first and the last are compared
CHUNKS = 50  # of a part; the cost of one is measured, and their median is the part's


@dataclass(frozen=True)
class Work:
    """What a run does again and again, and the clock that its cost is measured by: of the process, or of the main
    thread.

    The kernel's work on behalf of a process takes up to twice as long on a busy machine. Work that is mostly the
    kernel's is therefore compared with the same work of a process that is not recorded, and the two take turns.
    """

    count: int
    prepare: Callable[[], Callable[[int], None]]
    clock: Callable[[], int] = time.process_time_ns
    is_compared: bool = False
    # its tables grow with these: memory and capture are compared with what they were, and with a process beside
    has_new_stacks: bool = False
    is_asked_for: bool = False  # run only where it is named

    def begin(self) -> Callable[[int], float]:
        """Prepare; return what does the work that many times and tells the processor time of one, in ns."""
        work = self.prepare()

        def timed(count: int) -> float:
            began = self.clock()
            work(count)
            return (self.clock() - began) / count

        return timed


@dataclass(frozen=True)
class Part:
    """A tenth of a run: what one item costs, and the state after it.

    The cost is processor time in ns, the least of the chunks, since other load only adds to it. For work that is
    compared it is the ratio to the process that is not recorded, the median of the chunks.
    """

    cost: float
    resident: int
    capture: int  # bytes that the file has on the disk
    nodes: int  # of the call tree
    accounts: int


def library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["HIWATER_TEST_LONG"])


def allocations() -> Callable[[int], None]:
    allocate = library().allocate_and_free
    return lambda count: allocate(ctypes.c_size_t(count))


def native_threads() -> Callable[[int], None]:
    start = library().start_threads

    def work(count: int) -> None:
        if start(ctypes.c_size_t(count)) != 0:
            raise AssertionError("a native thread could not be started")

    return work


def python_threads(name: str | None = "worker") -> Callable[[int], None]:
    def live_shortly() -> None:
        [bytearray(i) for i in range(0, 2000, 100)]

    def work(count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=live_shortly, name=name)
            thread.start()
            thread.join()

    return work


def numbered_threads() -> Callable[[int], None]:
    """Each has the name that Python gives it, with its number."""
    return python_threads(None)


def forks() -> Callable[[int], None]:
    """Two threads allocate all the time, one in C and one in Python."""
    allocate = library().allocate_and_free

    def allocate_for_ever() -> None:
        while True:
            allocate(ctypes.c_size_t(1000))
            [bytearray(i) for i in range(0, 2000, 100)]
            time.sleep(0.001)

    for _ in range(2):
        threading.Thread(target=allocate_for_ever, daemon=True).start()

    def work(count: int) -> None:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                bytearray(100_000)
                os._exit(7)
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status) != 7:
                raise AssertionError(f"a child ended with {status}")

    return work


def service() -> Callable[[int], None]:
    """A hundred requests a second, each with 1,000 allocations: half of them by C, half by Python, which holds its last
    10,000 blocks.

    A request in 3,000, one each 30 seconds, comes from code that is new.
    """
    allocate = library().allocate_and_free
    held = [b""] * 10_000
    requests = 0

    def answer() -> None:
        allocate(ctypes.c_size_t(500))
        for number in range(500):
            held[(requests * 500 + number) % len(held)] = bytes(100 + number)

    def work(count: int) -> None:
        nonlocal requests
        due = time.monotonic()
        for _ in range(count // 1000):
            requests += 1
            call: dict[str, Callable[[Callable[[], None]], None]] = {}
            if requests % 3000 == 1:
                exec(f"def handler_{requests}(answer): answer()", call)
                call[f"handler_{requests}"](answer)
            else:
                answer()
            due += 0.01
            time.sleep(max(0.0, due - time.monotonic()))

    return work


WORKS = {
    "allocations": Work(1_000_000_000, allocations),
    "native threads": Work(100_000, native_threads),
    "python threads": Work(100_000, python_threads),
    "numbered threads": Work(100_000, numbered_threads),
    "forks": Work(100_000, forks, time.thread_time_ns, is_compared=True),
    "service": Work(360_000_000, service, has_new_stacks=True, is_asked_for=True),
}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def environment() -> dict[str, str]:
    """That of both processes of a run."""
    return os.environ | {"HIWATER_TEST_LONG": str(compiled.library("long"))}


class Unrecorded:
    """A process that does the same work when it is told to, by the pipes to it. The recorded program did not start
    it, and so it is not recorded."""

    def __init__(self, asked: int, answers: int) -> None:
        self._asked, self._answers = os.fdopen(asked, "w"), os.fdopen(answers)

    def timed(self, count: int) -> float:
        """Have it work that many times; return the processor time of one, in ns."""
        print(count, file=self._asked, flush=True)
        return float(self._answers.readline())


@contextlib.contextmanager
def compared(name: str) -> Iterator[tuple[int, ...]]:
    """Start a process that is not recorded: the descriptors to ask it by, and of its answers."""
    command = [sys.executable, __file__, "--serve", name]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdin.fileno(), process.stdout.fileno()
        process.stdin.close()


def alone(name: str, count: int) -> None:
    """Do the work of `measure` in a process that is not recorded: prints a row for each part, the least cost and
    resident memory."""
    timed = WORKS[name].begin()
    for chunks in (*WARM_UP, *[CHUNKS] * PARTS):
        cost = min(timed(max(1, count // PARTS // CHUNKS)) for _ in range(chunks))
        print(json.dumps([cost, resident()]), flush=True)


@contextlib.contextmanager
def beside(name: str, count: int) -> Iterator[Callable[[], list[tuple[float, int]]]]:
    """Do the same work in a process that is not recorded; yields what waits for its end and returns its cost and
    resident memory of each part."""
    with subprocess.Popen(
        [sys.executable, __file__, "--alone", name, str(count)], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        yield lambda: [tuple(json.loads(row)) for row in process.communicate()[0].splitlines()[len(WARM_UP) :]]


def serve(name: str) -> None:
    """Work as often as each line of standard input says, and print what one took."""
    timed = WORKS[name].begin()
    for line in sys.stdin:
        print(timed(int(line)), flush=True)


def measure(name: str, count: int, capture: Path, pipes: Sequence[int]) -> None:
    """The program that is recorded: prints a row for each part. `pipes` are those to a process that is not, where
    the work is compared."""
    from hiwater import _core

    work = WORKS[name]
    unrecorded = Unrecorded(*pipes) if pipes else None
    timed = work.begin()
    each = max(1, count // PARTS // CHUNKS)

    def part(chunks: int) -> Part:
        if unrecorded is None:
            cost = min(timed(each) for _ in range(chunks))
        else:
            cost = statistics.median(timed(each) / unrecorded.timed(each) for _ in range(chunks))
        counters = _core.counters()
        return Part(cost, resident(), capture.stat().st_blocks * 512, counters["nodes"], counters["accounts"])

    for chunks in (*WARM_UP, *[CHUNKS] * PARTS):
        print(json.dumps(asdict(part(chunks))), flush=True)
    counters = _core.counters()
    _core.self_check()
    if counters["lost_events"]:
        raise AssertionError(f"{counters['lost_events']} events were lost")


def run(name: str, count: int, options: Sequence[str], folder: Path, *, is_compared: bool = False) -> list[Part]:
    """Record one run; return its parts. Comparing takes floats from wherever there are free ones, so a new stack may
    show up at any time."""
    capture = folder / "long.hiw"
    under = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(capture), *options]
    with compared(name) if is_compared else contextlib.nullcontext(()) as pipes:
        done = subprocess.run(
            [*under, __file__, "--measure", name, str(count), str(capture), *map(str, pipes)],
            env=environment(), pass_fds=pipes, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    index = folder / "long.hiw.d" / "index.jsonl"
    if is_compared and b'"started_by":"exec"' in index.read_bytes():
        raise AssertionError("the process to compare with was recorded, too")
    recorded = hiwater.open(capture)
    recorded.check()
    if recorded.lost_events or recorded.process.stop_reason is not None:
        raise AssertionError(
            f"recording stopped: {recorded.process.stop_reason}; {recorded.lost_events} events were lost"
        )
    return [Part(**json.loads(line)) for line in done.stdout.splitlines()[len(WARM_UP) :]]


def show(name: str, count: int, parts: Sequence[Part], unrecorded: Sequence[tuple[float, int]], most: float) -> bool:
    """Print what came of a run; return whether nothing grew. `unrecorded`: of each part, cost and resident memory of
    the same work beside it."""
    first, last = parts[0], parts[-1]
    done = count * (PARTS - 1) / PARTS  # between the two
    print(f"{name}: {count:,}")
    unit = "times that of a process that is not recorded" if WORKS[name].is_compared else "ns"
    print(
        f"  processor time for one     {first.cost:10,.3f}, then {last.cost:10,.3f} {unit}: "
        f"{last.cost / first.cost:.3f}"
    )
    for what in ("resident", "capture", "nodes", "accounts"):
        before, after = getattr(first, what), getattr(last, what)
        print(f"  {what:<26} {before:12,}, then {after:12,}: {(after - before) / done:.3f} for one", flush=True)
    grown = grown_beside(parts, unrecorded, most) if unrecorded else grown_alone(parts, most)
    if grown:
        print(f"  GREW: {', '.join(grown)}", flush=True)
    return not grown


def grown_beside(parts: Sequence[Part], unrecorded: Sequence[tuple[float, int]], most: float) -> list[str]:
    """What grew by more than `most` times, without what the program and the machine changed by in the process
    beside."""
    first, last = parts[0], parts[-1]
    (cost, memory), (last_cost, last_memory) = unrecorded[0], unrecorded[-1]
    print(
        f"  not recorded: processor time {cost:,.3f}, then {last_cost:,.3f} ns; resident {memory:,}, then "
        f"{last_memory:,}"
    )
    ratios = {
        "processor time": last.cost / first.cost / (last_cost / cost),
        "resident memory": (last.resident - max(0, last_memory - memory)) / first.resident,
    }
    print("  without what changed there: " + ", ".join(f"{what} {ratio:.3f}" for what, ratio in ratios.items()))
    has_capture_grown = last.capture > max(first.capture * most, first.capture + SEGMENT)
    return [what for what, ratio in ratios.items() if ratio > most] + ["capture"] * has_capture_grown


def grown_alone(parts: Sequence[Part], most: float) -> list[str]:
    """What grew by more than `most` times, or by more than tables and slices of time may."""
    first, last = parts[0], parts[-1]
    grown = ["processor time"] * (last.cost > first.cost * most)
    grown += [what for what in ("nodes", "accounts") if getattr(last, what) > getattr(first, what)]
    grown += ["resident memory"] * (last.resident - first.resident > ROOM)
    return grown + ["capture"] * (last.capture - first.capture > ROOM)


def main() -> int:
    """Make all runs that were asked for."""
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), [*map(int, sys.argv[5:])])
        return 0
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return 0
    if sys.argv[1:2] == ["--alone"]:
        alone(sys.argv[2], int(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description="Looks for what grows in long recordings.")
    parser.add_argument("works", nargs="*", help=f"{', '.join(WORKS)}: these alone")
    parser.add_argument("--share", type=int, default=1, help="divide the counts by this")
    parser.add_argument(
        "--most", type=float, default=1.02, help="most that one may cost at the end, measured in what it cost at first"
    )
    parser.add_argument("--sample", help="record sampled, as with `hiwater run --sample`")
    arguments = parser.parse_args()
    options = ["--sample", arguments.sample] if arguments.sample else []
    steady = True
    for name in arguments.works or [name for name, work in WORKS.items() if not work.is_asked_for]:
        with tempfile.TemporaryDirectory() as folder:
            count = WORKS[name].count // arguments.share
            with (
                beside(name, count)
                if WORKS[name].has_new_stacks
                else contextlib.nullcontext(list[tuple[float, int]]) as unrecorded
            ):
                parts = run(name, count, options, Path(folder), is_compared=WORKS[name].is_compared)
                steady &= show(name, count, parts, unrecorded(), arguments.most)
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
