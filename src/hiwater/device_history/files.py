"""Reads histories as contents of captures: files of their own, and histories that a recording attached to its capture.

The first bytes of a file decide its format, not its name. Each device of several is a capture, named `FILE/cuda:0`.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hiwater.capture import bounds
from hiwater.capture.format import MAGIC
from hiwater.capture.layout import corrupt
from hiwater.capture.reader import Contents, open_file
from hiwater.errors import CorruptCapture, ForeignFile, MissingCapture, TruncatedCapture

if TYPE_CHECKING:  # imported only if there is a history
    from hiwater.device_history.events import DeviceHistory

# What a recording attaches, and how it is read; the other end is recording/device_histories.py.
_TORCH = "torch.pickle"
_JAX = "jax.pb.gz"


def read_all(path: str | os.PathLike[str]) -> list[Contents]:
    """The devices of a torch snapshot or of a pprof profile of device memory.

    Raises MissingCapture, ForeignFile, TruncatedCapture, CorruptCapture, or ExtraMissing where a profile needs
    protobuf.
    """
    place = Path(path)
    with open(open_file(place), "rb") as stream:
        state = os.fstat(stream.fileno())
        if state.st_size > bounds.LARGEST_HISTORY_BYTES:
            raise ForeignFile("the file is larger than any history of memory", "give one that torch or JAX wrote")
        try:
            content, taken_unix_ns = stream.read(state.st_size), state.st_mtime_ns
        except OSError as error:
            raise MissingCapture(f"{str(place)!r} cannot be read ({error.strerror})", "check the disk") from error
    from hiwater.device_history import plain_pickle, snapshot

    histories = snapshot.read(content) if plain_pickle.is_pickle(content) else _profile(content)
    return _contents(place, histories, taken_unix_ns, {"program": place.name})


def read_attached(contents: Contents, members: Mapping[str, bytes], facts: Mapping[str, str]) -> list[Contents]:
    """The histories among the `members` that a recording attached to its capture. Each gets the `facts` of the
    recording."""
    ended = contents.header["started_unix_ns"] + (contents.header["ended_ns"] or contents.header["heartbeat_ns"])
    found = []
    from hiwater.device_history import snapshot

    for name, content in members.items():
        if name == _TORCH:
            if content.count(b"}") + content.count(b"]") > bounds.MOST_ATTACHED_OBJECTS:  # each makes a dict or a list
                raise corrupt(f"{name} holds more objects than a recording attaches")
            histories = snapshot.read(content)
        elif name == _JAX:
            histories = _profile(content)
        else:
            continue  # a member of a later version
        found += _contents(contents.path, histories, ended, facts, is_inside=True)
    return found


def _contents(
    place: Path,
    histories: list[DeviceHistory],
    taken_unix_ns: int,
    facts: Mapping[str, str],
    *,
    is_inside: bool = False,
) -> list[Contents]:
    from hiwater.device_history import build

    several = is_inside or len(histories) > 1
    return [
        build.contents(place / history.device if several else place, history, taken_unix_ns, facts)
        for history in histories
    ]


def _profile(content: bytes) -> list[DeviceHistory]:
    import gzip

    from hiwater.device_history import jax_profile

    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            most = bounds.most_unpacked(len(content))
            unpacked = stream.read(most + 1)
            if unpacked.startswith(MAGIC):
                raise ForeignFile("the file is a capture that was gzipped", "unpack it first, as `gunzip` does")
    except EOFError as error:
        raise TruncatedCapture("the profile is truncated", "copy it again whole, or make it again") from error
    except (OSError, zlib.error) as error:
        raise CorruptCapture(f"the profile is damaged ({error})", "copy it again whole, or make it again") from error
    if len(unpacked) > most:
        raise ForeignFile("the file unpacks to more than any profile of memory", "give one that JAX's profiler wrote")
    return jax_profile.histories(unpacked)
