"""How a recorded program ends, with the real engine: what is said and what the capture says of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hiwater
from children import hiwater_command, run_hiwater
from hiwater.capture.run_index import read_folder
from recording import child_environment, needs_engine

pytestmark = needs_engine


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return run_hiwater("run", "-o", "a.hiw", "-c", code, folder=folder)


def process_of(folder: Path) -> dict[str, Any]:
    done = run_hiwater("report", "a.hiw", "--format", "json", folder=folder, check=True)
    process: dict[str, Any] = json.loads(done.stdout)["process"]
    return process


def ended(folder: Path) -> tuple[str, int | None]:
    process = process_of(folder)
    return process["ended"], process["exit_code"]


@pytest.mark.parametrize("ending", ["raise SystemExit(7)", "import os; os._exit(7)"])
def test_the_three_lines_come_however_the_program_leaves(tmp_path: Path, ending: str) -> None:
    done = run(tmp_path, f"held = bytearray(5_000_000)\n{ending}")

    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines if "allocated at the peak; most " not in line] == ["peak", "capture"]
    assert len(lines) == 3
    assert "most at <-c>:1 in <module>: 4.8 MiB" in lines[1]
    assert ended(tmp_path) == ("exit", 7)


def test_a_forked_child_that_leaves_by_exit_says_nothing_and_leaves_the_capture_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\nheld = bytearray(5_000_000)")

    assert done.returncode == 0
    assert done.stderr.startswith("hiwater: 2 processes on 1 machine\n")
    assert [line.split()[1] for line in done.stderr.splitlines()].count("capture") == 1
    assert ended(tmp_path) == ("exit", 0)


# The C library's parser of regular expressions calls itself for each parenthesis. CPython guards its own recursion.
OVERFLOW = (
    "import ctypes, threading\n"
    "def deeper(depth): ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(256), b'(' * depth, 1)\n"
)
CUT = (
    "import mmap, tempfile\nfile = tempfile.TemporaryFile()\nfile.truncate(8192)\n"
    "pages = mmap.mmap(file.fileno(), 8192)\nfile.truncate(0)\npages[0]"
)
RESTORING = """\
import os, signal
def again(number, frame):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, again)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""
DEATHS = {
    "SIGTERM": ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", "SIGTERM", "signal"),
    "SIGUSR1 to a thread": ("import signal, threading\nsignal.pthread_kill(threading.get_ident(), signal.SIGUSR1)",
        "SIGUSR1", "signal"),
    "real-time": ("import os\nos.kill(os.getpid(), 40)", "signal 40", "signal"),
    "alarm": ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\nsignal.pause()", "SIGALRM", "signal"),
    "SIGSEGV": ("import ctypes\nctypes.string_at(0)", "SIGSEGV", "signal"),
    "SIGBUS": (CUT, "SIGBUS", "signal"),
    "os.abort": ("import os\nos.abort()", "SIGABRT", "signal"),
    "fatal error": ("import ctypes\nctypes.pythonapi.Py_FatalError(b'no')", "SIGABRT", "fatal error"),
    "overflow": (f"{OVERFLOW}deeper(10_000_000)", "SIGSEGV", "stack overflow"),
    "overflow in a thread": (
        (f"{OVERFLOW}thread = threading.Thread(target=deeper, args=(10_000_000,))\nthread.start()\n"
            "thread.join()"), "SIGSEGV", "stack overflow",
    ),
    "faulthandler": ("import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)", "SIGSEGV", "signal"),
    "a handler that restores the default": (RESTORING, "SIGTERM", "signal"),
    "SIGKILL": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", None, ""),
}  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_program_dies_of_the_same_signal_and_its_capture_names_it(tmp_path: Path, death: str) -> None:
    code, name, ended_by = DEATHS[death]
    plain = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    done = run(tmp_path, f"held = bytearray(5_000_000)\n{code}")

    assert plain.returncode < 0
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    process = process_of(tmp_path)
    assert (process["ended"], process["exit_code"]) == ("killed", None)
    assert (process["signal"], process["ended_by"]) == (name, ended_by)
    capture = hiwater.open(tmp_path / "a.hiw")
    capture.check()
    assert capture.peak.allocated_bytes >= 5_000_000


def test_the_report_and_the_next_run_name_the_signal(tmp_path: Path) -> None:
    run(tmp_path, DEATHS["overflow"][0])

    report = run_hiwater("report", "a.hiw", folder=tmp_path, check=True).stdout
    assert "was killed (stack overflow, SIGSEGV) after" in report
    assert "was killed (SIGSEGV) with a resident peak" in run(tmp_path, "pass").stderr


