"""A report on tensors searches the globals of all libraries, which takes less without those that only other tests
load."""

import sys

import pytest

OF_OTHER_TESTS = ("pygments", "sympy", "mpmath")


@pytest.fixture(autouse=True)
def no_libraries_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    if "torch" in sys.modules:
        from hiwater.contrib.torch import frames

        monkeypatch.setattr(frames, "_NOT_USERS", (*frames._NOT_USERS, *OF_OTHER_TESTS))
