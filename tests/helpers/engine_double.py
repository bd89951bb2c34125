"""Runs hiwater's command line with an engine that fails to order, where the real one cannot be made to.

    python engine_double.py MODE run …        MODE: works, fault, no-space, lost, in-memory, stop-fails

It stands for the native module alone; everything in front of it is the product.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import NoReturn


class EngineFault(RuntimeError):
    """As the native module's."""


def build(mode: str) -> ModuleType:
    """Return a module with the functions that recording a program calls, working or failing as `mode` says."""
    core = type(sys)("hiwater._core")
    state: dict[str, object] = {"recording": False, "path": ""}

    def start(path: str, **details: object) -> str:
        if mode == "fault":
            raise EngineFault("this loader is not glibc's")
        if mode == "no-space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        assert isinstance(details["facts"], dict)
        with open(path, "wb") as file:
            file.write(b"\x89HIW\r\n\x1a\n" + repr(details["facts"]).encode())
        state.update(recording=True, path=path)
        return path

    def stop(exit_code: int | None = None) -> None:
        if mode == "stop-fails":
            raise EngineFault("the capture's file was truncated")
        with open(str(state["path"]), "ab") as file:
            file.write(f"exit_code={exit_code}".encode())
        state["recording"] = False

    def summary() -> dict[str, object]:
        return {
            "path": state["path"],
            "peak_bytes": 1_300_000_000,
            "peak_blocks": 12345,
            "live_bytes": 0,
            "program_peak_bytes": 1_400_000_000,
            "resident_exact": mode != "lost",
            "resident_error_bytes": 4096,
            "overhead_bytes": 100_000_000,
            "lost_events": 7 if mode == "lost" else 0,
            "file_fate": "",
            "is_lost": False,
            "shortcomings": {},
            "sample_bytes": 0,
            "standard_error_bytes": 0,
            "stop_reason": None,
            "top_line": {
                "group": "line",
                "file": "/project/etl.py",
                "line": 42,
                "function": "load",
                "bytes": 800_000_000,
                "untouched_bytes": 0,
                "imports_bytes": 0,
                "other_bytes": 0,
                "all_untouched_bytes": 0,
            },
            "refused": None,
        }

    def snapshot(path: str) -> None:
        with open(path, "wb") as file:
            file.write(b"\x89HIW\r\n\x1a\n")

    def compile_source(source: str | bytes, file: str) -> CodeType:
        return compile(source, file, "exec", dont_inherit=True)

    build = "debug" if "d" in sys.abiflags else "release"
    core.__dict__.update(
        BUILT_FOR=f"{sys.version_info[0]}.{sys.version_info[1]} {build}", PAGE_BYTES=os.sysconf("SC_PAGE_SIZE")
    )
    core.__dict__.update(EngineFault=EngineFault, start=start, stop=stop, summary=summary, snapshot=snapshot)
    core.__dict__.update(is_recording=lambda: state["recording"], on_exit=lambda callback: None)
    core.__dict__.update(compile_source=compile_source, read_ending=lambda path: None)
    core.__dict__.update(on_device_library=lambda callback: None, DEVICE_LIBRARIES=("torch",))
    core.__dict__.update(call_at_the_bottom=lambda entry, arguments: entry(*arguments))
    core.__dict__.update(enter_own_work=lambda: None, leave_own_work=lambda: None)
    core.__dict__.update(is_kept_in_memory=lambda: mode == "in-memory")
    core.__dict__.update(set_last_lines=lambda command: None)
    return core


def main() -> NoReturn:
    """Put the double in place, then go on as `python -m hiwater` would."""
    import hiwater

    core = build(sys.argv.pop(1))
    sys.modules["hiwater._core"] = core
    hiwater.__dict__["_core"] = core
    from hiwater.cli import main as hiwater_main

    sys.exit(hiwater_main())


if __name__ == "__main__":
    main()
