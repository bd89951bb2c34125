"""Where a capture and the last words of a program go: the name's pattern filled in, and checked before anything is
started."""

from __future__ import annotations

import os

import hiwater
from hiwater._os import process_identity, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PATTERN = "hiwater-{program}.%p.hiw"
MAGIC = b"\x89HIW\r\n\x1a\n"  # native/capture/format.h, kMagic

CHILDREN_SUFFIX = ".d"  # of the folder for the captures of children, beside the first process's
CHILDREN_INDEX = "index.jsonl"  # in it; native/session/children.cpp writes both
MERGED_INDEX = "hiwater.merged.json"  # first in a merged capture, which is a zip file (capture/container.py)
_ZIP_ENTRY, _ZIP_NAME_OFFSET = b"PK\x03\x04", 30
HEAD_BYTES = _ZIP_NAME_OFFSET + len(MERGED_INDEX)

# The first that is set names this process among its peers: torchrun, Open MPI, MPICH and PMIx launchers, Slurm.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
# The first that is set names what launched this process. A launcher inside an allocation of Slurm comes before Slurm.
_LAUNCHERS = {
    "TORCHELASTIC_RUN_ID": "torch", "OMPI_COMM_WORLD_RANK": "mpi", "PMI_RANK": "mpi", "PMIX_RANK": "mpi",
    "SLURM_PROCID": "slurm",
}  # fmt: skip
_RESTART_VARIABLES = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_LONGEST_NAME = 80
TERMINATION_LOG = "/dev/termination-log"
"""The default of Kubernetes' terminationMessagePath: what `kubectl describe pod` shows once the container has ended."""


def default_pattern(program: str) -> str:
    """Return the pattern for a capture of `program` that nobody named: in the current folder, unique by process id."""
    kept = "".join(character if character.isalnum() or character in "._-" else "_" for character in program)
    return DEFAULT_PATTERN.format(program=kept[:_LONGEST_NAME] or "program")


def expand(pattern: str, pid: int | None = None) -> str:
    """Return `pattern` with `%p` (process id: this one's, or `pid`), `%h` (host), `%r` (rank, 0 outside a job) and `%%`
    filled in.

    Raises CaptureUnwritable for any other `%`.
    """
    pieces: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if letter != "%":
            pieces.append(letter)
            continue
        code = next(letters, "")
        if code == "p":
            pieces.append(str(os.getpid() if pid is None else pid))
        elif code == "h":
            pieces.append(process_identity.host_name())
        elif code == "r":
            pieces.append(rank() or "0")
        elif code == "%":
            pieces.append("%")
        else:
            raise hiwater.errors.CaptureUnwritable(
                f"%{code} means nothing in {pattern!r}", "use %p (pid), %h (host), %r (rank) or %%"
            )
    return "".join(pieces)


def of_last_words(path: str | None) -> str:
    """Return the absolute path of the file that gets the last words of a program (native/session/last_words.h), "" for
    none. `path` None: HIWATER_LAST_WORDS, or Kubernetes' file if this is a pod that has it.

    Raises CaptureUnwritable as `expand` and `absolute` do.
    """
    if path is None and "HIWATER_LAST_WORDS" in os.environ and trust.obeys_environment():
        path = os.environ["HIWATER_LAST_WORDS"]
    if path is not None:
        return absolute(expand(path)) if path else ""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return TERMINATION_LOG if in_pod and os.access(TERMINATION_LOG, os.W_OK) else ""


def absolute(path: str) -> str:
    """Return `path` from the root. Raises CaptureUnwritable when it starts at a current folder that was removed."""
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise hiwater.errors.CaptureUnwritable(
            f"{path!r}: the current folder is gone", "give -o a path that starts at /"
        ) from error


