"""Which file gets the last words of a program (native/session/last_words.h)."""

from __future__ import annotations

import os

from hiwater._os import trust
from hiwater.capture import destination

TERMINATION_LOG = "/dev/termination-log"
"""The default of Kubernetes' terminationMessagePath: what `kubectl describe pod` shows once the container has ended."""


def choose(path: str | None) -> str:
    """Return the file's absolute path, "" for none. `path` None: HIWATER_LAST_WORDS, or Kubernetes' file if this is a
    pod that has it.

    `path` may contain `%p`, `%h` and `%r`. Raises CaptureUnwritable for any other `%`.
    """
    asked = os.environ.get("HIWATER_LAST_WORDS") if trust.obeys_environment() else None
    given = asked if path is None else path
    if given is not None:
        return destination.absolute(destination.expand(given)) if given else ""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return TERMINATION_LOG if in_pod and os.access(TERMINATION_LOG, os.W_OK) else ""
