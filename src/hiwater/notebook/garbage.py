"""Collects garbage before and after cells, without a full collection after each. A full one takes some 0.2 µs for every
object of the session, 10 ms in a fresh kernel.

Objects of the cell are in the youngest generation, unless another collection ran. This generation is always collected.
Older objects become garbage only if the cell dropped them. So the older generations are also collected if a variable
that may have held some was deleted or rebound, after an error, if other collections ran, and if the cell took so long
that the cost is small.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

_NO_DIFFERENCE = 20  # times as long as a full collection


class Collector:
    """Collects before and after a cell. If a quick cell drops older cycles in another way, such as `cache.clear()`,
    the next full collection finds them."""

    def __init__(self) -> None:
        self._full_ns = 0  # the time of the last full collection
        self._collections = -1

    def before(self, names: Mapping[str, object]) -> dict[str, int]:
        """Collect, and return the identities of the variables' values for `after`."""
        self._collect(is_full=self._others_ran())
        return _identities(names)

    def after(self, names: Mapping[str, object], identities: Mapping[str, int], cell_ns: int, *, failed: bool) -> None:
        now = _identities(names)
        has_dropped = any(now.get(name) != identity for name, identity in identities.items())
        is_long = cell_ns > _NO_DIFFERENCE * self._full_ns
        self._collect(is_full=has_dropped or failed or is_long or self._others_ran())

    def _collect(self, *, is_full: bool) -> None:
        started = time.perf_counter_ns()
        if is_full:
            gc.collect()
            self._full_ns = time.perf_counter_ns() - started
        else:
            gc.collect(0)
        self._collections = _count()

    def _others_ran(self) -> bool:
        return _count() != self._collections


def _identities(names: Mapping[str, object]) -> dict[str, int]:
    """The values of variables that may be in cycles. IPython's own variables are skipped: they change with every
    cell, and drop nothing."""
    # One object, where a list of the items would be as many as there are names, and cause a collection.
    settled = dict(names)
    return {name: id(value) for name, value in settled.items() if gc.is_tracked(value) and not name.startswith("_")}


def _count() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())
