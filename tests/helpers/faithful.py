"""Runs a program or a test suite plain and recorded, and says what became different and whether its capture is sound.

Both run with the same environment. `programs/sitecustomize.py`, which each interpreter of it loads, has the engine
check itself at the program's end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import hiwater
from places import TESTS

MADE_AT = 1_700_000_000  # of every file of a program: some tools tell it
TIMED_OUT = 124

# Options of `hiwater run`: every program and every suite is recorded in each of these modes.
MODES: dict[str, tuple[str, ...]] = {"exact": (), "sampled": ("--sample", "64KiB")}

# What differs from run to run: times (where there are minutes, some tools add "(0:01:02)"), addresses, dates.
TIMES = re.compile(r"\b\d+\.\d+ ?s(econds)?\b( \(\d+:\d\d:\d\d\))?|0x[0-9a-f]+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+")


def environment(folder: Path, sources: Path = TESTS) -> dict[str, str]:
    """The environment of a program, plain or recorded, that keeps its caches in `folder`; `sources` is the folder
    `tests` as the program sees it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONMALLOC", "HIWATER_"))}
    return kept | {
        "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(sources / "programs"),
        "HIWATER_TEST_CHECKED": str(folder / "checked"), "XDG_CACHE_HOME": str(folder / "cache"),
        "MPLCONFIGDIR": str(folder / "mpl"), "SOURCE_DATE_EPOCH": str(MADE_AT), "NO_COLOR": "1", "COLUMNS": "100",
        "TZ": "UTC",
    }  # fmt: skip


def recorder(folder: Path, options: Sequence[str]) -> list[str]:
    """What stands between the interpreter and the program when it is recorded into `folder`. Its children are not:
    suites look at allocators in interpreters that they start (`sys._debugmallocstats`)."""
    return ["-m", "hiwater", "run", "-q", "--no-children", "-o", str(folder / "capture.hiw"), *options]


def unsound(folder: Path, exit_code: int, *, ends_abruptly: bool = False) -> list[str]:
    """What is wrong with the capture in `folder` of a program that ended with `exit_code`; `ends_abruptly`: by
    os._exit(), so that nothing could be checked at its end."""
    wrong = []
    if not ends_abruptly:
        checked = folder / "checked"
        said = checked.read_text() if checked.exists() else "nothing"
        if said != "sound, 0 lost":
            wrong.append(f"the engine's check at the end said {said!r}")
    try:
        capture = hiwater.open(folder / "capture.hiw")
        capture.check()
    except (hiwater.HiwaterError, OSError) as error:
        return [*wrong, str(error)]
    process = capture.process
    if process.stop_reason is not None or capture.lost_events:
        wrong.append(f"recording stopped ({process.stop_reason}), {capture.lost_events} events were lost")
    if (process.ended, process.exit_code) != ("exit", exit_code):
        wrong.append(
            f"the capture says that the program ended with {process.ended} {process.exit_code}, not {exit_code}"
        )
    if capture.totals.allocations <= 0:
        wrong.append("the capture has no allocations")
    return wrong


@dataclass(frozen=True)
class Suite:
    """A test suite: `words` go to the interpreter, with `{junit}` in place of the file for results in JUnit's form."""

    name: str
    words: tuple[str, ...]
    seconds: float = 300  # longest time that a run may take
    endings: tuple[int, ...] = ()  # exit codes of a run in which the tests ran; any, where there are none


@dataclass(frozen=True)
class Outcome:
    """What became of one run of a suite: each test with its results, sorted (a test may run more than once)."""

    exit_code: int
    tests: Mapping[str, tuple[str, ...]]
    output: str
    cpu: float  # seconds of processor time
    unsound: Sequence[str] = ()


@dataclass
class Place:
    """Where a suite runs: an interpreter, which may live in the root of another system."""

    python: str
    # Makes the command that runs `words` there, in a folder.
    enter: Callable[[Path, list[str]], list[str]] = lambda _folder, words: words
    root: Path = Path("/")
    sources: Path = TESTS  # the folder `tests`, seen from there

    def outside(self, path: Path) -> Path:
        """A path of that system as this process sees it."""
        return self.root / path.relative_to("/")


def run_suite(suite: Suite, place: Place, options: Sequence[str] | None) -> Outcome:
    """Run a suite once, plain where `options` is None."""
    outside = Path(tempfile.mkdtemp(prefix="hw-", dir=place.outside(Path("/tmp"))))
    folder = Path("/", outside.relative_to(place.root))
    try:
        under = [] if options is None else recorder(folder, options)
        words = [word.replace("{junit}", str(folder / "junit.xml")) for word in suite.words]
        (outside / "t").mkdir()  # short: the path of a socket has 107 bytes
        surroundings = environment(folder, place.sources) | {"TMPDIR": str(folder / "t")}
        exit_code, output, cpu = run_group(
            place.enter(folder / "t", [place.python, *under, *words]), outside, surroundings, suite.seconds
        )
        wrong = [] if options is None or exit_code == TIMED_OUT else unsound(outside, exit_code)
        return Outcome(exit_code, read_junit(outside / "junit.xml"), output, cpu, wrong)
    finally:
        shutil.rmtree(outside, ignore_errors=True)


