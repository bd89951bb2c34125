"""A program under hiwater does what it does under python: output, errors, exit code, and what it sees of itself.

Each program runs under `python` and under `hiwater run`; in a build without the engine, through its launcher alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import zipapp
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from children import run_hiwater
from places import PROGRAMS
from recording import needs_engine
from waiting import SLEEPING, is_in_call, wait_until

HAS_ENGINE = importlib.util.find_spec("hiwater._core") is not None
LAUNCH = str(PROGRAMS / "launch.py")
ADDRESS = re.compile(rb"0x[0-9a-f]+")

Words = Sequence[str]
Runner = Callable[..., subprocess.CompletedProcess[bytes]]


def through_the_launcher(words: Words) -> list[str]:
    return [LAUNCH, *words]


def through_hiwater(words: Words) -> list[str]:
    return ["-m", "hiwater", "run", "-q", "-o", os.path.join(os.environ["HIWATER_TEST_OUT"], "run.%p.hiw"), *words]


@pytest.fixture
def wrap(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> object:
    if not HAS_ENGINE:
        return through_the_launcher
    monkeypatch.setenv("HIWATER_TEST_OUT", str(tmp_path_factory.mktemp("captures")))
    return through_hiwater


class Pair:
    """Runs one program both ways in one folder and compares the endings."""

    def __init__(self, wrap: Callable[[Words], list[str]], folder: Path) -> None:
        self.wrap = wrap
        self.folder = folder

    def write(self, name: str, source: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return name

    def same(
        self,
        *words: str,
        options: Words = (),
        feed: bytes | None = None,
        environment: dict[str, str] | None = None,
        interrupt: signal.Signals | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run both ways, compare, and return the plain ending."""
        plain = self.run([*options, *words], feed, environment, interrupt)
        under = self.run([*options, *self.wrap(words)], feed, environment, interrupt)
        assert ADDRESS.sub(b"", under.stdout) == ADDRESS.sub(b"", plain.stdout)
        assert ADDRESS.sub(b"", under.stderr) == ADDRESS.sub(b"", plain.stderr)
        assert under.returncode == plain.returncode
        return plain

    def run(
        self,
        words: Words,
        feed: bytes | None = None,
        environment: dict[str, str] | None = None,
        interrupt: signal.Signals | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            stdin=subprocess.PIPE if feed is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0", **(environment or {})},
        )
        if interrupt is not None:
            assert process.stdout is not None
            first = process.stdout.readline()  # the program says that it is ready …
            # … and goes to sleep: where the signal finds it is in the traceback
            wait_until(lambda: is_in_call(SLEEPING, process.pid))
            process.send_signal(interrupt)
        try:
            out, err = process.communicate(feed, timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its workers, too
            raise
        if interrupt is not None:
            out = first + out
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def pair(wrap: Callable[[Words], list[str]], tmp_path: Path) -> Pair:
    return Pair(wrap, tmp_path)


SEE_YOURSELF = """
    import os, sys
    print(sys.argv, sys.path[:2], sys.flags, os.getcwd(), __name__, __package__, __builtins__)
    print([(key, type(value).__name__) for key, value in list(globals().items())])
    print(globals().get("__file__"), globals().get("__cached__"), __spec__ and (__spec__.name, __spec__.origin))
    print(type(__loader__), getattr(__loader__, "name", ""), getattr(__loader__, "path", ""))
    print(sys.modules["__main__"].__dict__ is globals(), sys.orig_argv[1:], sys.exc_info())
    print(sys.stdin, sys.gettrace(), sys.getprofile(), sorted(os.environ) == sorted(os.environ.copy()))
"""


@pytest.mark.parametrize("script", ["see.py", "./see.py", "sub/../see.py"])
def test_a_script_sees_what_it_sees_under_python(pair: Pair, script: str) -> None:
    (pair.folder / "sub").mkdir()
    pair.write("see.py", SEE_YOURSELF)
    pair.same(script, "--help", "-o", "x", "")


def test_a_script_by_its_full_path_and_through_a_link(pair: Pair, tmp_path: Path) -> None:
    pair.write("real/see.py", SEE_YOURSELF)
    (tmp_path / "link.py").symlink_to("real/see.py")
    pair.same(str(tmp_path / "real" / "see.py"))
    pair.same("link.py")


def test_a_module_a_package_and_a_module_in_a_package(pair: Pair) -> None:
    pair.write("see.py", SEE_YOURSELF)
    pair.write("package/__init__.py", "import sys; print(sys.argv)")
    pair.write("package/__main__.py", SEE_YOURSELF)
    pair.write("package/inner.py", SEE_YOURSELF)
    for name in ("see", "package", "package.inner"):
        pair.same("-m", name, "-v", "a b")


def test_code_from_the_command_line(pair: Pair) -> None:
    pair.same("-c", textwrap.dedent(SEE_YOURSELF), "-c", "x")


def test_a_program_on_standard_input(pair: Pair) -> None:
    pair.same("-", "a", feed=textwrap.dedent(SEE_YOURSELF).encode())
    pair.same("-", feed=b"1 / 0\n")


def test_a_folder_and_an_archive(pair: Pair, tmp_path: Path) -> None:
    pair.write("folder/__main__.py", SEE_YOURSELF + "    import beside\n    1 / 0\n")
    pair.write("folder/beside.py", "print(__name__, __file__)")
    zipapp.create_archive(tmp_path / "folder", tmp_path / "archive.pyz")
    for words in (("folder", "a"), ("./folder",), ("archive.pyz", "a")):
        pair.same(*words)
        pair.same(*words, options=["-P"])


def test_compiled_code(pair: Pair) -> None:
    pair.write("see.py", SEE_YOURSELF)
    pair.run(["-m", "py_compile", "see.py"])
    compiled = next((pair.folder / "__pycache__").glob("*.pyc"))
    compiled.rename(pair.folder / "see.pyc")
    pair.same("see.pyc")


@pytest.mark.parametrize("options", [["-P"], ["-O"], ["-X", "dev"], ["-W", "error"], ["-u", "-B"]])
def test_options_of_the_interpreter(pair: Pair, options: list[str]) -> None:
    pair.write("see.py", SEE_YOURSELF + "    assert False, 'asserts are on'\n")
    pair.same("see.py", options=options)
    pair.same("-c", textwrap.dedent(SEE_YOURSELF), options=options)


def test_the_folder_is_left_off_the_path_when_asked(pair: Pair) -> None:
    pair.write("see.py", SEE_YOURSELF)
    pair.same("see.py", environment={"PYTHONSAFEPATH": "1"})


OWN_STREAMS = """\
import os, sys
class Stream:
    def __init__(self, name, error=None): self.name, self.error = name, error
    def write(self, text): os.write(1, f"{self.name} writes {text}\\n".encode())
    def flush(self):
        os.write(1, f"{self.name} is flushed\\n".encode())
        if self.error is not None: raise self.error(3)
"""
ENDINGS = {
    "nothing": "",
    "exit 0": "import sys; sys.exit(0)",
    "exit None": "raise SystemExit",
    "exit 3": "import sys; sys.exit(3)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit 256": "import sys; sys.exit(256)",
    "exit True": "import sys; sys.exit(True)",
    "exit text": "import sys; sys.exit('no such thing')",
    "exit tuple": "import sys; sys.exit((1, 2))",
    "exit in a function": (
        "import sys\ndef leave():\n    try:\n        1 / 0\n    finally:\n        sys.exit(4)\nleave()"
    ),
    "_exit": "import os; print('kept', flush=True); os._exit(7)",
    "abort": "import os; os.abort()",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(9)",
    "KeyboardInterrupt": "import atexit; atexit.register(print, 'last words')\nraise KeyboardInterrupt",
    "KeyboardInterrupt subclass": "class Mine(KeyboardInterrupt): pass\nraise Mine",
    "exception": "def inner():\n    return 1 / 0\ndef outer():\n    inner()\nouter()",
    "exception with a cause": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error",
    "exception with a context": "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')",
    "exception group": "raise ExceptionGroup('both', [ValueError(1), TypeError(2)])",
    "exception with notes": "error = ValueError('x'); error.add_note('and so'); raise error",
    "BaseException": "class Odd(BaseException): pass\nraise Odd('x')",
    "exception in an imported module": "import json; json.loads('{')",
    "exception from exec": "exec(compile('1/0', 'made-up', 'exec'))",
    "no stderr": "import sys; sys.stderr = None; 1 / 0",
    "closed stdout": "import sys, os; print('x'); os.close(1)",
    "excepthook": (
        "import sys; sys.excepthook = lambda kind, error, tb: print('hook', kind, error, tb.tb_lineno)\n1 / 0"
    ),
    "excepthook that fails": (
        "import sys\ndef hook(*_):\n    raise ValueError('bad hook')\nsys.excepthook = hook\n1 / 0"
    ),
    "excepthook that exits": "import sys; sys.excepthook = lambda *_: sys.exit(9)\n1 / 0",
    "no excepthook": "import sys; del sys.excepthook\n1 / 0",
    "last exception": (
        "import atexit, sys; atexit.register(lambda: print(sys.last_value, sys.last_traceback.tb_lineno))\n1 / 0"
    ),
    "interrupt and last exception": (
        "import atexit, sys; atexit.register(lambda: print(repr(sys.last_value), sys.excepthook))\n"
        "raise KeyboardInterrupt"
    ),
    "recursion": "def down(n):\n    down(n + 1)\ndown(0)",
    "depth": (
        "def down(n):\n    global depth\n    depth = n\n    down(n + 1)\n"
        "try:\n    down(1)\nexcept RecursionError:\n    print(depth)"
    ),
    "syntax error": "def f(:\n    pass",
    "indentation error": "if True:\npass",
    "bad escape": "x = '\\N{no such name}'",
    "syntax warning": "x = 1\nprint(x is 1)",
    "deprecation warning": "import warnings; warnings.warn('old', DeprecationWarning)",
    "resource warning": "import warnings; warnings.simplefilter('always'); open('/dev/null')",
    "atexit order": "import atexit\nfor n in range(3): atexit.register(print, n)",
    "atexit that fails": "import atexit\n@atexit.register\ndef last():\n    1 / 0",
    "atexit cleared": "import atexit; atexit._clear(); print('done')",
    "finalizers": "class Noisy:\n    def __del__(self): print('gone')\nkept = Noisy()\nimport sys; sys.kept = Noisy()",
    "thread alive": (
        "import threading\ndef work(): threading.main_thread().join(); print('worked')\n"
        "threading.Thread(target=work).start()"
    ),
    "daemon thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start(); print('end')"
    ),
    "exception in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='T').start()",
    "main thread": (
        "import threading; print(threading.main_thread() is threading.current_thread(), threading.enumerate()[1:])"
    ),
    "no main module": "import sys; del sys.modules['__main__']; print('alone')",
    "fork": (
        "import os\nprint('before', flush=True)\npid = os.fork()\n"
        "if pid: print(os.waitpid(pid, 0)[1])\nelse: raise SystemExit(5)"
    ),
    "module names": "import sys; print('hiwater' in dir(), [n for n in dir(sys.modules['__main__'])])",
    "own frame": "import sys; print(sys._getframe().f_code.co_name, sys._getframe().f_globals is globals())",
}

