"""Worker threads that never end keep their thread-local buffers."""

import threading

from noise import SIZE, VALUES, text, work

_LOCAL = threading.local()
_STOP = threading.Event()


def serve(ready: threading.Event) -> None:
    _LOCAL.buffer = text(SIZE * VALUES)  # leak
    ready.set()
    _STOP.wait()


def call() -> None:
    work()
    ready = threading.Event()
    threading.Thread(target=serve, args=(ready,), daemon=True).start()
    ready.wait()
