"""pprof's profile: total and live allocations, each in objects and bytes. Needs the package protobuf."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from typing import Any, BinaryIO, TextIO

import numpy as np

from hiwater.analysis.call_tree import CallTree
from hiwater.analysis.whole_run import is_of_several
from hiwater.capture import Frame
from hiwater.capture.format import KINDS
from hiwater.capture.layout import is_counted
from hiwater.capture.paths import Ints
from hiwater.errors import ExtraMissing
from hiwater.report.export.measures import EXPORTER, NO_FRAME, measures
from hiwater.report.formatting import printable
from hiwater.report.request import Report
from hiwater.report.whole_stacks import WholeStacks, whole_stacks

SAMPLE_TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)


def write(report: Report, stream: TextIO) -> None:
    """One gzipped profile. Of several processes at one instant it has no totals of the recording. A sample is a call
    path and a kind of memory (a label, as is the thread); recursion too deep to be written whole is written once.
    Raises ExtraMissing, ReportTooLarge."""
    try:
        from hiwater.device_history.pprof_proto import profile_pb2
    except ImportError as error:
        raise ExtraMissing.of("protobuf", "pprof", error) from error
    made: Any = profile_pb2  # its classes are generated at the import
    profile = _Builder(made.Profile(), report).build()
    stream.flush()
    below: BinaryIO = stream.buffer  # a StringIO has none, and nobody writes binary into one
    below.write(gzip.compress(profile.SerializeToString(), mtime=0))


class _Builder:
    """Fills a profile; pprof wants every text, function and location once, by number."""

    def __init__(self, profile: Any, report: Report) -> None:
        self._profile = profile
        self._report = report
        self._texts: dict[str, int] = {"": 0}
        self._functions: dict[Frame, int] = {}
        self._shows_totals = not is_of_several(report.capture)

    def build(self) -> Any:
        report, profile, accounts = self._report, self._profile, _accounts(self._report)
        whole = whole_stacks(report, report.capture.tables.account_node[accounts])
        for name, unit in SAMPLE_TYPES[0 if self._shows_totals else 2 :]:
            profile.sample_type.add(type=self._text(name), unit=self._text(unit))
        profile.default_sample_type = self._text("inuse_space")
        profile.period_type.type, profile.period_type.unit = self._text("space"), self._text("bytes")
        process = report.capture.process
        profile.period = process.sample_bytes or 1
        profile.time_nanos = min(process.started_unix_ns + report.snapshot.at_ns, (1 << 63) - 1)
        profile.duration_nanos = min(process.duration_ns, (1 << 63) - 1)
        said = (
            EXPORTER, printable(report.title, 200), f"inuse_*: {measures(report)}",
            *(
                ["alloc_*: blocks and requested bytes allocated over the whole recording, freed or not"
                + ("; estimates from sampled blocks" if process.sample_bytes else "")] if self._shows_totals else ()
            ),
            *(
                ["recursion is written once: a frame that calls itself stands for all its calls"]
                if whole.is_recursion_merged else ()
            ),
        )  # fmt: skip
        profile.comment.extend([self._text(text) for text in said])
        self._samples(accounts, whole)
        profile.string_table.extend(self._texts)
        return profile

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text.encode("utf-8", "replace").decode("utf-8"), len(self._texts))

    def _samples(self, accounts: Ints, whole: WholeStacks) -> None:
        report, capture = self._report, self._report.capture
        table = capture.tables["accounts"]
        node, kind_of, *columns = whole.joined(
            capture.tables.account_node[accounts], capture.tables.account_kind[accounts],
            table["total_blocks"][accounts].astype(np.int64), table["total_bytes"][accounts].astype(np.int64),
            report.snapshot.blocks[accounts], report.snapshot.bytes[accounts],
        )  # fmt: skip
        names, thread = capture.tables.paths.threads(node)
        kinds = [KINDS[number] for number in kind_of.tolist()]
        paths = _PathLocations(whole.call_tree, self._location)
        columns = columns if self._shows_totals else columns[2:]
        leaves, rows = whole.call_tree.place[node].tolist(), np.stack(columns, axis=1).tolist()
        for leaf, values, kind, number in zip(leaves, rows, kinds, thread.tolist(), strict=True):
            sample = self._profile.sample.add(location_id=paths.of(leaf), value=values)
            sample.label.add(key=self._text("kind"), str=self._text(kind))
            if names[number]:
                sample.label.add(
                    key=self._text("thread" if self._shows_totals else "process"),
                    str=self._text(printable(names[number])),
                )

    def _location(self, frame: Frame, function: Frame) -> int:
        number = len(self._profile.location) + 1
        line = self._profile.location.add(id=number).line.add()
        line.function_id, line.line = self._function(replace(function, function=frame.function)), frame.line
        return number

    def _function(self, function: Frame) -> int:
        """The number of a function; `function` has its first line, by which pprof tells equal names of a file apart,
        too."""
        known = self._functions.get(function)
        if known is None:
            known = self._functions[function] = len(self._functions) + 1
            name, file = self._text(printable(function.function) or "?"), self._text(printable(function.file))
            self._profile.function.add(id=known, name=name, system_name=name, filename=file, start_line=function.line)
        return known


class _PathLocations:
    """The locations of paths, innermost first as in pprof. Each location is made at its first use."""

    def __init__(self, call_tree: CallTree, location: Callable[[Frame, Frame], int]) -> None:
        self._frames, self._functions, self._make = call_tree.frames, call_tree.functions, location
        self._parent, self._key = call_tree.parent.tolist(), call_tree.key.tolist()
        self._location = [0] * len(call_tree.frames)
        self._of_nothing: list[int] = []

    def of(self, node: int) -> list[int]:
        if node == 0:
            self._of_nothing = self._of_nothing or [self._make(NO_FRAME, NO_FRAME)]
            return self._of_nothing
        path = []
        while node:
            key = self._key[node]
            if not self._location[key]:
                self._location[key] = self._make(self._frames[key], self._functions[key])
            path.append(self._location[key])
            node = self._parent[node]
        return path


def _accounts(report: Report) -> Ints:
    """The accounts with live bytes at the moment, in the order of all reports, and after them those with only
    totals."""
    capture, snapshot = report.capture, report.snapshot
    kinds = capture.tables.account_kind
    wanted = is_counted(kinds) if report.kind == "all" else kinds == KINDS.index(report.kind)
    total = capture.tables["accounts"]["total_bytes"].astype(np.int64)
    is_held = (snapshot.bytes != 0) | (snapshot.blocks != 0)
    shown = np.flatnonzero(wanted & (is_held | (total != 0)))
    order: Ints = shown[np.lexsort((-total[shown] * ~is_held[shown], -snapshot.bytes[shown], ~is_held[shown]))]
    return order