OF_STREAMS = {
    "a script's end": "sys.stdout, sys.stderr = Stream('out'), Stream('err')",
    "an exception": "sys.stdout, sys.stderr = Stream('out'), Stream('err')\n1 / 0",
    "flushes that fail": "sys.stdout = Stream('out', SystemExit); sys.stderr = Stream('err', KeyboardInterrupt)",
    "no streams": "del sys.stdout, sys.stderr",
}


def needs_room_below(name: str) -> None:
    if name in ("recursion", "depth") and not HAS_ENGINE:
        pytest.skip("only the engine can leave hiwater's frames out of the depth")


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_under_python(pair: Pair, name: str) -> None:
    needs_room_below(name)
    pair.write("program.py", ENDINGS[name] + "\n")
    pair.same("program.py")


@pytest.mark.parametrize(
    "name", ["exit 3", "exit text", "exception", "KeyboardInterrupt", "recursion", "syntax error", "fork"]
)
@pytest.mark.parametrize("form", ["module", "command"])
def test_a_module_and_a_command_end_as_under_python(pair: Pair, name: str, form: str) -> None:
    needs_room_below(name)
    pair.write("program.py", ENDINGS[name] + "\n")
    pair.same(*(("-m", "program") if form == "module" else ("-c", ENDINGS[name])))


