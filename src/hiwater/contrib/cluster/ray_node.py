"""Ray, on each node at the end of a job: tasks that find the captures there and send them. They run in a worker that
is not recorded."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from hiwater.capture import copying
from hiwater.contrib.cluster.ray_worker import WHY_SUFFIX, folder
from hiwater.contrib.cluster.worker import PIECE_BYTES
from hiwater.errors import CaptureError


def found(job: str) -> list[tuple[str, str]]:
    """The captures of this node: for each its name and "", or the reason why there is none. Nodes that share a
    folder find the same."""
    place = _folder(job)
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return []
    captures = [(name, "") for name in names if name.endswith(".hiw")]
    for name in names:
        if name.endswith(WHY_SUFFIX) and name.removesuffix(WHY_SUFFIX) not in names:
            with open(os.path.join(place, name), encoding="utf-8") as file:
                captures.append((name.removesuffix(WHY_SUFFIX), file.read()))
    return captures


def pieces(job: str, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """These captures in compressed pieces, each with the name of its capture. Of a worker that still runs, the
    capture is as it was at one moment."""
    for name in names:
        content = memoryview(_content(os.path.join(_folder(job), name)))
        for start in range(0, len(content), PIECE_BYTES):
            yield name, zlib.compress(content[start : start + PIECE_BYTES], 1)


def _folder(job: str) -> str:
    from ray._private import worker as process

    return folder(process._global_node, job)


def _content(path: str) -> bytes | bytearray:
    with open(path, "rb") as file:
        try:
            return copying.copy(file.fileno())
        except CaptureError:
            return file.read()  # which the driver cannot read either, and says why
