"""Samples the process that starts it, from a separate process.

A sampling thread would wait for the GIL exactly while a long call into C allocates its temporaries. A forked sampler
would share the memory that it measures, and so change it. This one is a new interpreter that loads only a few small
modules. It is not a child of the process that it samples, so that it does not interfere when that program waits for its
children.
"""

from __future__ import annotations

import marshal
import os
import sys
from contextlib import suppress

from hiwater.errors import HelperFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from hiwater.sampling.ticks import Row

_READY = b"r"
_SOURCE = "import sys; sys.path.insert(0, sys.argv[1]); from hiwater.sampling.helper import main; main(*sys.argv[2:])"


class OutsideSampler:
    """Samples this process while the `with` block runs; `rows` has the samples after it."""

    def __init__(self, *, interval: float, children: bool, backend: str, timeout: float | None) -> None:
        self._arguments = [str(os.getpid()), repr(interval), str(int(children)), backend, repr(timeout or 0.0)]
        self.rows: list[Row] = []
        self._to_helper = self._from_helper = -1

    def __enter__(self) -> Self:
        """Start sampling; returns after the first sample. Raises HelperFailed."""
        if not sys.executable:
            raise HelperFailed("no interpreter is known for the sampling process", "set sys.executable to one")
        if not hasattr(os, "posix_spawn"):
            raise HelperFailed("a call cannot be sampled on this system", "sample a process, or use hiwater.track()")
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        stop, self._to_helper = os.pipe()
        self._from_helper, out = os.pipe()
        try:
            child = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _SOURCE, root, *self._arguments],
                os.environ,  # the loader may need it; the interpreter ignores it (-I)
                file_actions=[(os.POSIX_SPAWN_DUP2, stop, 0), (os.POSIX_SPAWN_DUP2, out, 1)],
            )
        except OSError as error:
            self._close()
            raise HelperFailed(f"{sys.executable!r} cannot be started ({error.strerror})", "see the reason") from error
        finally:
            os.close(stop)
            os.close(out)
        with suppress(ChildProcessError):  # it only starts the sampler; there is none if the program ignores SIGCHLD
            os.waitpid(child, 0)
        if os.read(self._from_helper, 1) != _READY:
            self._close()
            raise HelperFailed("the sampling process ended immediately", "read its messages on stderr")
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            os.close(self._to_helper)
            self._to_helper = -1
            with os.fdopen(self._from_helper, "rb") as stream:
                self._from_helper = -1
                data = stream.read()
            self.rows = marshal.loads(data) if data else []  # noqa: S302 - from our own process through our own pipe
        finally:
            self._close()

    def _close(self) -> None:
        for descriptor in (self._to_helper, self._from_helper):
            if descriptor >= 0:
                os.close(descriptor)
        self._to_helper = self._from_helper = -1


def main(pid: str, interval: str, children: str, backend: str, timeout: str) -> None:
    """The sampling process: samples until its standard input closes, then writes all rows to its standard output."""
    starter = os.getpid()  # a child of the watched process, which ends immediately
    if os.fork():
        os._exit(0)  # so the sampling process has no parent that could wait for it
    import signal
    import time

    from hiwater.sampling import backends
    from hiwater.sampling.ticks import Ticks
    from hiwater.sampling.watcher import Watcher

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the program in the same terminal
    rows: list[Row] = []
    ticks = Ticks(rows.append)
    watcher = Watcher(
        int(pid),
        ticks,
        interval_ns=max(1, int(float(interval) * 1e9)),
        children=bool(int(children)),
        exclude=(starter,),
        reader=backends.READERS[backend],
    )
    started = False

    def end_of_tick(now: int) -> bool:
        nonlocal started
        ticks.end_of_tick(now)
        if not started:
            started = True
            os.write(1, _READY)
        return False

    until = time.monotonic_ns() + int(float(timeout) * 1e9) if float(timeout) else None
    watcher.run(on_tick=end_of_tick, stop_on=0, until_ns=until)
    watcher.close()
    ticks.end_of_tick(time.monotonic_ns())  # the result of the last reading of the high-water mark
    if until is not None:
        sys.stdin.buffer.read()
    with os.fdopen(1, "wb") as stream:
        stream.write(marshal.dumps(rows))
