"""Runs notebooks in a real kernel and gives back what each cell showed."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import warm_reader


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
    asked, shown = tmp_path / "asked.json", tmp_path / "shown.json"
    asked.write_text(json.dumps({"folder": str(tmp_path), "cells": [*cells], "environment": dict(environment or {})}))
    # The client's sockets and loops live and die in a process of their own.
    done = warm_reader.run("notebook_client", [str(asked), str(shown)], None, os.environ, ("notebook_client",))
    assert done.returncode == 0, done.stderr
    return [Shown(**cell) for cell in json.loads(shown.read_text("utf-8"))]
