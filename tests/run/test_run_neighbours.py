"""Tools that live in the recorded program — tracers, debuggers, samplers of the heap, hooks, limits — find what they
find without hiwater."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import compiled
import hiwater
from recording import child_environment, needs_engine, record

pytestmark = needs_engine

ADDRESS = re.compile(r"0x[0-9a-f]+")
# A dump of all frames goes down to the interpreter's entry: hiwater's few, and runpy's below them, are ours to explain.
OUR_FRAMES = re.compile(r'File "([^"]*/hiwater/[^"]*|<frozen runpy>)"')

WORK = """
import json, threading

class Thing:
    def __init__(self, size):
        self.rows = [self.row(n) for n in range(size)]

    def row(self, n):
        if n % 3 == 0:
            return {"n": n, "text": "x" * n}
        elif n < 0:
            return None
        return [n] * n

def generate(count):
    for n in range(count):
        try:
            yield json.dumps(n / (n - 5))
        except ZeroDivisionError:
            yield "none"

def main():
    things = [Thing(n) for n in range(30)]
    text = list(generate(20))
    worker = threading.Thread(target=Thing, args=(20,))
    worker.start()
    worker.join()
    return len(things), text[4:7], sorted(map(len, text))[-1]

print(main())
"""


class Both:
    """Runs a program alone and under `hiwater run` in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.capture = folder / "capture.hiw"

    def run(
        self, *words: str, under: bool, feed: str = "", options: tuple[str, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        ours = ["-m", "hiwater", "run", "-q", "-o", str(self.capture)] if under else []
        return subprocess.run(
            [sys.executable, *options, *ours, *words],
            cwd=self.folder, input=feed, capture_output=True, text=True, timeout=300, check=False,
            env=child_environment({"PYTHONHASHSEED": "0"} | environment),
        )  # fmt: skip

    def same(
        self, text: str, *words: str, exit_code: int = 0, sound: bool = True, **details: Any
    ) -> subprocess.CompletedProcess[str]:
        """Both must say the same and end alike; returns how the recorded one ended."""
        (self.folder / "program.py").write_text(textwrap.dedent(text))
        alone, recorded = (self.run(*(words or ("program.py",)), under=under, **details) for under in (False, True))
        assert alone.returncode == exit_code, alone.stderr
        assert said(recorded.stdout) == said(alone.stdout)
        if sound:
            assert said(recorded.stderr) == said(alone.stderr)
        assert recorded.returncode == alone.returncode
        capture = hiwater.open(self.capture)
        capture.check()
        assert not sound or (capture.lost_events, capture.process.stop_reason) == (0, None)
        return recorded


def said(text: str) -> list[str]:
    return [
        ADDRESS.sub("", line)
        for line in text.splitlines()
        # From 3.14 on the stack in C is there, too, and in it what runs the program.
        if not OUR_FRAMES.search(line) and not line.startswith(("Extension modules:", "  Binary file "))
    ]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


# Coverage, debuggers, profilers


@pytest.mark.parametrize("core", ["ctrace", "pytrace", "sysmon"])
@pytest.mark.parametrize("branch", [(), ("--branch",)], ids=["statements", "branches"])
def test_coverage_finds_the_same(both: Both, core: str, branch: tuple[str, ...]) -> None:
    coverage = pytest.importorskip("coverage")
    if core == "sysmon" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring came with 3.12")
    (both.folder / "program.py").write_text(WORK)
    found = []
    for under in (False, True):
        done = both.run(
            "-m", "coverage", "run", *branch, "--data-file=data", "program.py", under=under, COVERAGE_CORE=core
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("(30, ['")
        data = coverage.CoverageData(str(both.folder / "data"))
        data.read()
        (measured,) = data.measured_files()
        found.append([sorted(seen) for seen in (data.lines(measured), data.arcs(measured) or [])])
    lines, arcs = found[0]
    assert len(lines) > 20 and bool(arcs) is bool(branch)
    assert found[1] == found[0]
    hiwater.open(both.capture).check()


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (("-m", "pdb", "program.py"),
            "b 8\nc\np n\nw\nn\ns\ns\nargs\nc\ntbreak generate\ncl 1\nc\nw\nr\nunt\nretval\nc\nq\n"),
        (("-m", "pdb", "-c", "b Thing.row, n == 4", "-c", "c", "program.py"),
            "p self, n\nu\nl\nd\np n\ndisplay n\nc\nc\nq\n"),
    ],
)  # fmt: skip
def test_pdb_stops_where_it_stops_alone(both: Both, words: tuple[str, ...], commands: str) -> None:
    done = both.same(WORK, *words, feed=commands)
    assert "(Pdb)" in done.stdout
    assert "-> " in done.stdout


def test_a_breakpoint_in_the_program(both: Both) -> None:
    text = WORK.replace("    things =", "    breakpoint()\n    things =")
    done = both.same(text, feed="n\nn\np len(things)\ns\nr\nb Thing.row\nc\np n\ncl 1\nc\n")
    assert "-> things = " in done.stdout


EVENTS = """
    import collections, sys, threading
    events = []
    def watch(frame, event, argument):
        name = argument.__name__ if event.startswith("c_") else frame.f_code.co_name
        if frame.f_code.co_filename == __file__:  # what threading does depends on who is first
            events.append((event, name, frame.f_lineno))
        return watch
    def {name}_work():
        rows = [sorted([n, -n]) for n in range(20)]
        def inner(): yield from rows
        worker = threading.Thread(target=lambda: list(inner()))
        worker.start()
        worker.join()
        return len(list(inner()))
    threading.set{name}(watch)
    sys.set{name}(watch)
    {name}_work()
    sys.set{name}(None)
    threading.set{name}(None)
    # Threads take turns as they like: what happened, not in which order.
    print(sorted((repr(event), count) for event, count in collections.Counter(events).items()))
    print(sys.gettrace(), sys.getprofile())
"""


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_functions_that_trace_and_profile_see_the_same(both: Both, name: str) -> None:
    assert "inner" in both.same(EVENTS.format(name=name)).stdout


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
def test_monitoring_tools_see_the_same(both: Both) -> None:
    done = both.same(
        """
        import collections, sys
        monitoring = sys.monitoring
        events = monitoring.events
        seen = collections.Counter()
        tools = [number for number in range(6) if monitoring.get_tool(number) is None]
        print(tools)
        for number in tools:
            monitoring.use_tool_id(number, f"tool {number}")
        number = tools[0]
        def note(name):
            return lambda code, *rest: seen.update([(name, code.co_name)])
        for name in ("PY_START", "PY_RETURN", "PY_YIELD", "LINE", "JUMP", "BRANCH", "CALL", "RAISE", "INSTRUCTION"):
            if hasattr(events, name):
                monitoring.register_callback(number, getattr(events, name), note(name))
        def work():
            def numbers():
                for n in range(50):
                    yield [n] * n
            try:
                return sum(map(len, numbers())) // 0
            except ZeroDivisionError:
                return bytearray(1000)
        monitoring.set_events(number, events.PY_START | events.PY_RETURN | events.PY_YIELD | events.LINE | events.CALL
            | events.RAISE)
        work()
        monitoring.set_events(number, 0)
        monitoring.set_local_events(number, work.__code__, events.INSTRUCTION | events.LINE)
        work()
        print(sorted(seen.items()), monitoring.get_events(number), monitoring.get_local_events(number, work.__code__))
        """
    )
    assert "PY_YIELD" in done.stdout


def test_cprofile_counts_the_same_calls(both: Both) -> None:
    # Without what a start() calls that waits for its thread: the thread may be ready before.
    text = WORK.replace(
        "print(main())",
        "import cProfile, pstats\nprofile = cProfile.Profile()\nprofile.runcall(main)\n"
        "rows = pstats.Stats(profile).stats\n"
        "print(sorted((place[2], place[1], calls[:2]) for place, calls in rows.items() if 'lock' not in place[2]"
        " and 'thread' not in place[0] and 'thread' not in place[2] and 'deque' not in place[2]))",
    )
    assert "('generate', " in both.same(text).stdout


# Memory's own tools

TRACED = """
    import json, sys, tracemalloc
    {before}
    def take(count):
        return [bytearray(n % 500) for n in range(count)]
    snapshots = []
    for count in (1_000, 4_000):
        kept = take(count)
        if tracemalloc.is_tracing():
            snapshots.append(tracemalloc.take_snapshot())
    {after}
    rows = [
        sum(t.size for t in s.traces if t.traceback[-1].filename.endswith("program.py")) for s in snapshots
    ]
    sys.stdout.write(json.dumps({{"rows": rows, "tracing": tracemalloc.is_tracing(),
        "limit": tracemalloc.get_traceback_limit()}}))
"""


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ("tracemalloc.start(3)", "", ()),
        ("tracemalloc.start(3)", "tracemalloc.stop()", ()),
        ("", "", ("-X", "tracemalloc=5")),
        ("tracemalloc.stop(); tracemalloc.start(2)", "", ("-X", "tracemalloc=5")),
    ],
)
def test_tracemalloc_counts_the_same(both: Both, before: str, after: str, options: tuple[str, ...]) -> None:
    (both.folder / "program.py").write_text(textwrap.dedent(TRACED.format(before=before, after=after)))
    done = [both.run("program.py", under=under, options=options) for under in (False, True)]
    assert [program.returncode for program in done] == [0, 0], done[1].stderr
    alone, recorded = (json.loads(program.stdout) for program in done)
    assert recorded["rows"] == pytest.approx(alone["rows"], rel=0.001)
    assert recorded["rows"][1] > 1_000_000
    assert (recorded["tracing"], recorded["limit"]) == (alone["tracing"], alone["limit"])


