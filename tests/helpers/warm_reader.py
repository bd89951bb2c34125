"""Runs modules, such as `hiwater` with a verb that only reads, in forks of a process that has imported what they need.
Imports are nine tenths of what they cost; all else is as in `python -m`."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

from waiting import PATIENCE_SECONDS

READING = {"report", "leaks", "diff", "merge", "holders", "live", "snapshot", "symbolize"}
READERS = ("hiwater.capture", "hiwater.analysis", "hiwater.report", "hiwater.cli")


def reads(words: tuple[object, ...], extra: Mapping[str, str] | None) -> bool:
    """Whether this runs as well in a fork: not with what the interpreter itself obeys when it starts, and has not
    obeyed here."""
    obeyed = ("PYTHON", "LC_", "LANG", "HIWATER_", "LD_")
    here = ("LC_ALL", next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), None))
    others = [name for name, value in (extra or {}).items() if (name, value) != here]
    return bool(words) and words[0] in READING and not any(name.startswith(obeyed) for name in others)


def run(
    module: str, words: list[str], folder: Path | None, environment: Mapping[str, str], packages: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """What `python -m` with this module and these words said, and its exit code. It has imported these packages; of
    hiwater's also what is in them."""
    server = _server(os.getpid(), packages)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
        request = {
            "module": module,
            "words": words,
            "folder": str(folder or Path.cwd()),
            "environment": dict(environment),
        }
        print(json.dumps(request | {"files": files}), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(words, code, *map(_text, (out, err)))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


@cache
def _server(pid: int, packages: tuple[str, ...]) -> subprocess.Popen[str]:
    """Of the process `pid`, a test's. No child of it: tests look at their trees of processes."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, __file__, *packages], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    server.wait()
    for pipe in (server.stdin, server.stdout):
        atexit.register(pipe.close)  # which ends it
    return server


def _serve(packages: list[str]) -> None:
    import gc
    import importlib
    import pkgutil
    import runpy
    import signal
    from contextlib import suppress

    if os.fork() != 0:
        os._exit(0)
    for name in packages:
        package = importlib.import_module(name)
        for one in pkgutil.walk_packages(package.__path__, f"{name}.") if name in READERS else ():
            with suppress(ImportError):  # of packages that are not installed
                importlib.import_module(one.name)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if (child := os.fork()) == 0:
            signal.alarm(PATIENCE_SECONDS)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor, file in enumerate(request["files"], 1):
                os.dup2(os.open(file, os.O_RDWR), descriptor)
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            sys.argv = [request["module"], *request["words"]]
            sys.orig_argv[:] = [sys.executable, "-m", *sys.argv]
            code = None
            try:
                runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
            except SystemExit as ended:
                code = ended.code
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(code or 0)  # taking down all those modules costs what importing them does
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
