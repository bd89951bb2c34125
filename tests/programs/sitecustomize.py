"""Loaded by every interpreter of a test of real programs: has the engine check itself as the program ends, while it
still records."""

import os
import sys
import threading


def check() -> None:
    core = sys.modules.get("hiwater._core")
    if core is None or not core.is_recording():
        return
    core.self_check()
    lost = core.counters()["lost_events"]
    with open(os.environ["HIWATER_TEST_CHECKED"], "w") as file:
        file.write(f"sound, {lost} lost")


threading._register_atexit(check)  # type: ignore[attr-defined] - before the callbacks of atexit, the recording's end among them
