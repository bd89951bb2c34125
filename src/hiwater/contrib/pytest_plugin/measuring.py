"""Measures tests and blocks of tests with scopes: counters, without stacks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

from hiwater._os.sizes import format_size
from hiwater.contrib.pytest_plugin.limits import FIGURES, Wanted, of_lines
from hiwater.errors import HiwaterError
from hiwater.meters.heap import COUNTING
from hiwater.scopes.manager import SCOPE_MANAGER, Scope

Figures = dict[str, int]
"""By the names of `limits.FIGURES`: bytes, and a count for `blocks`."""


class Measurement:
    """The figures of what runs between `begin()` and `end()`. Both raise MeterUnavailable where a figure cannot be measured."""

    def __init__(self, wanted: Wanted, name: str) -> None:
        self._wanted = wanted
        self._heap = "thread" if wanted.this_thread else "heap"
        others = [meter for figure, meter in (("resident", "resident"), ("device", "gpu")) if figure in wanted.limits]
        self._scope = Scope(name, (self._heap, *others))
        self._start = 0

    def begin(self) -> None:
        """Begin. A limit of `kept` is of what the garbage collector cannot free, so it runs before."""
        if "kept" in self._wanted.limits:
            gc.collect()
            self._start = self._live()
        SCOPE_MANAGER.enter(self._scope)

    def end(self) -> Figures:
        """End, and return the figures. The collector runs only if the limit of `kept` is exceeded before."""
        limit = self._wanted.limits.get("kept")
        if limit is not None and self._live() - self._start > limit:
            gc.collect()
        SCOPE_MANAGER.exit(self._scope)
        # Without a Usage, which would take as long as the rest.
        measured = {figure.slot.name: figure for figure in self._scope.figures}
        risen = {name: figure.peak - figure.start for name, figure in measured.items()}
        heap = measured[self._heap]
        allocated, blocks = heap.allocated or (0, 0)
        found = {"peak": risen[self._heap], "allocated": allocated, "kept": heap.end - heap.start, "blocks": blocks}
        if "resident" in risen:
            found["resident"] = risen["resident"]
        if "device" in self._wanted.limits:
            found["device"] = max((rise for name, rise in risen.items() if name.endswith(":allocated")), default=0)
        return found

    def _live(self) -> int:
        return COUNTING.now()[2 if self._wanted.this_thread else 0]


def excesses(figures: Figures, wanted: Wanted) -> list[str]:
    """A sentence for each limit that is exceeded."""
    whose = "this thread" if wanted.this_thread else "the test"
    found = []
    for name, limit in wanted.limits.items():
        is_below = name == "peak" and wanted.peak_is_below
        if figures.get(name, 0) >= limit + (not is_below):
            must = "it must stay below" if is_below else "its limit is"
            found.append(f"{whose} has {shown(name, figures[name])} {FIGURES[name]}; {must} {shown(name, limit)}")
    return found


def shown(name: str, value: int) -> str:
    """A figure as text."""
    return f"{value:,}" if name == "blocks" else format_size(value)


class Region:
    """A block of a test that is measured: a context manager. Its figures are attributes from its end on."""

    def __init__(self, *, this_thread: bool = False, **limits: Any) -> None:
        """`limits` are sizes by the names of the marker. Raises UsageError for others."""
        self._wanted = Wanted(of_lines(f"{name}={size}" for name, size in limits.items()), this_thread=this_thread)
        self._measurement = Measurement(self._wanted, "")
        self._figures: Figures = {}

    @staticmethod
    @contextmanager
    def counting() -> Iterator[None]:
        """Keep counting on, so that each block need not begin it."""
        COUNTING.open()
        try:
            yield
        finally:
            COUNTING.close(lingers=False)

    def __enter__(self) -> Self:
        self._measurement.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        __tracebackhide__ = True
        self._figures = self._measurement.end()
        found = excesses(self._figures, self._wanted) if error is None else []
        if found:
            pytest.fail("\n".join(found), pytrace=True)

    @property
    def peak_bytes(self) -> int:
        """Allocated at the peak, above the start."""
        return self._figures["peak"]

    @property
    def allocated_bytes(self) -> int:
        """The sum of the sizes of all allocations, also of those freed since."""
        return self._figures["allocated"]

    @property
    def kept_bytes(self) -> int:
        """Allocated at the end, above the start; negative if the block freed more than it allocated."""
        return self._figures["kept"]

    @property
    def allocations(self) -> int:
        """The number of allocations."""
        return self._figures["blocks"]


class Counting:
    """Keeps counting on from one measured test to the next, and ends it before a test that is not measured."""

    def __init__(self) -> None:
        self._is_on = False

    def begin(self) -> None:
        """Fails the test if its memory cannot be measured here: a limit that nothing checks must not pass."""
        if self._is_on:
            return
        try:
            COUNTING.open()
        except HiwaterError as error:
            pytest.fail(f"the memory of this test cannot be measured: {error}", pytrace=False)
        self._is_on = True

    def end(self) -> None:
        """Do nothing if it is off."""
        if self._is_on:
            self._is_on = False
            COUNTING.close(lingers=False)

    def totals(self) -> tuple[int, int]:
        """Bytes allocated so far, and live bytes: of use as differences."""
        return COUNTING.totals()[0], COUNTING.now()[0]
