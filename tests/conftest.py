"""What every test finds: signals as in a terminal, and nothing of ours that is about to end by itself."""

import pytest

import faithful
from hiwater.meters.heap import COUNTING

faithful.default_signals()


@pytest.fixture(autouse=True)
def nothing_lingers() -> None:
    """The engine counts for a second after the last scope, and then gives its tables back: some MiB that a test which looks at
    resident memory would miss in the middle of its work."""
    COUNTING.end()