@pytest.mark.parametrize("name", OF_STREAMS)
@pytest.mark.parametrize("form", ["script", "module", "command"])
@needs_engine
def test_streams_of_the_program_are_flushed_as_under_python(pair: Pair, name: str, form: str) -> None:
    """Not under a launcher that is a script itself, after which the interpreter flushes once more."""
    source = OWN_STREAMS + OF_STREAMS[name] + "\n"
    pair.write("program.py", source)
    pair.same(*{"script": ("program.py",), "module": ("-m", "program"), "command": ("-c", source)}[form])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_from_outside(pair: Pair, number: signal.Signals) -> None:
    pair.write("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(30)\n")
    assert pair.same("wait.py", interrupt=number).returncode == -number


def test_a_signal_the_program_handles(pair: Pair) -> None:
    pair.write(
        "handle.py",
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(11))
        print("ready", flush=True)
        time.sleep(30)
        """,
    )
    assert pair.same("handle.py", interrupt=signal.SIGTERM).returncode == 11


@needs_engine
def test_a_signal_from_a_thread_that_ends_interrupts_the_main_thread(tmp_path: Path) -> None:
    """The kernel hands a signal to the process to a thread that changes its mask, as a recorded one does when it ends:
    the main thread would sleep on."""
    (tmp_path / "program.py").write_text(
        "import os, signal, threading, time\n"
        "def interrupt():\n    time.sleep(0.1)\n    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "def stop(number, frame):\n    raise InterruptedError\n"
        "signal.signal(signal.SIGUSR1, stop)\n"
        "begun = time.monotonic()\n"
        "threading.Thread(target=interrupt).start()\n"
        "try:\n    time.sleep(1)\nexcept InterruptedError:\n    pass\n"
        "print(time.monotonic() - begun)\n"
    )
    took = [float(run_hiwater("run", "program.py", folder=tmp_path, check=True).stdout) for _ in range(5)]
    # Where the machine is busy, the main thread may take longer to wake than the other one waits.
    assert sum(seconds > 0.9 for seconds in took) <= 1, took


PICKLING = """
    import pickle, multiprocessing, sys

    class Point:
        def __init__(self, x): self.x = x
        def __eq__(self, other): return self.x == other.x

    def double(point): return Point(2 * point.x)

    if __name__ == "__main__":
        assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
        print(pickle.dumps(Point)[:60])
        context = multiprocessing.get_context(sys.argv[1])
        with context.Pool(2) as pool:
            print([point.x for point in pool.map(double, [Point(n) for n in range(4)])])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_classes_of_main_travel_to_other_processes(pair: Pair, method: str) -> None:
    pair.write("points.py", PICKLING)
    pair.write("package/__init__.py", "")
    pair.write("package/points.py", PICKLING)
    assert b"[0, 2, 4, 6]" in pair.same("points.py", method).stdout
    assert b"[0, 2, 4, 6]" in pair.same("-m", "package.points", method).stdout


FORKS_WITH_HOOKS = """
    import os, subprocess, sys
    for _ in range(3):
        os.register_at_fork(after_in_parent=lambda: [sorted(text) for text in ('one', 'two')])
    for _ in range(30):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        subprocess.run([sys.executable, "-S", "-c", ""], preexec_fn=lambda: None)
"""


def test_forks_warn_of_no_thread_of_ours(pair: Pair) -> None:
    """CPython counts the threads after each fork, in some versions after the program's hooks. Under `-W error` it
    shows nothing."""
    pair.write("forks.py", FORKS_WITH_HOOKS)
    assert b"multi-threaded" not in pair.same("forks.py", options=["-W", "always"]).stderr


def test_a_program_that_its_folder_shadows_nothing_of_ours(pair: Pair) -> None:
    for name in ("argparse", "json", "runpy_", "numpy", "typing_"):
        pair.write(f"{name}.py", "raise RuntimeError('imported by hiwater')")
    pair.write("program.py", "print('ran')")
    pair.same("program.py")
