"""Reaches a process that is not in standby through gdb. Only if the user asks for it: gdb stops the whole process for
about a second.

gdb adds a pending call to the interpreter, which runs it between two instructions of Python. Nothing else runs while
the process is stopped wherever it happens to be: no malloc, no Python. The text of the call is in a page that the
process maps for it, and keeps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from hiwater.cli import injected
from hiwater.errors import MORE_PROCESSES, AttachRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PAGE = 4096
_GDB_SECONDS = 60
_DONE, _CALLED = "hiwater: added", "hiwater: called"
_REFUSED = ("Operation not permitted", "ptrace: ", "Could not attach")


def ask(pid: int, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Have the process do what is requested, and return its answer. Raises AttachRefused."""
    _refuse(pid)
    try:
        try_out()
    except OSError as error:
        raise AttachRefused(f"gdb cannot be started ({error.strerror})", MORE_PROCESSES) from error
    return injected.ask(pid, request, timeout_seconds, _bring)


def _refuse(pid: int) -> None:
    """Raise AttachRefused for everything that is known to prevent it."""
    if shutil.which("gdb") is None:
        raise AttachRefused("there is no gdb here", f"install gdb, or {injected.STANDBY}")
    version = injected.interpreter(pid)
    if sys.version_info[:2] != version:
        theirs, ours = (".".join(map(str, one)) for one in (version, sys.version_info[:2]))
        raise AttachRefused(
            f"process {pid} runs Python {theirs}, this is {ours}", f"use the hiwater of a Python {theirs}"
        )
    tracer = injected.of_status(pid, "TracerPid")
    if tracer != ["0"]:
        raise AttachRefused(f"process {pid} has another debugger, process {' '.join(tracer)}", "end that one first")


def try_out() -> None:
    """Raise AttachRefused if gdb cannot call a function in a process, which a process of ours finds out.

    A gdb before 14 cannot on processors with AMX, whose registers need more room than it has. It has then stopped the
    process already, and the system call that this interrupted fails with an error that no program expects.
    """
    waits = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            done = _gdb(process.pid, [f'printf "{_CALLED} %d\\n", ((int (*)(void)) getpid)()'])
        finally:
            process.kill()
    if f"{_CALLED} {process.pid}" not in done.stdout and _refusal(done) is None:
        raise AttachRefused(
            f"this gdb cannot call functions in a process on this machine ({_last_message(done)})",
            "install gdb 14 or newer (older ones cannot on processors with AMX), or start the program with `hiwater run"
            " --standby`",
        )


def _bring(pid: int, script: str) -> None:
    text = f"{script}.call"
    with open(text, "wb") as file:
        file.write(f"exec(open({script!r}).read(), {{}})".encode().ljust(_PAGE, b"\0"))
    commands = [
        "set $page = ((void *(*)(void *, unsigned long, int, int, int, long)) mmap)(0, 4096, 3, 0x22, -1, 0)",
        f"restore {text} binary $page",
        "set $failed = ((int (*)(void *, void *)) Py_AddPendingCall)((void *) PyRun_SimpleString, $page)",
        f'printf "{_DONE} %d\\n", $failed',
    ]
    done = _gdb(pid, commands)
    if f"{_DONE} 0" in done.stdout:
        return
    refused = _refusal(done)
    if refused is not None:
        raise AttachRefused(f"process {pid} does not allow gdb to attach ({refused})", injected.ptrace_remedy())
    if f"{_DONE} -1" in done.stdout:
        raise AttachRefused(f"process {pid} has no room for another pending call", "try again")
    raise AttachRefused(f"gdb failed with process {pid} ({_last_message(done)})", injected.STANDBY)


def _gdb(pid: int, commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Have gdb attach to the process, carry out the commands, and detach from it."""
    words = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off", "-p", str(pid)]
    words += [word for one in commands for word in ("-ex", one)]
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=_GDB_SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise AttachRefused(
            f"gdb has not finished with process {pid} within {_GDB_SECONDS} s", injected.STANDBY
        ) from error


def _messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.strip() for line in done.stderr.splitlines() if line.strip()]


def _last_message(done: subprocess.CompletedProcess[str]) -> str:
    return next(reversed(_messages(done)), "no message")


def _refusal(done: subprocess.CompletedProcess[str]) -> str | None:
    """What the system said if it did not let gdb in."""
    return next((line for line in _messages(done) if any(word in line for word in _REFUSED)), None)
