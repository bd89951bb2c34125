"""Measures tests and blocks of tests with scopes."""

from __future__ import annotations

import gc
from typing import Any, Self

import pytest

from hiwater.contrib.pytest_plugin.limits import FIGURES, Wanted, of_lines, shown
from hiwater.meters.heap import COUNTING
from hiwater.scopes.manager import SCOPE_MANAGER
from hiwater.scopes.scope import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.pytest_plugin.evidence import Evidence
    from hiwater.recording.window import Window

Figures = dict[str, int]
"""By the names of `limits.FIGURES`: bytes, and a count for `blocks`."""


class Measurement:
    """The figures of what runs between `begin()` and `end()`. Both raise MeterUnavailable where a figure cannot be
    measured."""

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


def excesses(figures: Figures, wanted: Wanted) -> dict[str, str]:
    """A sentence for each limit that is exceeded, by the figure."""
    whose = "this thread" if wanted.this_thread else "the test"
    found = {}
    for name, limit in wanted.limits.items():
        is_below = name == "peak" and wanted.peak_is_below
        if figures.get(name, 0) >= limit + (not is_below):
            must = "it must stay below" if is_below else "its limit is"
            found[name] = f"{whose} has {shown(name, figures[name])} {FIGURES[name]}; {must} {shown(name, limit)}"
    return found


class Region:
    """A block of a test that is measured: a context manager. Its figures are attributes from its end on."""

    def __init__(self, evidence: Evidence, item: pytest.Item, *, this_thread: bool = False, **limits: Any) -> None:
        """`limits` are sizes by the names of the marker. Raises UsageError for others."""
        self._evidence = evidence
        self._item = item
        self._wanted = Wanted(of_lines(f"{name}={size}" for name, size in limits.items()), this_thread=this_thread)
        self._measurement = Measurement(self._wanted, "")
        self._window: Window | None = None
        self._figures: Figures = {}

    def __enter__(self) -> Self:
        self._window = self._evidence.begin_block(self._item)
        self._measurement.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        __tracebackhide__ = True
        self._figures = self._measurement.end()
        found = excesses(self._figures, self._wanted) if error is None else {}
        if found:
            lines = self._evidence.of_window(self._window, "end" if "kept" in found else "peak")
            pytest.fail("\n".join([*found.values(), *lines]), pytrace=True)

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