def check(path: str) -> None:
    """Make sure that a capture can be made at `path` and takes nobody's data with it.

    Raises CaptureUnwritable, with what to do, when it cannot. An older capture and an empty file may be replaced.
    """
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder):
        raise hiwater.errors.CaptureUnwritable(
            f"{path!r}: there is no folder {folder!r}", "create it, or choose another file with -o"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise hiwater.errors.CaptureUnwritable(
            f"{path!r}: the folder {folder!r} is not writable", "choose another file with -o"
        )
    children = folder_of_children(path)
    if os.path.lexists(children) and not trust.is_own_folder(children):
        raise hiwater.errors.CaptureUnwritable(
            f"{children!r}, where the captures of child processes go, is not a folder of yours alone",
            "choose another file with -o",
        )
    if not os.path.lexists(path):
        return
    if os.path.islink(path):
        raise hiwater.errors.CaptureUnwritable(
            f"{path!r} is a symbolic link, and captures are not written through links",
            f"remove it, or give the file that it leads to ({os.path.realpath(path)!r}) with -o",
        )
    if not os.path.isfile(path):
        raise hiwater.errors.CaptureUnwritable(f"{path!r} is not a file", "choose another one with -o")
    if not os.access(path, os.R_OK | os.W_OK):
        raise hiwater.errors.CaptureUnwritable(f"{path!r} exists and is not writable", "choose another file with -o")
    head = head_of(path)
    if head and not head.startswith(MAGIC) and not is_merged(head):
        raise hiwater.errors.CaptureUnwritable(
            f"{path!r} exists and is not a capture", "move it away, or choose another file with -o"
        )


def folder_of_children(path: str) -> str:
    """Return the folder for the captures of the children of the process whose capture is at `path`."""
    return path + CHILDREN_SUFFIX


def forget_children(path: str) -> None:
    """Remove what the children of an earlier run with its capture at `path` left. The captures of those that still
    run stay."""
    folder = folder_of_children(path)
    if not trust.is_own_folder(folder):
        return  # there is none, or somebody put another one there
    names = os.listdir(folder)
    try:
        for name in names:
            pid = name.partition("-")[0]
            is_capture_of_child = pid.isdigit() and name.endswith(".hiw") and not os.path.exists(f"/proc/{pid}")
            if name == CHILDREN_INDEX or is_capture_of_child:
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        return  # something is left, and stays


def is_capture(path: str) -> bool:
    """Whether `path` is a capture, a merged one, one in a merged one, or may be a history of another library's."""
    head = head_of(path)
    if head.startswith(MAGIC) or is_merged(head) or is_history(head):
        return True
    above = head_of(os.path.dirname(path))  # then `path` may name one of several
    return is_merged(above) or is_history(above) or (not head and above.startswith(MAGIC))


def head_of(path: str | os.PathLike[str]) -> bytes:
    """The first bytes of a regular file; none for anything else, which could block, and for what cannot be read:
    opening it says why."""
    try:
        descriptor = trust.open_regular(path, follows=True)
    except (OSError, ValueError):
        return b""
    try:
        return os.read(descriptor, HEAD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def is_merged(head: bytes) -> bool:
    """Whether a file that begins with `head` is a merged capture."""
    return head.startswith(_ZIP_ENTRY) and head[_ZIP_NAME_OFFSET:HEAD_BYTES] == MERGED_INDEX.encode("ascii")


def is_history(head: bytes) -> bool:
    """Whether a file that begins with `head` may be a history of another library's: a pickle of protocol 2 to 5, or
    a gzipped profile."""
    return head[:2] == b"\x1f\x8b" or (head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"))


def explain(path: str, error: OSError) -> hiwater.errors.CaptureUnwritable:
    """Return the error to raise when the system refused to make the capture at `path`."""
    import errno  # python has not loaded it, and few need it

    reason = error.strerror or str(error)
    if error.errno == errno.EBUSY:
        return hiwater.errors.CaptureUnwritable(
            f"{path!r} is the capture of a process that is still running",
            "choose another file, or wait until that process has ended",
        )
    if error.errno == errno.ENOMEM:
        return hiwater.errors.CaptureUnwritable(
            f"there is no memory for a recording into {path!r} ({reason})",
            "raise the limit of address space or of data (ulimit -v, ulimit -d)",
        )
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        remedy = "make room there, or choose a file on another disk with -o"
    else:
        remedy = "choose another file with -o"
    return hiwater.errors.CaptureUnwritable(f"{path!r} cannot be written ({reason})", remedy)


def rank() -> str | None:
    """Return this process's number in a job; None outside one."""
    return _first_number(_RANK_VARIABLES)


def restart() -> str | None:
    """Return how often the launcher had restarted the processes of the job when this one began; None if it does not
    count."""
    return _first_number(_RESTART_VARIABLES)


def launcher() -> str | None:
    """Return the kind of launcher that started this process as one of a job: "torch", "mpi" or "slurm"; None outside
    a job."""
    return next((name for variable, name in _LAUNCHERS.items() if variable in os.environ), None)


def _first_number(variables: Sequence[str]) -> str | None:
    for variable in variables:
        number = os.environ.get(variable, "")
        if number.isdigit():
            return number
    return None
