"""Resident memory of this process on systems without /proc, by psutil."""

from __future__ import annotations

import os

from hiwater._os import processes
from hiwater.errors import HiwaterError
from hiwater.meters import process
from hiwater.meters.base import MeterUnavailable


class SampledResidentMeter(process.ResidentMeter):
    """Resident bytes of this process. Its peak is the highest sample."""

    def __init__(self) -> None:
        """Raises MeterUnavailable without psutil."""
        super().__init__()
        try:
            self._memory = processes.ProcessMemory(os.getpid())
        except HiwaterError as error:
            raise MeterUnavailable(error.problem, error.remedy) from error

    def now(self) -> int:
        """Return resident bytes; raises OSError."""
        now = self._memory.resident_bytes()
        if now is None:
            raise OSError("psutil does not tell")
        return now

    def _try_reset(self) -> str:
        return "this system has no high-water mark that can be reset"
