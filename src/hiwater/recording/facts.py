"""What a capture says about its process. Never the environment, which holds secrets, but for the rank in a job."""

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
    """Return the facts for a capture; `argv` is the program's own, or None to leave it out."""
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
        facts["cwd"] = ""  # it was removed
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
    """Return what tells later whether the kernel's OOM killer came: the file with its count, and the count as of now."""
    return {"cgroup_events": group.events_file, "oom_kills": str(group.events().get("oom_kill", 0))}


def library_prefixes() -> list[str]:
    """Return the folders whose code is not the user's own: the standard library, its frozen part, installed packages."""
    standard = os.path.dirname(os.__file__)
    prefixes = ["<frozen ", standard + os.sep]
    for entry in sys.path:
        folder = entry.rstrip(os.sep)
        if os.path.basename(folder) in {"site-packages", "dist-packages", "lib-dynload"}:
            prefixes.append(folder + os.sep)
    return list(dict.fromkeys(prefixes))


def internal_prefix() -> str:
    """Return the folder of hiwater's own code, whose frames are in no stack."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def json_list(texts: Sequence[str]) -> str:
    """Return `texts` as a JSON list."""
    return "[" + ", ".join(map(_json_string, texts)) + "]"


def _json_string(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'  # as most are: the program's start is spared a library
    # The C half of the json module alone: json itself would load `re`, too.
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(text)
