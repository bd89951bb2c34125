"""Loaded by every interpreter of a test of real programs: has the engine check itself as the program ends, while it
still records."""

import os
import sys


def check() -> None:
    core = sys.modules.get("hiwater._core")
    if core is None or not core.is_recording():
        return
    core.self_check()
    lost = core.counters()["lost_events"]
    with open(os.environ["HIWATER_TEST_CHECKED"], "w") as file:
        file.write(f"sound, {lost} lost")


# The first interpreter of a process alone: on 3.11 another one, with `threading` and ended by another thread than it
# began in, waits for ever.
if os.environ.get("HIWATER_TEST_PROCESS") != str(os.getpid()):
    os.environ["HIWATER_TEST_PROCESS"] = str(os.getpid())
    import threading

    # Before the callbacks of atexit, the recording's end among them.
    threading._register_atexit(check)  # type: ignore[attr-defined]  # not public
