"""Collects the captures of a cluster's workers, on the driver, and merges them into the file of the job.

Captures that arrive as bytes wait on the disk of the job, so memory does not grow with their number.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from hiwater._os import destination
from hiwater.capture import packing
from hiwater.capture.run_index import Row
from hiwater.errors import CaptureError, NotRecording


class JobCaptures:
    """The captures of one job, from the first to `write()`; a context manager that removes what `write()` no longer
    needs."""

    def __init__(self, path: str | os.PathLike[str], *, engine: str) -> None:
        """Check that the job's file can be written at `path`. Raises CaptureUnwritable. An older capture there is
        replaced by `write()`."""
        self.path = destination.absolute(destination.expand(os.fspath(path)))
        destination.check(self.path)
        self._engine = engine
        self._packed: list[packing.Packed] = []
        self._rows: list[Row] = []
        self._received = 0
        self._folder: Path | None = None

    @property
    def captures(self) -> int:
        """The number of captures so far."""
        return len(self._packed)

    def add_file(self, path: str | os.PathLike[str], worker: str = "", host: str = "") -> bool:
        """Add the capture at `path`, which must stay there until `write()`. If it cannot be read, the worker counts
        as not recorded, and the result is False."""
        try:
            packed, rows = packing.pack(path)
        except CaptureError as error:
            self.lost(worker or os.path.basename(path), host, f"its capture cannot be read: {error.problem}")
            return False
        self._packed += packed
        self._rows += rows
        return True

    def add_pieces(self, pieces: Iterable[bytes], worker: str = "", host: str = "") -> bool:
        """Add a capture that arrives as `worker.pieces()` made it. If it is damaged, the worker counts as not recorded,
        and the result is False.

        Raises OSError if the disk of the job is full.
        """
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=".hiwater-job-", dir=os.path.dirname(self.path)))
        self._received += 1
        place = self._folder / f"{self._received}.hiw"
        try:
            with place.open("xb") as file:
                for piece in pieces:
                    file.write(zlib.decompress(piece))
        except zlib.error:
            self.lost(worker or f"number {self._received}", host, "its capture was damaged on the way here")
            return False
        return self.add_file(place, worker, host)

    def lost(self, worker: str, host: str, why: str, pid: int = 0) -> None:
        """Note a worker of which there is no capture, and why. `pid` is its process number, 0 if it is not known."""
        program = f"{self._engine} worker {worker}{f' on {host}' if host else ''}"
        now = time.time_ns()
        self._rows.append({
            "event": "started", "run": "", "pid": pid, "ppid": 0, "at_unix_ns": now, "program": program, "why": why
        })  # fmt: skip

    def write(self) -> Path:
        """Merge all captures, replace the job's file and return its path. Raises NotRecording if there is no
        capture, CaptureUnwritable if the file cannot be written."""
        if not self._packed:
            reasons = dict.fromkeys(
                f"{row['program']}: {row['why']}" for row in self._rows if row["event"] == "started"
            )
            problem = f"no worker left a capture ({'; '.join(list(reasons)[:3]) or 'no worker was seen'})"
            raise NotRecording(problem, f"nothing was written to {self.path!r}")
        packing.write_file(self._packed, self._rows, self.path)
        return Path(self.path)

    def close(self) -> None:
        """Remove the captures that arrived as bytes."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
