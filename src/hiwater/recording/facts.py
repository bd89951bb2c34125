"""The facts about the process in its capture. The environment may contain secrets, so only the place in a job is
taken from it: rank, restarts, and which launcher it is."""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater import __version__
from hiwater._os import destination
from hiwater._os.cgroup_files import MemoryCgroup, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def process_facts(argv: Sequence[str] | None, own_code: str) -> dict[str, str]:
    """Return the facts for a capture; `argv` is the program's, or None to omit it, and `own_code` says what counts
    as the user's."""
    system = os.uname()
    facts = {
        "hiwater": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "executable": sys.executable or "",
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "host": system.nodename,
        "ppid": str(os.getppid()),
        "own_code": own_code,
    }
    job = {"engine": destination.launcher(), "rank": destination.rank(), "restart": destination.restart()}
    facts |= {name: value for name, value in job.items() if value is not None}
    try:
        facts["cwd"] = os.getcwd()
    except OSError:
        facts["cwd"] = ""  # the folder was removed
    if argv is not None:
        facts["argv"] = json_list(argv)
    return {name: value if value.isascii() else _readable(value) for name, value in facts.items()}


def _readable(text: str) -> str:
    """Return `text` without what is not UTF-8: in the C locale, names of folders may have come as single bytes."""
    return os.fsencode(text).decode("utf-8", "replace")


def memory_group() -> MemoryCgroup | None:
    """Return the memory cgroup of this process, if one can be read."""
    try:
        return find()
    except (hiwater.errors.MeterUnavailable, OSError, ValueError):
        return None


def group_facts(group: MemoryCgroup) -> dict[str, str]:
    """Return what shows later whether the kernel's OOM killer ran: the file with its count, and the count now."""
    return {"cgroup_events": group.events_file, "oom_kills": str(group.events().get("oom_kill", 0))}


def internal_prefix() -> str:
    """Return the folder of hiwater's code, whose frames are in no stack."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def json_list(texts: Sequence[str]) -> str:
    return "[" + ", ".join(map(_json_string, texts)) + "]"


def _json_string(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # the usual case, which needs no library at the program's start
    # Only the C part of the json module: json itself would also load `re`.
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(text)
