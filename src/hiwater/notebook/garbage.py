"""Collecting garbage around cells without the price of a full collection after each: some 0.2 µs for every object of the session, 10 ms in
a fresh kernel.

What a cell made is in the youngest generation, as long as no other collection ran, and that is collected always. Objects from before can become garbage only
where the cell dropped them. So the older generations are collected, too, when a variable that may have held some was deleted or
bound anew, after an error, when other collections ran meanwhile, and when the cell took so long that it makes no difference.
"""

from __future__ import annotations

import gc
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_DIFFERENCE = 20  # times as long as a full collection


class Collector:
    """Collects before a cell and after it. A cell that drops older cycles by other means, as by `cache.clear()`, and is quick, leaves them
    to the next full collection."""

    def __init__(self) -> None:
        self._full_ns = 0  # what the last full collection took
        self._collections = -1

    def before(self, names: Mapping[str, object]) -> dict[str, int]:
        """Collect, and return what `after` wants to know: which objects the variables are."""
        self._collect(is_full=self._others_ran())
        return _identities(names)

    def after(self, names: Mapping[str, object], identities: Mapping[str, int], cell_ns: int, *, failed: bool) -> None:
        """Collect what the cell left."""
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
    """The variables that may be in cycles. IPython's own change with every cell, and drop nothing."""
    settled = dict(
        names
    )  # one object, where a list of the items would be as many as there are names, and cause a collection
    return {name: id(value) for name, value in settled.items() if gc.is_tracked(value) and not name.startswith("_")}


def _count() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())
