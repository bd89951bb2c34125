"""What a report shows: a capture, a moment, a kind of memory, and a grouping of frames."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from hiwater._os import sizes
from hiwater._os.signals import signal_name
from hiwater.analysis.call_tree import Grouping
from hiwater.capture import Capture, Run, ShortProcess, Snapshot
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.process import runs_on
from hiwater.capture.run_index import process_count
from hiwater.capture.snapshot import Holdings
from hiwater.report.formatting import printable, seconds, size

SHOWN_KINDS = ("all", *COUNTED_KINDS)


def run_of(reports: Sequence[Report]) -> Run:
    """The run that these reports are of."""
    return reports[0].run or Run([report.capture for report in reports])


def process_words(captures: Sequence[Capture], short: Sequence[ShortProcess] = ()) -> str:
    """How many processes these are, and how many programs: a process may execute one after the other."""
    processes, programs = process_count(captures, short), len(captures) + len(short)
    words = f"{processes:,} process{'' if processes == 1 else 'es'}"
    if programs == processes:
        return words
    return f"{words} ({programs:,} programs{', one after another' if processes == 1 else ''})"


def exit_words(code: int | None) -> str:
    """An exit code in words, "" for 0. A negative code is the number of the signal that ended the process."""
    if code is not None and code < -1:
        return f"killed ({signal_name(-code)})"
    return f"exit code {code}" if code else ""


@dataclass(frozen=True)
class Report:
    """One capture and the options of its report. `holdings` is what every format shows, largest first."""

    capture: Capture
    moment: Snapshot | str | float  # a snapshot of the capture, or what `Capture.snapshot()` takes
    kind: str = "all"
    by: Grouping | None = None
    inverted: bool = False
    top: int = 10
    libraries: bool = False  # for annotated source: also files outside the program
    is_one_of_several: bool = False  # then its title says which
    run: Run | None = None  # all processes that are reported together
    kept: bool = False  # a page shows at first what is live at the end
    recursion: str = "auto"  # for stacks that are written whole: "auto", "once" or "whole"
    frames: str = "python"  # which frames a page shows at first
    remarks: list[str] = field(default_factory=list)  # messages for the caller on how it was written

    @property
    def snapshot(self) -> Snapshot:
        """Raises MomentOutOfRange."""
        if isinstance(self.moment, Snapshot):
            return self.moment
        moment = self.moment
        return self.capture.remembered(moment, lambda: self.capture.snapshot(moment))

    @property
    def holdings(self) -> Holdings:
        """Raises CorruptCapture when something holds less than nothing."""
        return self.capture.remembered(
            ("holdings", self.moment, self.kind), lambda: self.snapshot.holdings(self.kind).checked()
        )

    @property
    def problems(self) -> list[str]:
        return self.capture.problems()

    @property
    def grouping(self) -> Grouping:
        return self.by or Grouping.stack

    def exactness(self, snapshot: Snapshot) -> str:
        """The accuracy of the sum of a moment, in a few words."""
        if self.capture.lost_events:
            return sizes.LOST
        if self.capture.misses_calls:
            return sizes.MISSED
        if self.problems:
            return "in doubt: the capture contradicts itself"
        error_bytes = snapshot.standard_error_bytes
        if error_bytes:
            return sizes.accuracy_of_estimate(error_bytes)
        if self.capture.device is not None and self.capture.facts.get("events") == "0":
            return "exact, as of when it was taken: what came before is not known"
        if self.capture.live_before_bytes:
            return "exact since the history began, which was not at the start"
        return "exact" if self.capture.process.stop_reason is None else "exact until recording stopped"

    @property
    def program(self) -> str:
        capture = self.capture
        if capture.device is not None:
            return " · ".join(filter(None, (capture.facts.get("program"), capture.device)))
        argv = list(capture.process.argv)
        argv[:1] = [argument.rsplit("/", 1)[-1] for argument in argv[:1]]
        return capture.facts.get("program") or " ".join(argv) or f"process {capture.process.pid}"

    @property
    def title(self) -> str:
        """The program; with several processes, also the process."""
        if not self.is_one_of_several or self.capture.device is not None:
            return self.program
        rank = f"rank {self.capture.facts['rank']}, " if self.capture.facts.get("rank") else ""
        return f"{self.program} ({rank}process {self.capture.process.pid})"

    @property
    def process(self) -> str:
        """The process: its rank in a job, and after which restart, or its name in a cluster's engine; its number,
        its machine."""
        facts = self.capture.facts
        restart = f" (restart {printable(facts['restart'], 12)})" if facts.get("restart", "0") != "0" else ""
        rank = f"rank {printable(facts['rank'], 12)}{restart} · " if facts.get("rank") else ""
        host = f" on {printable(facts['host'], 40)}" if facts.get("host") else ""
        worker = f"{printable(facts['worker'], 40)} · " if facts.get("worker") else ""
        return f"{rank}{worker}{self.capture.process.pid}{host}"

    @property
    def is_dead(self) -> bool:
        """Whether a signal ended the process while it had work."""
        process = self.capture.process
        return (process.ended == "killed" and not self._was_idle) or (process.exit_code or 0) < -1

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the process was refused memory, and then was killed or failed. In a job, others fail because this
        one did."""
        process = self.capture.process
        has_failed = process.ended == "killed" or process.exit_code not in (None, 0)
        return has_failed and self.capture.was_refused

    @property
    def end_words(self) -> str:
        """How the process ended, in a table; "" for exit code 0."""
        refused = ", memory was refused" if self.is_out_of_memory else ""
        return f"{self._end_words}{refused}"

    @property
    def _was_idle(self) -> bool:
        """Whether a worker of Spark's had no task when it was killed: Spark kills the workers that it no longer
        needs."""
        phases = self.capture.scopes
        is_open = any(phase.allocated_end_bytes is None for phase in phases)
        return self.capture.facts.get("engine") == "spark" and len(phases) > 0 and not is_open

    @property
    def _end_words(self) -> str:
        process = self.capture.process
        if process.ended == "killed" and self._was_idle:
            return "ended by Spark, idle"
        if process.ended == "killed":
            return f"killed{self._death_words or f', no sign of life since {seconds(process.duration_ns)}'}"
        if process.ended_by == "exec":
            return "executed another program"
        if process.ended == "exit" and runs_on(self.capture.header):
            return "still runs, not recorded"
        return "still runs" if process.ended == "recording" else exit_words(process.exit_code)

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, as its capture or its parent knows it."""
        process = self.capture.process
        if process.signal is None and process.ended == "killed" and self.run is not None:
            return self.run.signals.get(process.pid)
        return process.signal

    @property
    def _death_words(self) -> str:
        """What ended a killed process, in parentheses; "" if nothing is known."""
        if self.signal is None:
            return ""
        more = self.capture.process.ended_by
        return f" ({f'{more}, ' if more not in ('', 'signal') else ''}{signal_name(self.signal)})"

    @property
    def process_words(self) -> str:
        """The version of Python, the process, and how it ended."""
        python = self.capture.process.python
        return (f"Python {printable(python, 40)} · " if python else "") + self.ending_words

    @property
    def ending_words(self) -> str:
        """The process, and how it ended. A recording that somebody ended tells nothing of the end of its process."""
        process = self.capture.process
        code = f" with exit code {process.exit_code}" if process.exit_code not in (None, 0) else ""
        if self.capture.is_timeline:
            how = f"{self._sampling_words}{code} after"
        elif process.ended == "killed":
            how = f"was killed{self._death_words}{code} after"
        elif process.ended == "recording":
            how = "is still running after"
        elif process.ended_by == "exec":
            how = "executed another program after"
        elif process.ended_by == "_exit":
            how = f"ended by _exit({process.exit_code}) after"
        elif process.exit_code is not None:
            how = f"ended{code} after"
        else:
            how = "was recorded for"
        since = ""
        if "attached" in self.capture.facts:
            began = time.localtime(process.started_unix_ns / 1e9)
            since = f", recorded since {time.strftime('%H:%M:%S', began)} (attached)"
        more = ", and still runs" if process.ended == "exit" and runs_on(self.capture.header) else ""
        return f"process {process.pid} {how} {seconds(process.duration_ns)}{since}{more}"

    @property
    def _sampling_words(self) -> str:
        """How the end came of a process that was watched from outside."""
        process, watched = self.capture.process, self.capture.processes
        if process.ended == "exit" and watched and watched[0].end_ns is None:
            return "ran on when sampling stopped"
        return {"exit": "ended", "killed": "sampler was killed", "recording": "is still being sampled"}[process.ended]

    @property
    def own_code_words(self) -> str:
        """What counts as the user's own code; "" for a capture that does not say."""
        words = self.capture.own_code
        return f"own code: {printable(words, 400)}" if words else ""

    @property
    def resident_words(self) -> str:
        """The program's peak of resident memory, in a table; ≥ stands before a lower bound."""
        resident = self.capture.resident
        return f"{'≥ ' if resident.is_lower_bound else ''}{size(resident.program_peak_bytes)}"

    @property
    def mode_words(self) -> str:
        """Which blocks were recorded."""
        process = self.capture.process
        if process.mode == "exact":
            return "not every block recorded" if self.capture.lost_events else "every block recorded"
        return f"blocks below {size(process.sample_bytes)} sampled"

    @property
    def snapshot_words(self) -> str:
        """The moment of the figures, in words."""
        snapshot = self.snapshot
        at = seconds(snapshot.at_ns)
        if snapshot.name == "slice":
            return f"the highest moment between {seconds(snapshot.start_ns)} and {seconds(snapshot.end_ns)}, at {at}"
        if snapshot.name == "oom":
            return f"the moment memory was refused, at {at}"
        return f"the peak, at {at}" if snapshot.name == "peak" else f"the end, at {at}"
