"""A script that a process runs at its next chance between two instructions of Python, and that leaves its answer in a
file.

There is no other sign of life: a main thread that is in C code never gets there. `remote_exec` and `gdb` bring the
script into the process.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
import time

from hiwater._os import control_file, procfs, trust
from hiwater._os.process_identity import owner_of, start_ticks_of
from hiwater.errors import AttachRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STANDBY = "start it with `hiwater run --standby`, then attaching needs nothing else"
_SCRIPT = """\
import sys
text = '{{"problem": "hiwater cannot be read there", "remedy": "install it in the environment of that program"}}'
rules = {{}}
try:
    with open({rules!r}, "rb") as file:
        exec(file.read(), rules)
    if rules["may_import"]():
        sys.path.append({folder!r})
        try:
            import json
            from hiwater.recording import attached
            said = attached.answer({request!r})
        except BaseException as error:
            said = {{
                "problem": f"hiwater cannot be imported there ({{type(error).__name__}}: {{error}})",
                "remedy": "install it in the environment of that program",
            }}
        finally:
            sys.path.remove({folder!r})
        text = json.dumps(said)
    else:
        text = {later!r}
except OSError:
    pass
with open({answer!r}, "r+b") as file:
    file.seek(0, 2)
    file.write(text.encode() + b"\\n")
"""
_NOTHING = """\
import posix
try:
    for name in posix.listdir({folder!r}):
        posix.unlink({folder!r} + "/" + name)
    posix.rmdir({folder!r})
except OSError:
    pass
