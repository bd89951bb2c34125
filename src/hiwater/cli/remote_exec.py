"""Reaches a process that is not in standby through `sys.remote_exec()` (PEP 768), or says why that is impossible."""

from __future__ import annotations

import sys

from hiwater._os import procfs
from hiwater.cli import injected
from hiwater.errors import AttachRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OTHERWISE = f"{injected.STANDBY}; or give `--method gdb`, which stops it for a moment"


def ask(pid: int, request: dict[str, Any], timeout_seconds: float) -> dict[str, Any]:
    """Have the process do what is requested, and return its answer. Raises AttachRefused."""
    _refuse(pid)
    return injected.ask(pid, request, timeout_seconds, _bring)


def _bring(pid: int, script: str) -> None:
    try:
        sys.remote_exec(pid, script)  # type: ignore[attr-defined] # since 3.14
    except (OSError, RuntimeError) as error:
        raise AttachRefused(f"process {pid} does not allow a debugger ({error})", injected.ptrace_remedy()) from error


def _refuse(pid: int) -> None:
    """Raise AttachRefused for everything that is known to prevent it."""
    version = injected.interpreter(pid)
    if version < (3, 14) or sys.version_info[:2] != version:
        theirs, ours = (".".join(map(str, one)) for one in (version, sys.version_info[:2]))
        why = (
            f"Python {theirs} has no sys.remote_exec()"
            if version < (3, 14)
            else f"it runs Python {theirs}, this is {ours}"
        )
        remedy = _OTHERWISE if version < (3, 14) else f"use the hiwater of a Python {theirs}"
        raise AttachRefused(f"process {pid} is not in standby, and {why}", remedy)
    switch = _switch_off(pid)
    if switch:
        raise AttachRefused(f"process {pid} has remote debugging turned off ({switch})", _OTHERWISE)


def _switch_off(pid: int) -> str:
    words = procfs.command_of(pid)
    if "disable-remote-debug" in " ".join(words[:20]).replace("disable_remote_debug", "disable-remote-debug"):
        return "-X disable-remote-debug"
    with open(f"/proc/{pid}/environ", "rb") as file:
        names = [row.partition(b"=") for row in file.read().split(b"\0")]
    return (
        "PYTHON_DISABLE_REMOTE_DEBUG"
        if any(name == b"PYTHON_DISABLE_REMOTE_DEBUG" and value for name, _, value in names)
        else ""
    )
