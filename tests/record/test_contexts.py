"""What hooked functions do where little is allowed: each action × context of native/README.md, plain and recorded, with
the same outcome.

A hang is the failure looked for; what stays live must be right to the byte all the same. tests/extensions/contexts.c
has the actions.
"""

import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import compiled
import hiwater
import naive_reader
from recording import child_environment, needs_engine

pytestmark = needs_engine

PATIENCE = 90  # seconds; a run takes one or two
KEPT_BYTES, KEPT_BLOCKS = 700, 1000
PROGRAM = textwrap.dedent(
    """\
    import ctypes, os, sys
    context, action, rounds, path, allocator = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
    file = os.path.join(os.environ["HIWATER_TEST_LIBRARIES"], "contexts.so")
    library = (ctypes.PyDLL if allocator == "python" else ctypes.CDLL)(file, mode=ctypes.RTLD_GLOBAL)
    if allocator == "python":
        library.allocate_by(ctypes.pythonapi.PyObject_Malloc, ctypes.pythonapi.PyObject_Free)
    assert library.begin() == 0
    recorder = None
    if path:
        import hiwater
        recorder = hiwater.record(path)
        recorder.start()
    if "TEST_WATCH" in os.environ:
        from hiwater.meters.watch import Watch
        Watch(int).start()
    code = library.run(context.encode(), action.encode(), rounds)
    library.keep()
    if "hiwater._core" in sys.modules:
        sys.modules["hiwater._core"].self_check()
    if recorder is not None:
        recorder.stop()
    sys.exit(code)
    """
)

LINE_OF_KEEP = PROGRAM.splitlines().index("library.keep()") + 1

ACTIONS = [
    "heap",
    "mappings",
    "segment",
    "shared_object",
    "thread",
    "name",
    "fork",
    "raw_fork",
    "vfork",
    "spawn",
    "failing_exec",
    "load",
]
LAST_ACTIONS = ["_exit", "exec"]  # after which nothing comes
# A handler of a signal may do less: glibc's own malloc, threads and loader are not for it.
IN_HANDLERS = ["mappings", "shared_object", "name", "fork", "raw_fork", "vfork", "spawn", "failing_exec"]
# To load a library waits for the loader's lock, which the constructor holds; threads wait for it at their end where
# they have TLS to free.
IN_CONSTRUCTORS = [action for action in ACTIONS if action != "load"]
# fork() in a fork's handlers calls them again; a program's own lock would be waited for.
IN_FORK_HANDLERS = ["heap", "mappings", "segment", "shared_object", "name", "vfork", "failing_exec"]
IN_CHILDREN = [*ACTIONS, *LAST_ACTIONS]

CELLS = [
    *(("ordinary", action, 20) for action in ACTIONS),
    *(("ordinary", action, 1) for action in LAST_ACTIONS),
    ("ordinary", "cancelled_open", 10),
    *(("among_threads", action, 20) for action in ACTIONS),
    *(("signal", action, 40) for action in IN_HANDLERS),
    *(("constructor", action, 10) for action in IN_CONSTRUCTORS),
    *((f"fork_{when}", action, 10) for when in ("prepare", "parent", "child") for action in IN_FORK_HANDLERS),
    *(
        ("cancelled", action, 40)
        for action in ("heap", "mappings", "segment", "shared_object", "name", "fork", "vfork", "thread")
    ),
    *(("thread_end", action, 20) for action in ACTIONS),
    *(("finalisation", action, 10) for action in ACTIONS),
    *(("finalisation", action, 1) for action in LAST_ACTIONS),
    *(("exit", action, 10) for action in ACTIONS),
    *(("exit", action, 1) for action in LAST_ACTIONS),
    *(("forked", action, 10) for action in IN_CHILDREN),
]


@functools.cache
def program() -> Path:
    for name in ("contexts", "waiting", "constructor"):
        compiled.library(name)
    path = compiled.libraries() / "contexts_program.py"
    path.write_text(PROGRAM)
    return path


def run(*words: str | Path, preloaded: str = "") -> int:
    extra = {"LD_PRELOAD": str(compiled.library(preloaded))} if preloaded else {}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=child_environment(extra),
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


@functools.cache
def plain_outcome(context: str, action: str, rounds: int, allocator: str) -> int:
    outcome = run(program(), context, action, str(rounds), "", allocator)
    assert outcome == (7 if action in LAST_ACTIONS and context != "forked" else 0)
    return outcome


