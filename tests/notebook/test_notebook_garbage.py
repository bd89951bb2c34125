"""What is collected around a cell: all that it left, and the whole session only where it may have dropped older
cycles."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from hiwater.notebook.garbage import Collector

LONG = 10**12  # ns
SHORT = 0


class Node:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    """One that has collected everything once; nothing collects beside it."""
    gc.disable()
    made = Collector()
    made.before({})
    yield made
    gc.enable()


def old(names: dict[str, object]) -> "weakref.ref[Node]":
    """The node in `names`, once it is in the oldest generation and the collector has seen all."""
    gc.collect()
    (value,) = names.values()
    return weakref.ref(value[0] if isinstance(value, list) else value)


def full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def test_a_cycle_that_the_cell_made(collector: Collector) -> None:
    was = collector.before({})
    before = full_collections()
    made = weakref.ref(Node())
    collector.after({}, was, SHORT, failed=False)
    assert made() is None and full_collections() == before


@pytest.mark.parametrize("change", ["deleted", "rebound"])
def test_an_older_cycle_that_was_a_variable(collector: Collector, change: str) -> None:
    names: dict[str, object] = {"x": Node()}
    node = old(names)
    collector.before(names)  # which knows of that collection now
    was = collector.before(names)
    if change == "deleted":
        del names["x"]
    else:
        names["x"] = 1
    collector.after(names, was, SHORT, failed=False)
    assert node() is None


@pytest.mark.parametrize("reason", ["none", "error", "long", "other collections"])
def test_an_older_cycle_that_was_in_a_container(collector: Collector, reason: str) -> None:
    names: dict[str, object] = {"x": [Node()]}
    node = old(names)
    collector.before(names)  # which knows of that collection now
    was = collector.before(names)
    names["x"].clear()  # type: ignore[attr-defined] # it is a list
    if reason == "other collections":
        gc.collect(0)
    collector.after(names, was, LONG if reason == "long" else SHORT, failed=reason == "error")
    assert (node() is None) == (reason != "none")  # without any it waits, as the documentation says


def test_what_changes_with_every_cell_drops_nothing(collector: Collector) -> None:
    names: dict[str, object] = {"_": [1], "_i": "text", "n": 5, "data": [2]}
    was = collector.before(names)
    before = full_collections()
    names |= {"_": [3], "_8": [4], "n": 6, "new": {"a": []}}
    collector.after(names, was, SHORT, failed=False)
    assert full_collections() == before


def test_many_variables_cause_no_collection(collector: Collector) -> None:
    names: dict[str, object] = {f"_i{at}": "text" for at in range(5000)}
    gc.enable()
    collector.after(names, collector.before(names), SHORT, failed=False)
    before = full_collections()
    for _ in range(5):
        collector.after(names, collector.before(names), SHORT, failed=False)
    assert full_collections() == before
