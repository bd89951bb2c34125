"""Executes the cells of a notebook in a real kernel: `notebook_client ASKED SHOWN`, two JSON files."""

# ruff: noqa: E402 - what must not be imported is said first

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# nbformat loads jsonschema, which would load it for a check that no notebook's schema has: a parser that takes longer
# to make than the cells to run.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from waiting import PATIENCE_SECONDS


def execute(folder: str, cells: Sequence[str], environment: Mapping[str, str]) -> list[dict[str, Any]]:
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
    ).execute(cleanup_kc=True)  # the kernel ends before its client, as those of Jupyter's own commands
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
    warnings.simplefilter("ignore")
    asked, shown = map(Path, sys.argv[1:])
    # Not to stdout, which is the kernel's, too.
    shown.write_text(json.dumps(execute(**json.loads(asked.read_text()))), "utf-8")
