"""Stress: a recorded program does everything at once that a program may do, and the engine checks itself all the while.

`make stress` runs it; `python tests/stress/stress.py [SECONDS]` does too. Exits 1 at the first thing that is wrong. Two
programs take half the time each: one runs under `hiwater run`; the other starts and stops recordings while it works.
"""

import _ctypes
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
sys.path.insert(0, str(HELPERS))
SECONDS = 30.0


class Failures(list[str]):
    """What went wrong in any of the threads."""

    def watch(self, work: Callable[[], None], until: float) -> None:
        try:
            while time.monotonic() < until and not self:
                work()
        except BaseException as error:
            self.append(f"{getattr(work, '__name__', work)}: {type(error).__name__}: {error}")
            raise


def churn_objects() -> None:
    rows = [{"number": i, "text": str(i) * (i % 7), "list": list(range(i % 50))} for i in range(2000)]
    rows.sort(key=lambda row: row["text"])
    del rows[::2]
    bytearray(3_000_000).extend(b"more" * 1000)


def fork_children() -> None:
    child = os.fork()
    if child == 0:
        held = [bytearray(1000) for _ in range(200)]
        os._exit(len(held) % 7)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 200 % 7:
        raise AssertionError(f"a child of a fork ended with {status}")
    done = subprocess.run([sys.executable, "-S", "-c", "pass"], check=False)
    if done.returncode != 0:
        raise AssertionError(f"a child process ended with {done.returncode}")


