"""What every test finds: signals as in a terminal, and nothing of ours that is about to end by itself."""

import signal

import pytest

from hiwater.meters.heap import COUNTING

# Started in the background (`&`, nohup), the suite and all it starts would ignore two.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def nothing_lingers() -> None:
    """The engine counts for a second after the last scope, and then gives its tables back: some MiB that a test which looks at
    resident memory would miss in the middle of its work."""
    COUNTING.end()
