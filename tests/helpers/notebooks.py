"""Runs notebooks in a real kernel and gives back what each cell showed."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import PATIENCE_SECONDS


@dataclass(frozen=True)
class Shown:
    """What one cell showed: texts and MIME bundles in order, its value, its error and the traceback of that."""

    displays: list[dict[str, str]]
    value: str | None
    printed: str
    error: str | None
    traceback: str

    @property
    def lines(self) -> list[str]:
        return [display["text/plain"] for display in self.displays]

    @property
    def page(self) -> str:
        """The page in the frame."""
        (text,) = [display["text/html"] for display in self.displays if "<iframe" in display.get("text/html", "")]
        found = re.search(r'srcdoc="([^"]*)"', text)
        assert found is not None
        return html.unescape(found[1])

    @property
    def report(self) -> str:
        (text,) = [line for line in self.lines if line.startswith("hiwater: cell")]
        return text


def run(tmp_path: Path, cells: Sequence[str], environment: Mapping[str, str] | None = None) -> list[Shown]:
    """Execute the cells in one kernel; errors are shown and the next cell follows, as for a user."""
    tmp_path.mkdir(exist_ok=True)
    asked = {"folder": str(tmp_path), "cells": list(cells), "environment": dict(environment or {})}
    # The client's sockets and loops live and die in a process of their own.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [Shown(**cell) for cell in json.loads((tmp_path / "shown.json").read_text("utf-8"))]


def _execute(folder: str, cells: Sequence[str], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    kernels = Path(folder, "kernels")
    (kernels / "here").mkdir(parents=True)
    specification = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "here",
        "language": "python",
        "env": {"IPYTHONDIR": str(Path(folder, "ipython")), **environment},
    }
    (kernels / "here" / "kernel.json").write_text(json.dumps(specification), "utf-8")
    # On a busy machine a kernel that ends takes more than the usual five seconds, and would be killed.
    manager = AsyncKernelManager(
        kernel_name="here",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(kernels)]),
        shutdown_wait_time=PATIENCE_SECONDS,
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(
        notebook, km=manager, timeout=300, allow_errors=True, resources={"metadata": {"path": folder}}
    ).execute()
    return [_shown(cell) for cell in notebook.cells]


def _shown(cell: Any) -> dict[str, Any]:
    displays, value, printed, error, traceback = [], None, "", None, ""
    for output in cell.outputs:
        if output.output_type == "stream":
            printed += output.text
        elif output.output_type == "error":
            error = f"{output.ename}: {output.evalue}"
            traceback = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
        elif output.output_type == "execute_result":
            value = output.data["text/plain"]
        else:
            displays.append(dict(output.data))
    return {"displays": displays, "value": value, "printed": printed, "error": error, "traceback": traceback}


if __name__ == "__main__":
    # nbformat loads jsonschema, which would load it for a check that no notebook's schema has: a parser that takes
    # longer to make than the cells to run.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    asked = json.load(sys.stdin)
    # Not to stdout, which is the kernel's, too.
    Path(asked["folder"], "shown.json").write_text(json.dumps(_execute(**asked)), "utf-8")
