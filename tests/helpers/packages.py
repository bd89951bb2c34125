"""Skips tests of programs whose packages are missing."""

import importlib.util

import pytest


def skip_without(*names: str) -> None:
    """Skip the test, or the file, where one of these packages is missing. They are not imported, as
    `pytest.importorskip` does: that takes seconds, and only the programs need them."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
