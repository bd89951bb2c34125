"""A run that goes on: the processes that it consists of, which are shown together or one by one."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from hiwater.analysis.live import LiveProcess
from hiwater.analysis.live_all import AllProcesses
from hiwater.capture import follow, opening, run_folder, run_index
from hiwater.capture.follow import Follower
from hiwater.capture.run_index import Row, Unrecorded
from hiwater.errors import CaptureError, MissingCapture

_BEGINS_WITHIN_NS = 2_000_000_000


class LiveRun:
    """The processes of a run, in the order in which they were found."""

    def __init__(self, first: Follower | None, folder: Path) -> None:
        """`first` is the main capture, or that of the process that the viewer named: a child is shown alone.
        `folder` is that of the run, which its first child makes. Raises CaptureError."""
        facts = {} if first is None else opening.read(first.path).facts
        self.processes = [] if first is None else [LiveProcess(first, facts)]
        self._rows = list[Row]()
        self.all = AllProcesses(self.processes, self._rows)
        self._number = None if first is None or first.path.parent != folder else 0  # of the process that is shown alone
        self.folder_is_gone = False
        """Whether the run's folder cannot be read any more: processes that begin from then on are not found."""
        self._folder = folder
        self._had_folder = False
        self._run_id = None if first is None else facts.get("run_id", "")
        self._known: set[Path] = set()
        self._folder_changed_ns = self._index_bytes = 0
        self._find_new()
        if not self.processes:
            raise MissingCapture(f"there is no capture in {str(self._folder)!r}", "give the main capture of the run")

    @property
    def shown(self) -> LiveProcess | AllProcesses:
        """What the figures and rows are of: all processes, or the only one, or the one that the viewer chose. Where
        none runs any more, the first."""
        if self._number is None and len(self.processes) > 1 and self.is_running:
            return self.all
        return self.processes[self._number or 0]

    @property
    def unrecorded(self) -> list[Unrecorded]:
        """Python processes that were started two seconds ago or earlier, and are not recorded."""
        before = time.time_ns() - _BEGINS_WITHIN_NS
        return [one for one in self.all.run.unrecorded if one.at_unix_ns < before]

    @property
    def is_running(self) -> bool:
        """Whether any process is still recorded."""
        return any(process.is_running for process in self.processes)

    def show_all(self) -> None:
        """Show all processes together."""
        self._number = None
        self.read()

    def show_next(self) -> None:
        """Show the next process that can be read."""
        number = -1 if self._number is None and self.shown is self.all else self._number or 0
        for following in (*range(number + 1, len(self.processes)), *range(number)):
            with suppress(CaptureError):
                self.processes[following].read()
                self._number = following
                return

    def read(self) -> None:
        """Read what has changed: all of what is shown, and the sums of the other processes. Raises CaptureError."""
        self._find_new()
        if self.shown is self.all:
            self.all.read()
        if (shown := self.shown) is not self.all:  # the last process may just have ended
            for process in self.processes:
                if process is not shown:
                    process.read_sums()
            shown.read()
            self.all.add_up()

    def set_marker(self) -> None:
        """From now on growth is counted from this moment, of all processes."""
        self._find_new()
        self.all.set_marker()
        shown = self.shown
        if isinstance(shown, LiveProcess) and not shown.is_read:  # it has ended, and was forgotten
            shown.read()

    @property
    def problems(self) -> list[str]:
        """What keeps the figures from being those of now, and what that means: a line for each."""
        found = [
            f"process {one.pid}: {one.problem}. Its figures do not change any more"
            for one in self.processes
            if one.problem
        ]
        if self.folder_is_gone:
            found.append(f"{str(self._folder)!r} is gone: processes that begin from now on are not shown")
        return found

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def _find_new(self) -> None:
        if self._run_id == "":
            return
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            self.folder_is_gone = self._had_folder
            return
        self.folder_is_gone, self._had_folder = False, True
        for path in sorted(self._folder.glob("*.hiw")) if changed_ns != self._folder_changed_ns else ():
            if path not in self._known:
                try:
                    self._add(path)
                except CaptureError:  # it is being made: it is tried again
                    changed_ns = 0
        self._folder_changed_ns = changed_ns
        new, self._index_bytes = run_index.read_folder(self._folder, self._run_id or "", self._index_bytes)
        self._rows += new

    def _add(self, path: Path) -> None:
        """Add a capture of the folder, if it belongs to the run."""
        run_folder.refuse_link(path)
        facts = opening.read(path).facts
        run_id = facts.get("run_id", "")
        self._run_id = self._run_id or run_id
        if run_id and run_id == self._run_id:
            self.processes.append(LiveProcess(Follower(path), facts))
        self._known.add(path)


def open_run(target: str) -> LiveRun:
    """The run that `target` names: a number is that of a process, everything else the path of a capture or of a
    run's folder. Raises CaptureError, NoSuchProcess or ProcessNotReadable."""
    if target.isdecimal():
        named = follow.capture_of(int(target))
        return LiveRun(named, run_folder.folder_of(named.path))
    places = run_folder.places(target)
    main = Path(target) if places is None else places.main
    return LiveRun(None if main is None else Follower(main), run_folder.folder_of(target))