"""
_LATER = '{"later": true}'
_BETWEEN_TRIES = 0.2
_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a folder of our own is made in one of them
_PREFIX = "hiwater-attach-"
_MOST_ANSWER_BYTES = 1 << 16
_SYSTEM_CALLS = {
    "0": "read", "7": "poll", "23": "select", "202": "futex", "230": "sleep", "232": "epoll_wait", "270": "select",
    "271": "poll", "281": "epoll_wait", "45": "recvfrom", "61": "wait4", "247": "waitid", "43": "accept",
    "288": "accept",
}  # fmt: skip


def ask(pid: int, request: dict[str, Any], timeout_seconds: float, bring: Callable[[int, str], None]) -> dict[str, Any]:
    """Have the process do what is requested, and return its answer. `bring` has it run the script at a path. Raises
    AttachRefused, and what `bring` raises.

    The process may belong to another user, who must not have this one write or give away a file of its own. So the
    folder and the script stay this user's. Of the other user's is one file, opened before it is given away and read
    through that descriptor: its answers, a line each. The script puts off what would disturb imports of the program,
    and is then brought again.
    """
    parent = _parent_of_folders()
    _sweep(parent)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-{start_ticks_of(pid)}-", dir=parent)
    script, place = f"{folder}/script.py", f"{folder}/answer.json"
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    rules = f"{here}/hiwater/recording/imports_under_way.py"
    _write(script, _SCRIPT.format(folder=here, rules=rules, request=request, answer=place, later=_LATER))
    answer = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _open_to_user_of(pid, folder, answer)
        try:
            said = _brought_until_answered(pid, script, answer, timeout_seconds, bring)
        except AttachRefused:
            shutil.rmtree(folder)
            raise
        except KeyboardInterrupt:
            _call_off(folder, script)
            raise
    finally:
        os.close(answer)
    if said is None:
        _call_off(folder, script)
        raise AttachRefused(
            f"process {pid} has not run hiwater's script for {timeout_seconds:.0f} s: {occupation(pid)}",
            f"try again when its main thread runs Python code, or {STANDBY}",
        )
    shutil.rmtree(folder)
    return said


def _brought_until_answered(
    pid: int, script: str, answer: int, timeout_seconds: float, bring: Callable[[int, str], None]
) -> dict[str, Any] | None:
    """The answer of the process; None if it does not run the script in time. Raises AttachRefused, and what `bring`
    raises."""
    until = time.monotonic() + timeout_seconds
    for number in itertools.count():
        bring(pid, script)
        line = _line_of(pid, answer, number, timeout_seconds)
        if line != _LATER.encode():
            return None if line is None else control_file.parsed(line)
        if time.monotonic() > until:
            raise AttachRefused(
                f"process {pid} was importing modules or going through sys.modules for {timeout_seconds:.0f} s, and"
                " hiwater would have disturbed it",
                "try again",
            )
        time.sleep(_BETWEEN_TRIES)
    return None


def _parent_of_folders() -> str:
    """Where the folder of a request may lie: nobody else can change the way to it, and so put another script or
    other files in its place. Raises AttachRefused."""
    for parent in (tempfile.gettempdir(), *_FOLDERS):
        if trust.is_safe_way(parent):
            return os.path.realpath(parent)
    raise AttachRefused(
        "other users could change the folder of the request: they may write to each folder for temporary files",
        "name one of your own with TMPDIR",
    )


def _open_to_user_of(pid: int, folder: str, answer: int) -> None:
    """Let the user of the process reach the script and write the answer; if that is this user, nothing is to be
    done."""
    owner = owner_of(pid)
    if owner is not None and owner[0] != os.geteuid():
        os.fchown(answer, *owner)
        os.chmod(f"{folder}/script.py", 0o644)
        os.chmod(folder, 0o711)  # noqa: S103 - to be entered, and neither listed nor changed


def _sweep(parent: str) -> None:
    """Remove the folders of requests to processes that have ended. A process that runs may still come to its script."""
    for name in os.listdir(parent):
        pid, ticks, *_ = [*name.removeprefix(_PREFIX).split("-"), ""]
        if not name.startswith(_PREFIX) or not pid.isdecimal() or str(start_ticks_of(int(pid))) == ticks:
            continue
        if trust.is_own_folder(f"{parent}/{name}"):
            shutil.rmtree(f"{parent}/{name}", ignore_errors=True)


def _line_of(pid: int, answer: int, number: int, timeout_seconds: float) -> bytes | None:
    """A line that the process writes into its file; None if it writes none in time. Raises AttachRefused if it ends
    before."""
    until = time.monotonic() + timeout_seconds
    while True:
        is_running = procfs.state_of(pid) not in {"Z", "X", ""}
        text = os.pread(answer, _MOST_ANSWER_BYTES, 0)
        lines = text.split(b"\n")
        if len(lines) > number + 1 or len(text) == _MOST_ANSWER_BYTES:
            return lines[min(number, len(lines) - 1)]
        if not is_running:
            raise AttachRefused(
                f"process {pid} ended before it ran hiwater's script", "record it from its start, with `hiwater run`"
            )
        if time.monotonic() > until:
            return None
        time.sleep(0.02)


def _call_off(folder: str, script: str) -> None:
    """Have the script do nothing but remove its folder, where it may: the process may run it at any time from now
    on, and would complain if it were gone. A folder that another user cannot remove goes with a later request."""
    _write(script, _NOTHING.format(folder=folder))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def interpreter(pid: int) -> tuple[int, int]:
    """The version of Python that a process runs. Raises AttachRefused if it runs none, or is in a container."""
    executable, version = _interpreter(pid)
    if version is None:
        raise AttachRefused(
            f"process {pid} runs {executable!r}, which is not Python", "give the id of a Python process"
        )
    for name, what in (("pid", "process numbers"), ("mnt", "files")):
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"):
            raise AttachRefused(
                f"process {pid} is in a container: it has a namespace of its own for {what}{_inner_number(pid)}",
                f"run `hiwater attach` in that container, or {STANDBY}",
            )
    return version


def _interpreter(pid: int) -> tuple[str, tuple[int, int] | None]:
    """The executable of a process, and the version of Python that it has loaded; None if it has none."""
    try:
        executable = os.readlink(f"/proc/{pid}/exe")
    except OSError as error:
        raise procfs.explained(pid, error) from None
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        found = re.search(r"/(?:libpython|python)3\.(\d+)[^/\n]*$", file.read(), re.MULTILINE)
    return executable, (3, int(found[1])) if found is not None else None


def of_status(pid: int, name: str) -> list[str]:
    """The words of a row of /proc/PID/status."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return next((line.split()[1:] for line in file if line.startswith(f"{name}:")), [])


def _inner_number(pid: int) -> str:
    numbers = of_status(pid, "NSpid")
    return f", where its number is {numbers[-1]}" if len(numbers) > 1 else ""


def ptrace_remedy() -> str:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        scope = "0"
    if scope != "0" and os.geteuid() != 0:
        return f"kernel.yama.ptrace_scope is {scope}: run this as root, or {STANDBY}"
    return (
        f"run hiwater as its user or as root, with CAP_SYS_PTRACE and no filter of system calls on ptrace, or {STANDBY}"
    )


def occupation(pid: int) -> str:
    """What the main thread of a process is doing, in words."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            number = file.read().split()[0]
    except OSError:
        number = ""
    if number in {"", "running"}:
        return "its main thread is running code that does not return to Python"
    return f"its main thread is in C code: {_SYSTEM_CALLS.get(number, f'system call {number}')}"
