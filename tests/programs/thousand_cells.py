"""A thousand cells in IPython's own shell, in a process of their own: prints how much its memory grew, as JSON. `on`
measures them."""

import contextlib
import gc
import json
import os
import sys

from IPython.core.interactiveshell import InteractiveShell

import hiwater
from hiwater import meters


def grown(shell: InteractiveShell, cells: range) -> dict[str, int]:
    """Bytes that came to be live, and resident, while these cells ran."""
    kinds = [meters.create(name) for name in ("heap", "resident")]
    for meter in kinds:
        meter.open()
    before = [meter.now() for meter in kinds]
    for number in cells:
        shell.run_cell(f"x = bytearray({number}_000)\nlen(x)", store_history=True)
    gc.collect()
    return {name: meter.now() - was for name, meter, was in zip(("heap", "resident"), kinds, before, strict=True)}


def main() -> None:
    shell = InteractiveShell.instance(history_length=0)
    shell.history_manager.enabled = False
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), hiwater.track("all"):
        if sys.argv[1:] == ["on"]:
            shell.run_line_magic("load_ext", "hiwater")
            shell.run_cell("%hiwater on")
        grown(shell, range(200))  # tables of their first size
        found = grown(shell, range(1000))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
