"""The control file of a program in standby: 4 KiB that it has mapped. Who may write to it may have the program recorded.

It lies in /dev/shm, or in the folder for temporary files, and only its owner may read and write it. Others find it through /proc/PID/maps, also from
outside of a container (`control_request`). A request is a number that grows, and a JSON object; the answer has the same number.

Every interpreter of a program in standby loads this when it starts, so it loads nothing in turn before there is a request.
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


def create() -> tuple[str, int]:
    """Make the control file of this process; return its path and a descriptor. Raises OSError."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    prefix = f"hiwater-{os.getuid()}-{namespace}-"
    for folder in ("/dev/shm", os.environ.get("TMPDIR") or "/tmp"):  # noqa: S108 - made with O_EXCL and for the owner alone
        try:
            _sweep(folder, prefix)
            path = f"{folder}/{prefix}{os.getpid()}-{start_ticks_of(os.getpid())}.ctl"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            failed = error
            continue
        os.write(descriptor, MAGIC.ljust(BYTES, b"\0"))
        return path, descriptor
    raise failed


def _sweep(folder: str, prefix: str) -> None:
    """Remove the files that killed processes of this user and namespace left."""
    for name in os.listdir(folder):
        if name.startswith(prefix) and name.endswith(".ctl"):
            pid, _, ticks = name[len(prefix) : -len(".ctl")].partition("-")
            if pid.isdecimal() and str(start_ticks_of(int(pid))) != ticks:
                os.unlink(f"{folder}/{name}")


def pending(content: Any) -> dict[str, Any] | None:
    """For the process itself: the request in its mapping `content` that has no answer yet."""
    if content[ASKED : ASKED + 4] == content[ANSWERED : ANSWERED + 4]:
        return None
    request: dict[str, Any] = parsed(content[REQUEST : REQUEST + ROOM])
    return request


def answer(content: Any, said: dict[str, Any]) -> None:
    """For the process itself: put the answer into its mapping. The number comes last."""
    import json

    text = json.dumps(said).encode("ascii")
    content[ANSWER : ANSWER + ROOM] = (text if len(text) <= ROOM else b"{}").ljust(ROOM, b"\0")
    content[ANSWERED : ANSWERED + 4] = content[ASKED : ASKED + 4]


def parsed(text: bytes) -> Any:
    """The JSON object of a request or an answer."""
    import json

    return json.loads(bytes(text).rstrip(b"\0") or b"{}")