def recorded_outcome(context: str, action: str, rounds: int, allocator: str, path: Path, *, late: bool) -> int:
    """`late`: the recording begins after the library's handlers are registered."""
    words = [context, action, str(rounds), str(path) if late else "", allocator]
    launcher = [] if late else ["-m", "hiwater", "run", "-o", str(path)]
    return run(*launcher, program(), *words)


def check(path: Path, context: str, action: str) -> None:
    """The capture opens, agrees with itself, and has what was kept to the byte."""
    capture = hiwater.open(path)
    assert capture.problems() == []
    assert capture.process.ended == "exit"
    if (action in LAST_ACTIONS and context != "forked") or context == "exit":
        return
    read = naive_reader.read(path)
    read.check()
    place = (str(program()), LINE_OF_KEEP)
    kept = [s for s in read.stacks("end") if s.leaf is not None and (s.leaf.file, s.leaf.line) == place]
    assert sum(s.bytes for s in kept if s.kind == "native") == KEPT_BYTES * KEPT_BLOCKS


@pytest.mark.grid
@pytest.mark.parametrize("late", [False, True], ids=["run", "record"])
@pytest.mark.parametrize(
    ("context", "action", "rounds"),
    [  # the interpreter does not know of other contexts than its end
        pytest.param(*cell, id="-".join(cell[:2]), marks=() if cell[0] == "finalisation" else pytest.mark.once)
        for cell in CELLS
    ],
)
def test_the_outcome_is_the_same(tmp_path: Path, context: str, action: str, rounds: int, late: bool) -> None:
    expected = plain_outcome(context, action, rounds, "malloc")
    assert recorded_outcome(context, action, rounds, "malloc", tmp_path / "a.hiw", late=late) == expected
    check(tmp_path / "a.hiw", context, action)


@pytest.mark.parametrize("allocator", [pytest.param("malloc", marks=pytest.mark.once), "python"])
@pytest.mark.parametrize("action", LAST_ACTIONS)
def test_a_handler_of_a_signal_may_end_the_process(tmp_path: Path, action: str, allocator: str) -> None:
    """It comes in the midst of allocations, in one of two of the recorder's own work."""
    for attempt in range(8):
        path = tmp_path / f"{attempt}.hiw"
        assert recorded_outcome("signal", action, 1, allocator, path, late=False) == 7
        check(path, "signal", action)


@pytest.mark.parametrize("action", IN_HANDLERS)
def test_a_handler_comes_in_the_midst_of_pythons_allocations(tmp_path: Path, action: str) -> None:
    expected = plain_outcome("signal", action, 40, "python")
    assert recorded_outcome("signal", action, 40, "python", tmp_path / "a.hiw", late=False) == expected
    check(tmp_path / "a.hiw", "signal", action)


@pytest.mark.once
@pytest.mark.grid
@pytest.mark.parametrize("context", ["ordinary", "among_threads", "thread_end"])
@pytest.mark.parametrize("action", ["heap", "mappings", "segment", "shared_object", "thread", "name", "fork"])
def test_errno_stays_what_it_was(tmp_path: Path, context: str, action: str) -> None:
    """A library between the recorder and the kernel leaves another errno after each call, as one that is waited in
    does now and then."""
    words = [program(), context, action, "200"]
    assert run(*words, "", "malloc", preloaded="errno_noise") == 0
    assert run(*words, str(tmp_path / "a.hiw"), "malloc", preloaded="errno_noise") == 0
    check(tmp_path / "a.hiw", context, action)


@pytest.mark.once
@pytest.mark.parametrize("late", [False, True], ids=["run", "record"])
def test_a_handler_forks_while_a_meter_watches_resident_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The recorder has two threads then. Neither makes glibc's fork wait for the malloc that the handler
    interrupted."""
    monkeypatch.setenv("TEST_WATCH", "1")
    assert recorded_outcome("signal", "fork", 40, "malloc", tmp_path / "a.hiw", late=late) == 0
    check(tmp_path / "a.hiw", "signal", "fork")


@pytest.mark.once
def test_a_handler_forks_amid_the_control_of_the_meters_thread() -> None:
    """A handler never comes while that thread begins or ends."""
    program = (
        "import ctypes, sys, hiwater._core as core\n"
        "library, preloaded = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)\n"
        "assert library.fork_in_handlers() == 0\n"
        "preloaded.interrupt_next(b'sysconf')\n"
        "core.resident_watch_start(1_000_000_000)\n"
        "assert library.forks_until_now() == 1, library.forks_until_now()\n"
        "core.resident_watch_stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, compiled.library("interrupted")],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
        env=child_environment({"LD_PRELOAD": str(compiled.library("interrupting"))}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
