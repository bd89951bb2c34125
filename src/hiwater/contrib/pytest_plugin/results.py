"""The figures of all tests: compared with the baseline, written into it, and shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hiwater.analysis import baseline
from hiwater.contrib.pytest_plugin.limits import shown
from hiwater.errors import HiwaterError

_NAMES = {
    "peak_bytes": "peak", "allocated_bytes": "allocated", "allocations": "blocks", "kept_bytes": "kept",
    "resident_bytes": "resident", "device_bytes": "device",
}  # fmt: skip


class Results:
    """The results of the tests by node id. In the workers of xdist it only compares."""

    def __init__(self, path: Path | None, *, updates: bool, tolerance: str | None) -> None:
        """Read the baseline. Raises UsageError if it cannot be used; a missing one is made by an update."""
        self._path = path
        self._updates = updates
        self._figures: dict[str, dict[str, Any]] = {}
        self._unknown = 0
        try:
            self._tolerance = baseline.parse_tolerance(tolerance) if tolerance else None
            is_there = path is not None and (path.exists() or not updates)
            self._baseline = baseline.read(path) if path is not None and is_there else baseline.Baseline()
        except HiwaterError as error:
            raise pytest.UsageError(str(error).replace("--update", "--hiwater-update")) from None

    def excesses(self, name: str, figures: Mapping[str, int]) -> dict[str, str]:
        """A sentence for each figure of a test that exceeds its baseline; none for a test that is not in it, or
        while it is updated."""
        before = self._baseline.entries.get(name)
        if before is None or self._updates:
            return {}
        worse = [
            one
            for one in baseline.compare({name: before}, {name: _entry(figures)}, self._tolerance)
            if one.verdict == "worse"
        ]
        return {_NAMES[one.figure]: _sentence(one, _NAMES[one.figure]) for one in worse}

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """Note the figures of a test."""
        self._figures[name] = figures

    def write(self) -> None:
        """Write the baseline if it is to be updated. Raises UsageError."""
        if self._path is None or not self._updates:
            return
        now = {name: _entry(one["call"]) for name, one in self._figures.items() if one.get("passed")}
        try:
            self._baseline.updated(now).write(self._path)
        except HiwaterError as error:
            raise pytest.UsageError(str(error)) from None

    def table(self, count: int) -> list[str]:
        """The tests with the highest peaks as lines, and what became of the baseline."""
        ranked = sorted(self._figures.items(), key=lambda one: (-one[1]["call"]["peak"], one[0]))
        rows: list[tuple[str, ...]] = [("peak", "allocated", "kept", "blocks", "setup kept", "test")]
        rows += [
            (
                *(shown(name, one["call"][name]) for name in ("peak", "allocated", "kept", "blocks")),
                shown("kept", one.get("setup", {}).get("kept", 0)),
                name,
            )
            for name, one in ranked[:count]
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in rows]
        lines.append(
            "allocated bytes, exact, above what each test started with; peak, allocated, kept and blocks are without"
            " fixtures"
        )
        if self._path is None:
            return lines
        passed = [name for name, one in self._figures.items() if one.get("passed")]
        if self._updates:
            return [*lines, f"the figures of {len(passed)} tests were written into the baseline {self._path}"]
        new = [name for name in passed if name not in self._baseline.entries]
        if new:
            lines.append(
                f"{len(new)} tests are not in the baseline and were compared with nothing; add them with"
                " --hiwater-update"
            )
        return lines


def _sentence(one: baseline.Compared, name: str) -> str:
    now, before, allowed = (shown(name, value or 0) for value in (one.now, one.before, one.allowed))
    what = baseline.FIGURES[one.figure].replace("run", "test")
    return f"the test has {now} {what}; the baseline has {before} and allows {allowed}"


def _entry(figures: Mapping[str, int]) -> baseline.Entry:
    # A baseline has no figure below zero: a test that frees more than it allocates keeps nothing.
    return baseline.Entry({name: max(0, figures[one]) for name, one in _NAMES.items() if one in figures})
