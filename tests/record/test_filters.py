"""Programs that filter their own system calls (seccomp) while they are recorded: membarrier is refused, or ends the
process."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

import compiled
import hiwater
import naive_reader
from children import run_hiwater
from recording import child_environment, needs_engine

pytestmark = needs_engine

KEPT_BYTES, KEPT_BLOCKS = 700, 1000
PROGRAM = """\
import ctypes, os, sys, hiwater
folder = os.environ["HIWATER_TEST_LIBRARIES"]
work = ctypes.CDLL(os.path.join(folder, "contexts.so"))
filters = ctypes.CDLL(os.path.join(folder, "filters.so"))
how, action, recordings = (int(word) for word in sys.argv[1:4])
assert filters.filter_in_vain() == 0
for number in range(recordings):
    with hiwater.record(f"{number}.hiw"):
        assert work.run(b"among_threads", b"heap", 200) == 0
        if number == 0:
            error = filters.filter(how, action)
            if error:
                sys.exit(f"no filter: {os.strerror(error)}")
        assert work.run(b"among_threads", b"heap", 200) == 0
        work.keep()
        sys.modules["hiwater._core"].self_check()
"""
LINE_OF_KEEP = PROGRAM.splitlines().index("        work.keep()") + 1
BY_PRCTL, BY_SYSCALL, BY_ITSELF = 0, 1, 2
RETURN_ERROR, KILL_PROCESS = 0x00050000 | errno.EPERM, 0x80000000


@pytest.mark.parametrize(
    ("how", "action"),
    [
        pytest.param(BY_PRCTL, RETURN_ERROR, id="prctl-refuses"),
        pytest.param(BY_PRCTL, KILL_PROCESS, id="prctl-kills"),
        pytest.param(BY_SYSCALL, RETURN_ERROR, id="syscall-refuses"),
        pytest.param(BY_SYSCALL, KILL_PROCESS, id="syscall-kills"),
        pytest.param(BY_ITSELF, RETURN_ERROR, id="itself-refuses"),
    ],
)
def test_a_filter_of_system_calls_changes_neither_the_program_nor_the_figures(
    tmp_path: Path, how: int, action: int
) -> None:
    compiled.library("contexts")
    compiled.library("filters")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", str(how), str(action), "2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for number in range(2):
        path = tmp_path / f"{number}.hiw"
        assert hiwater.open(path).problems() == []
        read = naive_reader.read(path)
        read.check()
        leaves = [s for s in read.stacks("end") if s.leaf is not None and s.leaf.line == LINE_OF_KEEP]
        assert sum(s.bytes for s in leaves if s.kind == "native") == KEPT_BYTES * KEPT_BLOCKS


def test_threads_end_where_a_filter_allows_what_they_need_alone(tmp_path: Path) -> None:
    """A recorded thread asks as it ends whether a signal for another one is pending; then no more."""
    compiled.library("filters")
    (tmp_path / "program.py").write_text(
        "import ctypes, os, threading\n"
        "filters = ctypes.CDLL(os.path.join(os.environ['HIWATER_TEST_LIBRARIES'], 'filters.so'))\n"
        "def work():\n    return [0] * 1000\n"
        "for number in range(6):\n"
        "    if number == 3:\n        print(filters.forbid_pending(), flush=True)\n"
        "    thread = threading.Thread(target=work)\n    thread.start()\n    thread.join()\n"
        "print('whole')\n"
    )
    done = run_hiwater("run", "-o", "a.hiw", "program.py", folder=tmp_path, check=True)
    assert done.stdout == "0\nwhole\n"
