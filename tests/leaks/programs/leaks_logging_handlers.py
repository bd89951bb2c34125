"""Each request adds a handler with a buffer to a logger, and does not remove it."""

import io
import logging

from noise import SIZE, VALUES, text, work

_LOG = logging.getLogger("requests")
_LOG.propagate = False


def call() -> None:
    work()
    stream = io.StringIO()
    stream.write(text(SIZE * VALUES))  # leak
    _LOG.addHandler(logging.StreamHandler(stream))