def run_group(
    command: Sequence[str], folder: Path, surroundings: Mapping[str, str], seconds: float
) -> tuple[int, str, float]:
    """Run a command in a session of its own, which is killed as a whole when time is up; return exit code, output,
    and processor seconds."""
    expired = threading.Event()
    with (folder / "output").open("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=folder / "t", env=dict(surroundings), stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        timer = threading.Timer(seconds, lambda: (expired.set(), kill_session(process.pid)))
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            timer.join()
            kill_session(process.pid)
    said = (folder / "output").read_text(errors="replace")
    return TIMED_OUT if expired.is_set() else process.returncode, said, usage.ru_utime + usage.ru_stime


def default_signals() -> None:
    """Started in the background (`&`, nohup), this process would ignore these, and all programs that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def kill_session(session: int) -> None:
    """Kill what is left of a session."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def read_junit(path: Path) -> dict[str, tuple[str, ...]]:
    """The results of each test in a file in JUnit's form; none where there is no whole file."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return {}
    results: dict[str, list[str]] = {}
    for case in cases:
        name = TIMES.sub("…", "::".join(filter(None, (case.get("classname"), case.get("name")))))
        found = sorted({child.tag for child in case} & {"failure", "error", "skipped"})
        results.setdefault(name, []).append("+".join(found) or "ok")
    return {name: tuple(sorted(each)) for name, each in results.items()}


Results = Mapping[str, tuple[str, ...]]


def results(outcome: Outcome) -> dict[str, tuple[str, ...]]:
    """The results of all tests, and the exit code as one more."""
    return {**outcome.tests, "exit code": (str(outcome.exit_code),)}


def differing(plain: Results, recorded: Results) -> list[str]:
    """The names of tests that did not have the same results; where one of the runs left no results, its exit code is
    all that is compared."""
    if len(plain) == 1 or len(recorded) == 1:
        return ["exit code"] if plain["exit code"] != recorded["exit code"] or len(plain) != len(recorded) else []
    return sorted(name for name in plain.keys() | recorded.keys() if plain.get(name) != recorded.get(name))


@dataclass
class Comparison:
    """What came of one suite."""

    suite: Suite
    plain: Outcome
    recorded: dict[str, Outcome] = field(default_factory=dict)  # by mode
    unsteady: set[str] = field(default_factory=set)  # tests that differ between plain runs
    once: list[str] = field(default_factory=list)  # a difference that no repetition showed
    wrong: list[str] = field(default_factory=list)  # differences, and what is wrong with captures


def compare(suite: Suite, place: Place, modes: Sequence[str] = tuple(MODES), repetitions: int = 3) -> Comparison:
    """Run a suite plain and recorded in each mode.

    Where a test has another result, both are repeated: a test that gave both results in plain runs is unsteady and
    does not count; a difference that no repetition of the recorded run shows is listed as seen once."""
    comparison = Comparison(suite, run_suite(suite, place, None))
    plain = results(comparison.plain)
    if suite.endings and comparison.plain.exit_code not in suite.endings:
        comparison.wrong.append(f"plain: the tests did not run: {comparison.plain.output[-2000:]}")
        return comparison
    for mode in modes:
        outcome = comparison.recorded[mode] = run_suite(suite, place, MODES[mode])
        comparison.wrong += [f"{mode}: {what}" for what in outcome.unsound]
        different = differing(plain, results(outcome))
        if different:
            _settle(comparison, place, mode, different, repetitions)
    return comparison


def _settle(comparison: Comparison, place: Place, mode: str, different: Sequence[str], repetitions: int) -> None:
    suite = comparison.suite
    plains = [results(comparison.plain)] + [results(run_suite(suite, place, None)) for _ in range(repetitions)]
    again = [results(run_suite(suite, place, MODES[mode])) for _ in range(repetitions)]
    first = results(comparison.recorded[mode])
    for name in different:
        seen = {plain.get(name) for plain in plains}
        if first.get(name) in seen or len(seen) > 1:
            comparison.unsteady.add(name)
            continue
        what = f"{mode}: {name}: {_words(plains[0].get(name))} plain, {_words(first.get(name))} recorded"
        repeated = sum(one.get(name) not in seen for one in again)
        if repeated:
            comparison.wrong.append(f"{what} (in {repeated + 1} of {repetitions + 1} runs)")
        else:
            comparison.once.append(f"{what} (in 1 of {repetitions + 1} runs)")


def _words(result: tuple[str, ...] | None) -> str:
    return "did not run" if result is None else ", ".join(result)
