"""The facts about the process in its capture. The environment may contain secrets, so only the rank in a job is taken from it."""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater import __version__
from hiwater._os.cgroup_files import Group, find
from hiwater.capture import destination

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def process_facts(argv: Sequence[str] | None) -> dict[str, str]:
    """Return the facts for a capture; `argv` is the program's, or None to omit it."""
    system = os.uname()
    facts = {
        "hiwater": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "implementation": sys.implementation.name,
        "executable": sys.executable or "",
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "host": system.nodename,
        "ppid": str(os.getppid()),
    }
    rank = destination.rank()
    if rank is not None:
        facts["rank"] = rank
    try:
        facts["cwd"] = os.getcwd()
    except OSError:
        facts["cwd"] = ""  # the folder was removed
    if argv is not None:
        facts["argv"] = json_list(argv)
    return facts


def memory_group() -> Group | None:
    """Return the memory cgroup of this process, if one can be read."""
    try:
        return find()
    except (hiwater.errors.MeterUnavailable, OSError, ValueError):
        return None


def group_facts(group: Group) -> dict[str, str]:
    """Return what shows later whether the kernel's OOM killer ran: the file with its count, and the count now."""
    return {"cgroup_events": group.events_file, "oom_kills": str(group.events().get("oom_kill", 0))}


def library_prefixes() -> list[str]:
    """Return the folders of library code: the standard library, its frozen modules, and installed packages."""
    standard = os.path.dirname(os.__file__)
    prefixes = ["<frozen ", standard + os.sep]
    for entry in sys.path:
        folder = entry.rstrip(os.sep)
        if os.path.basename(folder) in {"site-packages", "dist-packages", "lib-dynload"}:
            prefixes.append(folder + os.sep)
    return list(dict.fromkeys(prefixes))


def internal_prefix() -> str:
    """Return the folder of hiwater's code, whose frames are in no stack."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def json_list(texts: Sequence[str]) -> str:
    """Return `texts` as a JSON list."""
    return "[" + ", ".join(map(_json_string, texts)) + "]"


def _json_string(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # the usual case, which needs no library at the program's start
    # Only the C part of the json module: json itself would also load `re`.
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(text)
