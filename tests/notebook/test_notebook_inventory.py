"""`%hiwater vars`: each object counted once, whatever holds it; large namespaces sampled, with an error that holds."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hiwater.notebook import inventory
from hiwater.notebook.inventory import Variable, variables


def rows(**names: object) -> dict[str, Variable]:
    return {one.name: one for one in variables(names)}


def size_of(*items: Any) -> int:
    return sum(map(sys.getsizeof, items))


def test_strings_of_a_list_and_of_columns_are_one_object_each() -> None:
    pandas = pytest.importorskip("pandas")
    words = ["word " * 20 + str(number) for number in range(10_000)]
    objects = pandas.Series(words, dtype=object)  # by default it copies the text where pyarrow is installed
    found = rows(
        words=words,
        frame=pandas.DataFrame({"word": objects, "object": objects, "n": np.arange(10_000)}),
        series=objects,
        index=pandas.Index(words, dtype=object),
        indexed=pandas.DataFrame({"x": 1.0}, index=objects),
        table=np.array(words, dtype=object),
        mapping=dict.fromkeys(words),
        members={*words},
    )
    texts = size_of(*words)
    assert found["words"].own_bytes == texts + size_of(words)
    for name in set(found) - {"words"}:
        one = found[name]
        assert one.own_bytes < 0.6 * texts and one.total_bytes >= texts, one
        assert one.note == "shares storage with words" and one.standard_error_bytes == 0 and one.complete
    assert found["mapping"].own_bytes == size_of(dict.fromkeys(words), None)


def test_columns_that_pandas_cannot_show_as_arrays_have_their_size() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"n": pandas.array([1, None] * 500_000, dtype="Int64"), "c": pandas.Categorical(["a", "b"] * 500_000)}
    )
    found = rows(frame=frame, again=frame["n"])
    # Nine bytes of a number with its mask, and one of a category.
    assert 9_999_000 < found["frame"].own_bytes < 10_100_000
    assert found["again"].own_bytes < 1000 and found["again"].note == "shares storage with frame"


def test_bytes_below_an_array_are_counted_once() -> None:
    raw = bytearray(1_000_000)
    found = rows(array=np.frombuffer(raw, np.uint8), raw=raw, view=memoryview(raw))
    assert sum(one.own_bytes for one in found.values()) < 1_001_000
    assert found["raw"].own_bytes == size_of(raw)


def records() -> list[dict[str, object]]:
    return [{"a": number * 1.5, "b": str(number), "c": (number, number + 1)} for number in range(20_000)]


def texts() -> list[str]:
    chosen = random.Random(3)
    return ["x" * chosen.randrange(200) + str(number) for number in range(60_000)]


def nested() -> list[list[float]]:
    return [[1000.0 * row + column for column in range(1400)] for row in range(40)]


def mapping() -> dict[str, list[int]]:
    return {str(number): [number + 1000, number + 100_000] for number in range(30_000)}


@pytest.mark.parametrize("make", [records, texts, nested, mapping])
def test_sampled_figures_are_within_their_error(make: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    value = make()
    (exact,) = variables({"value": value})
    monkeypatch.setattr(inventory, "MOST_PARTS", 20_000)
    (sampled,), rate = inventory._counted({"value": value}, ())
    assert exact.standard_error_bytes == 0 and rate < 1
    assert 0 < sampled.standard_error_bytes < 0.2 * exact.total_bytes
    assert abs(sampled.total_bytes - exact.total_bytes) < 4 * sampled.standard_error_bytes
    said = inventory.text([sampled], rate)
    assert "more than 20,000 objects: one in " in said and "±" in said.splitlines()[1]


def test_what_sampled_values_share_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = texts()
    monkeypatch.setattr(inventory, "MOST_PARTS", 20_000)
    found = rows(words=words, again=[*words], members={*words})
    assert found["again"].own_bytes == size_of([*words]) and found["members"].own_bytes == size_of({*words})
    assert found["again"].total_bytes == found["words"].total_bytes - size_of(words) + size_of([*words])


def test_few_objects_in_many_places_are_counted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the places would count a megabyte eightfold, or not at all."""
    monkeypatch.setattr(inventory, "MOST_PARTS", 20_000)
    large = [bytearray(1 << 20), {"large": "x" * (1 << 20)}]
    found = rows(places=large * 200_000, many=texts())
    assert found["places"].total_bytes == size_of([None] * 400_000, *large, "large", "x" * (1 << 20))
    assert found["many"].standard_error_bytes > 0


def test_the_number_of_parts_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that are too small to be sampled, in one another."""
    monkeypatch.setattr(inventory, "MOST_PARTS", 5_000)
    value: Any = [[[float(a * 40_000 + b * 200 + c) for c in range(200)] for b in range(10)] for a in range(10)]
    (found,) = variables({"value": value})
    assert not found.complete and 0 < found.total_bytes < size_of(value[0][0]) * 100 + 20_000 * 24