def test_a_program_does_not_see_the_handlers(tmp_path: Path) -> None:
    (tmp_path / "sees.py").write_text(SEES)
    plain = subprocess.run([sys.executable, "sees.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    done = run_hiwater("run", "-q", "-o", "a.hiw", "sees.py", folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert plain.stdout.count("\n") == 3


SEES = """\
import ctypes, signal, threading
libc = ctypes.CDLL(None)

class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

def stack():
    found = Stack()
    libc.sigaltstack(None, ctypes.byref(found))
    print(found.sp, found.flags, found.size)

def actions():
    found = []
    for number in sorted(signal.valid_signals()):
        action = (ctypes.c_ulong * 19)()
        libc.sigaction(number, None, action)
        found.append(bytes(action).hex())
    return found

stack()
thread = threading.Thread(target=stack)
thread.start()
thread.join()
libc.signal.restype = ctypes.c_void_p
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
olds = []
for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1, 40):
    for handler in (0, 1, 0, 0):
        olds.append(libc.signal(number, handler))
handlers = [int.from_bytes(bytes.fromhex(one)[:8], "little") for one in actions()]
print(olds, [number if number < 2 else "handler" for number in handlers])
"""


def test_an_exit_without_callbacks_is_told(tmp_path: Path) -> None:
    run(tmp_path, "import os\nos._exit(7)")

    process = process_of(tmp_path)
    assert (process["ended"], process["exit_code"], process["ended_by"]) == ("exit", 7, "_exit")
    assert "ended by _exit(7) after" in run_hiwater("report", "a.hiw", folder=tmp_path, check=True).stdout


def test_a_fork_that_is_not_recorded_has_the_programs_own_signals(tmp_path: Path) -> None:
    code = (
        "import os, signal\nif os.fork() == 0:\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    )
    done = run_hiwater("run", "-q", "--no-children", "-o", "a.hiw", "-c", code, folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, "-15\n")
    assert ended(tmp_path) == ("exit", 0)


@pytest.mark.parametrize("ending", ["sys.exit(9)", "raise ValueError", "pass"])
def test_the_exit_code_of_an_executed_child_is_known(tmp_path: Path, ending: str) -> None:
    child = f"import sys; {ending}"
    run(
        tmp_path,
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], stderr=subprocess.DEVNULL)",
    )

    (row,) = [row for row in read_folder(tmp_path / "a.hiw.d", "")[0] if row["event"] == "ended"]
    said = json.loads(run_hiwater("report", "a.hiw", "--format", "json", folder=tmp_path, check=True).stdout)
    code = {"sys.exit(9)": 9, "raise ValueError": 1, "pass": 0}[ending]
    assert (row["exit_code"], said["children"][0]["process"]["exit_code"]) == (code, code)


def test_the_report_has_the_signal_of_a_killed_child(tmp_path: Path) -> None:
    child = "import os; os.kill(os.getpid(), 9)"
    run(tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])")

    said = json.loads(run_hiwater("report", "a.hiw", "--format", "json", folder=tmp_path, check=True).stdout)
    process = said["children"][0]["process"]
    assert (process["ended"], process["signal"]) == ("killed", "SIGKILL")


def test_exec_ends_the_recording(tmp_path: Path) -> None:
    done = run(tmp_path, "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(5)'])")

    assert (done.returncode, done.stdout) == (0, "5\n")
    assert ended(tmp_path)[0] == "exit"
    said = json.loads(run_hiwater("report", "a.hiw", "--format", "json", folder=tmp_path, check=True).stdout)
    (executed,) = said["children"]
    assert executed["process"]["pid"] == said["process"]["pid"]


@pytest.mark.once
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a namespace")
def test_the_first_process_of_a_namespace_survives_what_it_survives_without_hiwater(tmp_path: Path) -> None:
    code = "import os, signal\nos.kill(1, signal.SIGTERM)\nprint(os.getpid())"
    words = ["unshare", "--fork", "--pid", "--mount-proc", *hiwater_command("run", "-q", "-o", "a.hiw", "-c", code)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=child_environment())
    if "unshare" in done.stderr:
        pytest.skip("this system allows no namespaces")

    assert (done.returncode, done.stdout) == (0, "1\n")
    assert ended(tmp_path) == ("exit", 0)


@pytest.mark.once
@pytest.mark.parametrize("death", ["SIGSEGV", "os.abort", "overflow"])
def test_a_core_is_dumped_as_without_hiwater(tmp_path: Path, death: str) -> None:
    code = f"import resource\nresource.setrlimit(resource.RLIMIT_CORE, (2**20,) * 2)\n{DEATHS[death][0]}"
    dumped = []
    for recorder in ([], hiwater_command("run", "-q", "-o", "a.hiw")[1:]):
        process = subprocess.Popen([sys.executable, *recorder, "-c", code], cwd=tmp_path, env=child_environment())
        status = os.waitpid(process.pid, 0)[1]
        process.returncode = os.waitstatus_to_exitcode(status)
        dumped.append((os.WTERMSIG(status), os.WCOREDUMP(status)))

    assert dumped[0] == dumped[1]  # whether a file was written depends on the system
