"""A program in standby keeps no descriptor, starts as without it wherever it can have none, and nobody can take its
standby away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from children import run_hiwater
from hiwater._os import control_file
from other_user import UID, as_other_user, needs_other_users, shared_folder
from recording import child_environment, needs_engine

pytestmark = needs_engine

DESCRIPTORS = "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd'))))"
DAEMON = """
import os, socket
os.closerange(3, 256)
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
pid = os.fork()
if pid == 0:
    for server in servers:
        server.getsockname()
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), [server.fileno() for server in servers])
"""


def run(source: str, *, standby: bool, shell: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", source]
    if shell:
        words = (
            ["bash", "-c", f'{shell} "$0" "$@"', *words]
            if shell.endswith(";")
            else ["bash", "-c", f'"$0" "$@" {shell}', *words]
        )
    # CPython 3.13 warned of threads that are started after the fork, until 3.13.10: docs/limitations.md.
    quiet = {"PYTHONWARNINGS": "ignore:This process:DeprecationWarning"}
    environment = child_environment(quiet | ({"HIWATER": "standby"} if standby else {}))
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=environment)


@pytest.mark.parametrize("source", [DESCRIPTORS, DAEMON], ids=["descriptors", "daemon"])
@pytest.mark.parametrize("shell", ["", "<&-", "2>&-", "<&- 2>&-", "ulimit -f 0;"])
def test_it_is_as_without_standby(source: str, shell: str) -> None:
    plain, ours = run(source, standby=False, shell=shell), run(source, standby=True, shell=shell)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_very_many_files_with_its_names_do_not_hold_up_a_start(tmp_path: Path) -> None:
    for number in range(20_000):
        (tmp_path / f"hiwater-0-1-1-{number}.ctl").mkdir()  # which cannot be removed as a file
    begun = time.process_time()
    control_file._sweep(str(tmp_path), "hiwater-0-1-")
    assert time.process_time() - begun < 0.25


@needs_other_users
def test_files_with_its_names_do_not_deny_it() -> None:
    namespace = os.stat("/proc/self/ns/pid").st_ino
    others = [f"/dev/shm/hiwater-{UID}-{namespace}-{name}.ctl" for name in ("1-0", "1-0-00", "x", "")]
    for path in others:
        Path(path).write_bytes(b"")
    with shared_folder() as folder:
        process = subprocess.Popen(
            as_other_user(sys.executable, "-c", "print(7, flush=True); input()"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
            env=child_environment({"HIWATER": "standby"}),
        )  # fmt: skip
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is in standby before its first line
            done = run_hiwater("attach", process.pid, "-o", folder / "x.hiw", folder=folder)
        finally:
            _, said = process.communicate("\n")
            for path in others:
                Path(path).unlink()
    assert done.returncode == 0, done.stderr
    assert said == ""
