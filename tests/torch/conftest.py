"""A report on tensors searches the globals of all libraries and the objects of the collector, which takes less without
those that only other tests load."""

import gc
import sys
from collections.abc import Iterator

import pytest

OF_OTHER_TESTS = ("pygments", "sympy", "mpmath")


@pytest.fixture(autouse=True)
def no_libraries_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" in sys.modules:
        from hiwater.contrib.torch import frames

        monkeypatch.setattr(frames, "_NOT_USERS", (*frames._NOT_USERS, *OF_OTHER_TESTS))


@pytest.fixture(scope="module")
def older_objects_are_hidden() -> Iterator[None]:
    """From the collector, for which the objects of torch are most of the work in such tests and in each process that
    they fork. test_torch_classic_report.py has reports that search them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def nothing_left_of_other_tests() -> None:
    gc.collect()