STEPS = {
    "T": "tracemalloc.start(2)",
    "t": "tracemalloc.stop()",
    "r": "recorder = hiwater.record(f'{len(made)}.hiw'); made.append(recorder); recorder.start()",
    "s": "recorder = hiwater.record(f'{len(made)}.hiw', sample='16KiB'); made.append(recorder); recorder.start()",
    "R": "recorder.stop()",
    " ": "kept.append([bytes(100 + n) for n in range(10_000)])",
    "+": "kept.append([bytes(200 + n % 200) for n in range(30_000)])",
    "-": "kept.clear()",
}


def do_steps(both: Both, order: str, afterwards: str = "") -> None:
    """In a program of its own: T and t start and stop tracemalloc, r and s a recording, exact and sampled, R ends
    it; the others hold and drop."""
    lines = "\n".join(STEPS[step] for step in order)
    (both.folder / "program.py").write_text(f"import hiwater, tracemalloc\nkept, made = [], []\n{lines}\n{afterwards}")
    done = both.run("program.py", under=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize(
    "order",
    ["Tr Rt", "rT Rt", "Tr tR", "rT tR", "Tr tR rR", "rT Rt rR", "Tr tT Rt", "rT tT Rt rR", "TrR rR t", "Tr tTRrR t"],
)
def test_tracemalloc_and_recordings_in_any_order(both: Both, order: str) -> None:
    """A recording that lost sight of Python's objects says so."""
    do_steps(
        both,
        order,
        "print(tracemalloc.is_tracing(), len(kept))\nrecorder.stop()\ntracemalloc.stop()\nkept.clear()\n"
        "with hiwater.record('last.hiw') as recorder:\n    kept = [bytes(100 + n) for n in range(10_000)]\n",
    )
    last = hiwater.open(both.folder / "last.hiw")
    assert last.lost_events == 0
    assert last.peak.kind_bytes()["python"] > 50_000_000, "Python's objects were not seen"
    for path in sorted(both.folder.glob("[0-9].hiw")):
        capture = hiwater.open(path)
        capture.check()
        displaced = "Tr t" in order and path.name == "0.hiw"
        assert (capture.process.stop_reason is not None) == displaced
        assert (capture.lost_events > 0) == displaced


@pytest.mark.grid
@pytest.mark.parametrize(
    "order",
    [
        "s+-+Rr+-+R",
        "s+T-+Rr+-+Rt",
        "s+T+Rs+-+Rtr+-R",
        "r+T+Rs+-+Rr+Rts+-R",
        "s+T+Rr+-+Rs+Rr-+Rt",
        "s+T+Rts+-Rr+-+R",
    ],
)
def test_sampled_and_other_recordings_under_tracemalloc(both: Both, order: str) -> None:
    """Small objects come and go. Hooks that had to stay do no harm to the next recording."""
    do_steps(both, order)
    batch = sum(33 + 200 + n % 200 for n in range(30_000))
    for number, recording in enumerate(re.findall("[rs][^R]*R", order)):
        capture = hiwater.open(both.folder / f"{number}.hiw")
        capture.check()
        assert (capture.process.stop_reason, capture.lost_events) == (None, 0)
        peak = max(held.count("+") for held in recording.split("-"))
        last = recording.split("-")[-1].count("+")
        for held, batches in ((capture.peak, peak), (capture.end, last)):
            error = 4 * (16_384 * batches * batch) ** 0.5 if recording[0] == "s" else 0
            assert held.kind_bytes()["python"] == pytest.approx(batches * batch, abs=error + 1_000_000), recording


def test_callbacks_of_the_collector_are_called_alike(both: Both) -> None:
    done = both.same(
        """
        import gc
        called = []
        class Ring:
            def __init__(self): self.me = self
        print(gc.callbacks, gc.get_threshold(), gc.isenabled(), gc.get_debug(), gc.get_freeze_count())
        gc.callbacks.append(lambda phase, info: called.append((phase, info["generation"],
            [bytearray(100) for _ in range(10)])[:2]))
        gc.collect()
        called.clear()
        for _ in range(5):
            rings = [Ring() for _ in range(100)]
            del rings
            gc.collect()
        gc.set_threshold(500, 1000, 1000)
        rings = [Ring() for _ in range(20_000)]
        print(called[:10], len(called), len(gc.get_referrers(rings[0])))
        print(sum(isinstance(thing, Ring) for thing in gc.get_objects()), gc.garbage)
        """
    )
    assert "('stop', 2)" in done.stdout


# Signals and crashes


@pytest.mark.parametrize("ending", ["import ctypes; ctypes.string_at(0)", "import os; os.abort()",
                                    "import signal, os; os.kill(os.getpid(), signal.SIGFPE)"])  # fmt: skip
def test_a_crash_is_dumped_and_dies_alike(both: Both, ending: str) -> None:
    program = (
        "import faulthandler\nfaulthandler.enable()\ndef crash():\n    held = bytearray(3_000_000)\n"
        f"    {ending}\ncrash()\n"
    )
    (both.folder / "program.py").write_text(program)
    alone, recorded = (both.run("program.py", under=under) for under in (False, True))
    assert alone.returncode < 0
    assert recorded.returncode == alone.returncode
    assert "in crash" in alone.stderr
    assert said(recorded.stderr) == said(alone.stderr)
    capture = hiwater.open(both.capture)
    capture.check()
    assert capture.process.ended == "killed"
    assert capture.peak.allocated_bytes > 3_000_000


def test_faulthandler_dumps_alike(both: Both) -> None:
    both.same(
        """
        import faulthandler, os, signal, sys, tempfile
        faulthandler.register(signal.SIGUSR1, all_threads=False)
        def wait():
            os.kill(os.getpid(), signal.SIGUSR1)
            faulthandler.dump_traceback(all_threads=False)
            [bytearray(n) for n in range(1000)]
        wait()
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback_later(0.05, file=file)
            def sleep():
                while b"<module>" not in os.pread(file.fileno(), 10_000, 0): pass  # the frame below, too
            sleep()
            faulthandler.cancel_dump_traceback_later()  # waits for the rest of it
            file.seek(0)
            sys.stderr.write(file.read())
        """
    )


def test_handlers_that_allocate_interrupt_allocations(both: Both) -> None:
    both.same(
        """
        import signal, sys
        from hiwater import _core
        calls = 0
        def handle(*_):
            global calls, kept
            calls += 1
            kept = [bytearray(n) for n in range(50)] + [{n: str(n)} for n in range(50)]
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        total = 0
        while calls < 200:
            rows = [str(n) * 3 for n in range(2000)]
            rows.extend(bytearray(70_000) for _ in range(20))
            total = max(total, len(rows))
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _core.is_recording():
            _core.self_check()
        print(total, len(kept))
        """
    )


# Hooks and limits


def test_audit_hooks_hear_the_same_and_may_forbid_everything(both: Both) -> None:
    done = both.same(
        """
        import decimal, subprocess, sys, threading
        heard = []
        forbidding = False
        def hook(event, arguments):
            heard.append(event)
            if forbidding and event in ("open", "os.listdir", "import", "socket.connect", "os.remove", "ctypes.dlopen",
                "os.rename"):
                raise PermissionError(event)
        sys.addaudithook(hook)
        open("made.txt", "w").close()
        subprocess.run(["true"])
        exec("x = [bytearray(1000) for _ in range(1000)]")
        try:
            eval(compile("1 / 0", "made", "eval"))
        except ZeroDivisionError:
            pass
        thread = threading.Thread(target=list)
        thread.start()
        thread.join()
        print([event for event in heard if not event.startswith("sys._")
            and event not in ("object.__getattr__", "marshal.loads")])
        forbidding = True
        raise SystemExit(4)
        """,
        exit_code=4,
    )
    assert "subprocess.Popen" in done.stdout


LIMITED = """
    import resource, sys
    def limit(name, value):
        resource.setrlimit(getattr(resource, name), (value, resource.getrlimit(getattr(resource, name))[1]))
    {limit}
    kept = []
    try:
        while len(kept) < 3000:
            {take}
    except (MemoryError, OSError) as error:
        refused = len(kept)
        kept.clear()
        print(type(error).__name__, getattr(error, "errno", ""), {shown})
    else:
        print("all")
    rows = [exec(f"def made_{{n}}():\\n    return bytes({{n}})\\nmade_{{n}}()") for n in range(3000)]
    print(len(rows))
    raise SystemExit(6)
"""
SPACE = (
    "int(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('{}:'))) * 1024 + 150_000_000"
)


@pytest.mark.parametrize(
    ("limit", "take", "shown"),
    [
        (f"limit('RLIMIT_AS', {SPACE.format('VmSize')})", "kept.append(bytearray(1_000_000))", "90 < refused < 160"),
        (f"limit('RLIMIT_DATA', {SPACE.format('VmData')})", "kept.append(bytearray(1_000_000))", "90 < refused < 160"),
        ("limit('RLIMIT_NOFILE', 50)", "kept.append(open('/dev/null'))", "40 < refused < 50"),
        ("limit('RLIMIT_FSIZE', 100_000)", "kept.append(open('big', 'ab').write(bytes(1000)))", "refused == 100"),
        ("limit('RLIMIT_CORE', 0); limit('RLIMIT_STACK', 4 << 20)", "kept.append(bytearray(1_000))", "refused"),
        ("limit('RLIMIT_NPROC', 1)", "kept.append(bytearray(1_000))", "refused"),
    ],
    ids=["address space", "data", "files", "file size", "stack", "threads"],
)
def test_limits_that_the_program_sets(both: Both, limit: str, take: str, shown: str) -> None:
    """They may end a recording, which then says so; they change nothing for the program."""
    both.same(LIMITED.format(limit=limit, take=take, shown=shown), exit_code=6, sound=False)
    assert os.path.getsize(both.capture) > 0


def test_handlers_of_forks_and_of_signals_in_their_midst_allocate(tmp_path: Path) -> None:
    """A library that was there before the recording is told of a fork after us, in the child before us."""
    recorded = record(
        tmp_path,
        """
        import ctypes, os, signal
        churn = ctypes.CDLL(os.path.join(os.environ["HIWATER_TEST_LIBRARIES"], "churn.so"))
        def before():
            churn.handle_forks()
        def main():
            churn.answer_with_mappings(int(signal.SIGALRM))
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
            held = [bytearray(1000) for _ in range(50_000)]
            for _ in range(50):
                child = os.fork()  # @fork
                if child == 0:
                    os._exit(len(held) % 7)
                assert os.waitpid(child, 0)[1] == 50_000 % 7 << 8
                assert churn.fork_and_go_on() == 0
            signal.setitimer(signal.ITIMER_REAL, 0)
        """,
        libraries=["churn"],
        timeout=300,
    )
    assert [stack.bytes for stack in recorded.stacks("fork", "native", "end")] == []


def test_a_library_with_many_variables_of_each_thread(both: Both) -> None:
    """They take their place from the stack that a thread asks for."""
    recorded = both.same("import time; time.sleep(0.5)", LD_PRELOAD=str(compiled.library("thread_locals")))
    assert recorded.stderr == ""
    assert len(hiwater.open(both.capture).timeline) > 5, "the thread that looks at resident memory is not there"
