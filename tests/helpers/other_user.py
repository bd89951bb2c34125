"""Runs programs as another user, who may read what this one may: the interpreter may lie in a folder that only root
may enter."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from children import run_command
from recording import child_environment

UID = 65534
needs_other_users = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv, to be other users"
)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may write to, as /tmp: pytest's own are below one that only its user may enter."""
    with tempfile.TemporaryDirectory(prefix="hiwater-tests-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def as_other_user(*words: object) -> list[str]:
    """The command, run by another user."""
    rights = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *rights, *map(str, words)]


def run_as_other_user(
    *words: object, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_command(as_other_user(*words), folder=folder, env=child_environment(environment))
