"""What hiwater says to people, as text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TextIO
from unittest import mock


@contextlib.contextmanager
def messages_to(stream: TextIO) -> Iterator[None]:
    """Hiwater's own messages go to the stream that the process began with, all others to sys.stderr."""
    with mock.patch.object(sys, "__stderr__", stream), contextlib.redirect_stderr(stream):
        yield
