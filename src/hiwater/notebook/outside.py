"""Runs `hiwater.notebook.rendering` in a process of its own: NumPy, rich and matplotlib must not appear in the
kernel that is measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_SOURCE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from hiwater.notebook.rendering import main; main()"
)


def render(words: Sequence[str], given: str = "") -> dict[str, str]:
    """What the process made of its arguments and of `given` on its stdin: texts by what they are.

    Raises OSError when it cannot start, ValueError with what it said last when it fails.
    """
    import json
    import subprocess

    # Kernels ask for colour; here the text goes into a page, too.
    plain = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"} | {"NO_COLOR": "1"}
    plain.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start threads for matrices, of which there are none
    command = [sys.executable, "-I", "-c", _SOURCE, json.dumps(sys.path), *words]
    done = subprocess.run(command, capture_output=True, check=False, input=given.encode(), env=plain)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ValueError(said[-1] if said else f"exit code {done.returncode}")
    found: dict[str, str] = json.loads(done.stdout)
    return found
