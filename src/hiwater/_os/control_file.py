"""The control file of a program in standby: 4 KiB that it has mapped. Who may write to it may have the program
recorded.

It lies in /dev/shm, or in the folder for temporary files, and only its owner may read and write it. Others find it
through /proc/PID/maps, also from outside of a container (`control_request`). A request is a number that grows, and a
JSON object; the answer has the same number.

Every interpreter of a program in standby loads this when it starts, so it loads nothing in turn before there is a
request.
"""

from __future__ import annotations

import os

from hiwater._os.process_identity import start_ticks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BYTES = 4096
MAGIC = b"HIWCTL1\n"
ASKED, ANSWERED = 8, 12
"""Where the numbers of the last request and of the last answer are, of 32 bits each."""
REQUEST, ANSWER, ROOM = 64, 2048, 1900
_MOST_SWEPT = 2000


def create() -> tuple[str, int]:
    """Make the control file of this process; return its path and a descriptor. Raises OSError."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    prefix = f"hiwater-{os.getuid()}-{namespace}-"
    name = f"{prefix}{os.getpid()}-{start_ticks_of(os.getpid())}-{os.urandom(8).hex()}.ctl"  # no one can take it first
    for folder in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp"):  # noqa: S108 - made with O_EXCL and for the owner alone
        try:
            _sweep(folder, prefix)
            return f"{folder}/{name}", _created(f"{folder}/{name}")
        except OSError as error:
            failed = error
    raise failed


def _created(path: str) -> int:
    """A descriptor of the new file. Where it has no room, nothing is left: under `ulimit -f 0`, for instance."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, MAGIC.ljust(BYTES, b"\0"))
    except OSError:
        os.close(descriptor)
        os.unlink(path)
        raise
    return descriptor


def _sweep(folder: str, prefix: str) -> None:
    """Remove the files that killed processes of this user and namespace left. Those that others made with such names
    stay; if they made very many, not all are looked at, because a program's start waits for this."""
    with os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST_SWEPT), entries, strict=False):
            name = entry.name
            if name.startswith(prefix) and name.endswith(".ctl"):
                pid, ticks, *_ = [*name[len(prefix) :].split("-"), ""]
                if pid.isdecimal() and str(start_ticks_of(int(pid))) != ticks:
                    try:  # noqa: SIM105 - contextlib would be loaded into the program
                        os.unlink(entry.path)
                    except OSError:
                        pass


def pending(content: Any) -> dict[str, Any] | None:
    """For the process itself: the request in its mapping `content` that has no answer yet."""
    if content[ASKED : ASKED + 4] == content[ANSWERED : ANSWERED + 4]:
        return None
    return parsed(content[REQUEST : REQUEST + ROOM])


def answer(content: Any, said: dict[str, Any]) -> None:
    """For the process itself: put the answer into its mapping. The number comes last."""
    import json

    text = json.dumps(said).encode("ascii")
    content[ANSWER : ANSWER + ROOM] = (text if len(text) <= ROOM else b"{}").ljust(ROOM, b"\0")
    content[ANSWERED : ANSWERED + 4] = content[ASKED : ASKED + 4]


def parsed(text: bytes) -> dict[str, Any]:
    """The JSON object of a request or an answer; {} if it is none. Another user may have written it."""
    import json

    try:
        found = json.loads(bytes(text).rstrip(b"\0\n"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
