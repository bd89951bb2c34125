"""speedscope's own format: a profile of bytes and one of blocks for each capture. Its schema is in tests/data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TextIO

from hiwater.capture import Frame
from hiwater.capture.paths import Ints
from hiwater.capture.snapshot import Holdings
from hiwater.report.export.measures import EXPORTER, NO_FRAME, measures
from hiwater.report.formatting import printable
from hiwater.report.path_texts import PathTexts, joined, write_bytes
from hiwater.report.request import Report
from hiwater.report.whole_stacks import WholeStacks, whole_stacks

_WEIGHTS_AT_ONCE = 50_000
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """Stacks in the order of all reports, root first, as samples whose weights are bytes, and again with blocks as
    weights.

    Recursion too deep to be written whole is written once. Raises ReportTooLarge.
    """
    every = [(report, whole_stacks(report)) for report in reports]
    frames = _Frames()
    name = " · ".join(printable(report.title, 80) for report in reports[:3])
    head = {"$schema": _SCHEMA, "exporter": EXPORTER, "name": name, "activeProfileIndex": 0}
    stream.write(json.dumps(head)[:-1] + ',\n"profiles": [')
    for number, (report, whole) in enumerate(every):
        held = whole.holdings(report.holdings)
        of_process = f"process {report.capture.process.pid}: " if len(reports) > 1 else ""
        for unit, weights in (("bytes", held.bytes), ("none", held.blocks)):
            what = "bytes" if unit == "bytes" else "blocks (a count, not bytes)"
            said = {"type": "sampled", "name": f"{of_process}{what}: {measures(report)}", "unit": unit,
                    "startValue": 0, "endValue": int(weights.sum())}  # fmt: skip
            stream.write(
                ("" if number == 0 and unit == "bytes" else ",") + "\n" + json.dumps(said)[:-1] + ',\n"samples": ['
            )
            write_bytes(stream, _samples(whole, held, frames))
            stream.write('],\n"weights": [')
            write_bytes(stream, _weights(weights))
            stream.write("]}")
    stream.write('],\n"shared": {"frames": [')
    stream.write(",\n".join(json.dumps(frame) for frame in frames.as_data()))
    stream.write("]}\n}\n")


class _Frames:
    """Numbers for frames, in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}

    def number(self, frame: Frame) -> bytes:
        return b"%d" % self._numbers.setdefault(frame, len(self._numbers))

    def as_data(self) -> Iterator[dict[str, object]]:
        for frame in self._numbers:
            said: dict[str, object] = {"name": frame.function or "?"}
            if frame.file:
                said["file"] = frame.file
            if frame.line:
                said["line"] = frame.line
            yield said


def _samples(whole: WholeStacks, held: Holdings, frames: _Frames) -> Iterator[bytes]:
    texts = PathTexts(whole.call_tree, frames.number, b",")
    leaves = whole.call_tree.place[held.node]
    for part in texts.chunks(leaves):
        heads = [b",\n[" if number else b"\n[" for number in range(part.start, min(part.stop, len(leaves)))]
        tails = [frames.number(NO_FRAME) + b"]" if leaf == 0 else b"]" for leaf in leaves[part].tolist()]
        yield joined(heads, *texts.pieces_of(leaves[part]), tails)


def _weights(weights: Ints) -> Iterator[bytes]:
    for first in range(0, len(weights), _WEIGHTS_AT_ONCE):
        part = ",".join(map(str, weights[first : first + _WEIGHTS_AT_ONCE].tolist()))
        yield (b"," if first else b"") + part.encode("ascii")
