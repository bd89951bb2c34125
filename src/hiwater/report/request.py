"""What a view is asked to show: a capture, a moment, a kind of memory, and how finely frames are told apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from hiwater.analysis.call_tree import Grouping
from hiwater.analysis.reconcile import standard_error_bytes
from hiwater.capture import Capture, Snapshot
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.snapshot import Holdings
from hiwater.errors import CorruptCapture
from hiwater.report.formatting import printable, size

SHOWN_KINDS = ("all", *COUNTED_KINDS)


@dataclass(frozen=True)
class Report:
    """One capture as asked for. `holdings` is what every view shows, largest first."""

    capture: Capture
    snapshot: Snapshot
    kind: str = "all"
    by: Grouping | None = None
    inverted: bool = False
    top: int = 10
    files: tuple[str, ...] = ()  # for views of source: these alone, by their paths or the ends of them
    libraries: bool = False  # for views of source: those that are not the program's own, too
    is_one_of_several: bool = False  # then its title says which
    recursion: str = "auto"  # for stacks that are written whole: "auto", "once" or "whole"
    remarks: list[str] = field(default_factory=list)  # what whoever asked has to know of how it was written

    @cached_property
    def holdings(self) -> Holdings:
        """Raises CorruptCapture when something holds less than nothing."""
        holdings = self.snapshot.holdings(self.kind)
        if len(holdings.bytes) and int(holdings.bytes.min()) < 0:
            raise CorruptCapture(
                f"the capture is damaged: a stack holds {int(holdings.bytes.min())} bytes", "record again"
            )
        return holdings

    @cached_property
    def problems(self) -> list[str]:
        return self.capture.problems()

    @property
    def grouping(self) -> Grouping:
        return self.by or Grouping.stack

    def exactness(self, snapshot: Snapshot) -> str:
        """How far the sum of a moment can be trusted, in a few words."""
        if self.capture.lost_events:
            return "not exact: events were lost"
        if self.capture.misses_calls:
            return "at least: some calls could not be recorded"
        if self.problems:
            return "in doubt: the capture contradicts itself"
        error_bytes = standard_error_bytes(snapshot)
        if error_bytes:
            return f"estimate, standard error ≤ {size(error_bytes)}"
        if self.capture.device is not None and self.capture.facts.get("events") == "0":
            return "exact, as of when it was taken: what came before is not known"
        if self.capture.live_before_bytes:
            return "exact since the history began, which was not at the start"
        return "exact" if self.capture.process.stop_reason is None else "exact until recording stopped"

    @property
    def program(self) -> str:
        """The program, in one line."""
        capture = self.capture
        if capture.device is not None:
            return " · ".join(filter(None, (capture.facts.get("program"), capture.device)))
        argv = list(capture.process.argv)
        argv[:1] = [argument.rsplit("/", 1)[-1] for argument in argv[:1]]
        return capture.facts.get("program") or " ".join(argv) or f"process {capture.process.pid}"

    @property
    def title(self) -> str:
        """The program; of several processes, with which of them it is."""
        if not self.is_one_of_several or self.capture.device is not None:
            return self.program
        rank = f"rank {self.capture.facts['rank']}, " if self.capture.facts.get("rank") else ""
        return f"{self.program} ({rank}process {self.capture.process.pid})"

    @property
    def process(self) -> str:
        """Which process this is about: its rank in a job, its number, its machine."""
        facts = self.capture.facts
        rank = f"rank {printable(facts['rank'], 12)} · " if facts.get("rank") else ""
        host = f" on {printable(facts['host'], 40)}" if facts.get("host") else ""
        return f"{rank}{self.capture.process.pid}{host}"

    @property
    def snapshot_words(self) -> str:
        """When the figures hold."""
        snapshot = self.snapshot
        at = f"{snapshot.at_ns / 1e9:.2f} s"
        if snapshot.name == "slice":
            return (
                f"the highest moment between {snapshot.start_ns / 1e9:.2f} s and {snapshot.end_ns / 1e9:.2f} s, at {at}"
            )
        if snapshot.name == "oom":
            return f"the moment memory was refused, at {at}"
        return f"the peak, at {at}" if snapshot.name == "peak" else f"the end, at {at}"