def start_python_threads() -> None:
    threads = [threading.Thread(target=lambda: [bytearray(i) for i in range(300)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def start_native_threads(library: ctypes.CDLL) -> None:
    if library.short_threads(ctypes.c_size_t(8)) != 0:
        raise AssertionError("a native thread could not be started")


def turn_rings(library: ctypes.CDLL) -> None:
    """Native threads that allocate and free at once, and then each other's: they book apart while all the rest goes
    on."""
    if library.turn_rings(ctypes.c_size_t(3), ctypes.c_size_t(20_000)) != 0:
        raise AssertionError("a native thread could not be started")
    library.give_rings_back()


def cut_mappings(library: ctypes.CDLL) -> None:
    for at in range(100):
        if library.cut_mapping(ctypes.c_size_t(at)) != 0:
            raise AssertionError("a mapping could not be made or moved")


def load_and_unload(source: Path, folder: Path) -> None:
    """A library under a name of its own is loaded, allocates, and is gone: its call slots must be gone too."""
    copy = folder / f"{threading.get_ident()}-{time.monotonic_ns()}.so"
    shutil.copy(source, copy)
    library = ctypes.CDLL(str(copy))
    library.take_malloc.restype = ctypes.c_void_p
    block = library.take_malloc(ctypes.c_size_t(12_345))
    library.give_back(ctypes.c_void_p(block))
    _ctypes.dlclose(library._handle)
    copy.unlink()


def start_odd_threads(library: ctypes.CDLL) -> None:
    """Threads left to themselves, ended by pthread_exit, and cancelled."""
    if library.odd_threads() != 0:
        raise AssertionError("a native thread could not be started or cancelled")


def fork_natively(library: ctypes.CDLL) -> None:
    """Children that go on allocating without a word to Python, and one of vfork()."""
    if library.fork_and_go_on() != 0:
        raise AssertionError("a native child did not end well")


def load_and_say_farewell(source: Path, folder: Path) -> None:
    """A C++ library whose thread-local and static destructors allocate, the latter as it is unloaded."""
    copy = folder / f"farewell-{threading.get_ident()}-{time.monotonic_ns()}.so"
    shutil.copy(source, copy)
    library = ctypes.CDLL(str(copy))
    if library.say_farewell(4) != 0:
        raise AssertionError("the farewell was not said")
    _ctypes.dlclose(library._handle)
    copy.unlink()


def run_greenlike_frames() -> None:
    """Generators and coroutines that are left in the middle, resumed in other threads, and closed by the collector."""
    import asyncio

    def numbers(count: int) -> Iterator[list[int]]:
        try:
            for n in range(count):
                yield [n] * n
        finally:
            bytearray(count)

    halves = [numbers(n) for n in range(20)]
    for half in halves:
        next(half, None)
    thread = threading.Thread(target=lambda: [next(half, None) for half in halves])
    thread.start()
    thread.join()

    async def wait(n: int) -> bytes:
        await asyncio.sleep(0)
        return bytes(n)

    async def all_of_them() -> None:
        await asyncio.gather(*(wait(n) for n in range(50)))

    asyncio.run(all_of_them())


def run_code_that_dies() -> None:
    """Functions made, run and dropped: others soon stand at the same addresses."""
    for size in range(30):
        names: dict[str, object] = {}
        lines = "\n" * (size * 7)
        exec(f"{lines}def made(n):\n    return [bytearray(n) for _ in range({size})]", names)
        names["made"](100 + size)  # type: ignore[operator]


def handle_signals() -> None:
    signal.signal(signal.SIGALRM, lambda *_: [bytearray(i) for i in range(50)])
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)


def start_work(failures: Failures, until: float, folder: Path) -> list[threading.Thread]:
    libraries = Path(os.environ["HIWATER_TEST_LIBRARIES"])
    churn = ctypes.CDLL(str(libraries / "churn.so"))
    rings = ctypes.CDLL(str(libraries / "threads.so"))
    heap = libraries / "heap_lazy.so"
    works: list[Callable[[], None]] = [
        churn_objects,
        fork_children,
        start_python_threads,
        run_code_that_dies,
        lambda: start_native_threads(churn),
        lambda: turn_rings(rings),
        lambda: cut_mappings(churn),
        lambda: load_and_unload(heap, folder),
        lambda: start_odd_threads(churn),
        lambda: fork_natively(churn),
        lambda: load_and_say_farewell(libraries / "farewell.so", folder),
        run_greenlike_frames,
    ]
    threads = [threading.Thread(target=failures.watch, args=(work, until)) for work in works]
    for thread in threads:
        thread.start()
    return threads


def recorded(seconds: float) -> int:
    """The program that `hiwater run` records."""
    from hiwater import _core

    failures = Failures()
    until = time.monotonic() + seconds
    checks = 0
    with tempfile.TemporaryDirectory() as folder:
        handle_signals()
        threads = start_work(failures, until, Path(folder))
        while time.monotonic() < until and not failures:
            time.sleep(0.2)
            _core.self_check()
            checks += 1
        for thread in threads:
            thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
    _core.self_check()
    if _core.counters()["lost_events"] != 0:
        failures.append("events were lost")
    counters = _core.counters()
    print(
        f"recorded: {checks} checks, {counters['total_blocks']:,} blocks, {counters['shared_events']:,} "
        "events by threads at once",
        flush=True,
    )
    return conclude(failures)


def restarting(seconds: float) -> int:
    """The program that starts and stops recordings while its threads work."""
    import hiwater
    from hiwater import _core

    failures = Failures()
    until = time.monotonic() + seconds
    recordings = 0
    with tempfile.TemporaryDirectory() as folder:
        handle_signals()
        threads = start_work(failures, until, Path(folder))
        while time.monotonic() < until and not failures:
            path = Path(folder, f"{recordings}.hiw")
            with hiwater.record(path):
                time.sleep(0.002 * (recordings % 20))
                _core.self_check()
            check_capture(path, failures)
            path.unlink()
            recordings += 1
        for thread in threads:
            thread.join()
        signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"restarting: {recordings} recordings", flush=True)
    return conclude(failures)


def check_capture(path: Path, failures: Failures) -> None:
    import naive_reader

    capture = naive_reader.read(path)
    capture.check()
    if capture.header["state"] != 2 or capture.header["lost_events"] != 0:
        failures.append(f"{path.name}: state {capture.header['state']}, {capture.header['lost_events']} events lost")


def conclude(failures: Failures) -> int:
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def orchestrate(seconds: float) -> int:
    import compiled

    for name in ("churn", "farewell", "heap_lazy", "threads"):
        compiled.library(name)
    environment = os.environ | {"HIWATER_TEST_LIBRARIES": str(compiled.libraries()), "PYTHONPATH": str(HELPERS)}
    failures = Failures()
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "stress.hiw")
        words = [__file__, "--role"]
        commands = {
            "recorded": [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(capture), *words, "recorded"],
            "restarting": [sys.executable, *words, "restarting"],
        }
        for role, command in commands.items():
            done = subprocess.run([*command, str(seconds / 2)], env=environment, check=False, timeout=seconds * 10 + 60)
            if done.returncode != 0:
                failures.append(f"the {role} program ended with {done.returncode}")
        if not failures:
            check_capture(capture, failures)
    return conclude(failures)


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--role"]:
        return {"recorded": recorded, "restarting": restarting}[words[1]](float(words[2]))
    return orchestrate(float(words[0]) if words else SECONDS)


if __name__ == "__main__":
    sys.exit(main())
