"""The programs of `hiwater check`: which they are, and how they are run. `[tool.hiwater.check]` in pyproject.toml
names them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hiwater._os import native
from hiwater._os import settings as all_settings
from hiwater.errors import MORE_PROCESSES, OutputFailed, ProgramFailed, UsageError

_TABLE = "[tool.hiwater.check]"
_REMEDY = "see the page on CI in the manual"


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The table of the nearest pyproject.toml, which is in `folder`; empty without one."""

    table: Mapping[str, Any]
    folder: str

    def text(self, name: str) -> str | None:
        """A setting, or None. Raises UsageError if it is no text."""
        value = self.table.get(name)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} in {_TABLE} is {value!r}", "write it as text, in quotes")
        return value

    def flag(self, name: str) -> bool:
        """A setting that is true or false. Raises UsageError for anything else."""
        value = self.table.get(name, False)
        if not isinstance(value, bool):
            raise UsageError(f"{name} in {_TABLE} is {value!r}", "write true or false")
        return value

    def path(self, name: str) -> str | None:
        """A path, which is relative to the file's folder."""
        value = self.text(name)
        return None if value is None else os.path.join(self.folder, value)

    def programs(self, chosen: Sequence[str] | None) -> dict[str, list[str]]:
        """The words of each program by its name; only the chosen ones, if there are any. Raises UsageError."""
        programs = self.table.get("programs")
        if not programs:
            raise UsageError(
                "no capture is given, and no pyproject.toml from here upwards names programs to check",
                f'give a capture, or write `programs = {{ name = "script.py" }}` in {_TABLE}',
            )
        if not isinstance(programs, dict) or not all(isinstance(words, str) for words in programs.values()):
            raise UsageError(f"programs in {_TABLE} is {programs!r}", 'write `name = "script.py arguments"` for each')
        unknown = [repr(name) for name in chosen or () if name not in programs]
        if unknown:
            raise UsageError(f"there is no program {', '.join(unknown)} in {_TABLE}", f"it has {', '.join(programs)}")
        names = [name for name in programs if chosen is None or name in chosen]
        for name in names:
            if "/" in name or not name or name.startswith("."):
                raise UsageError(f"{name!r} in {_TABLE} cannot be the name of a file", "choose a name without / and .")
        return {name: _words(name, programs[name]) for name in names}


NONE = CheckSettings({}, "")


def settings() -> CheckSettings:
    """The settings for this process in its current folder. Raises UsageError."""
    found = all_settings.here(b"tool.hiwater")
    table = found.table("check")
    return CheckSettings(table, os.path.dirname(found.file) or os.getcwd())


def _words(name: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the program {name} in {_TABLE} cannot be read ({error})", "close its quotes") from error
    if not words:
        raise UsageError(f"the program {name} in {_TABLE} is empty", 'write "script.py", "-m module" or "-c code"')
    return words


def name_of(words: Sequence[str]) -> str:
    """The name of a program that is given as words for `hiwater run`."""
    from hiwater.analysis.check import program_name

    start = next((place for place, word in enumerate(words) if word in ("-m", "-c") or not word.startswith("-")), 0)
    return program_name(words[start:])


def record(programs: Mapping[str, Sequence[str]], folder: str, captures: str, *, warm_up: bool) -> dict[str, str]:
    """Run each program in `folder` as `hiwater run` does, and return the paths of the captures, which are in
    `captures`.

    Hashes of text are the same in each run, unless PYTHONHASHSEED says otherwise: sizes of sets and dicts depend on
    them. What the program prints goes to stderr. Raises ProgramFailed, OutputFailed, and EngineUnavailable or
    EngineFailed where nothing can be recorded.
    """
    native.load()
    try:
        os.makedirs(captures, exist_ok=True)
    except OSError as error:
        raise OutputFailed(f"the folder {captures!r} cannot be made ({error.strerror})", "choose another") from error
    environment = {"PYTHONHASHSEED": "0", **os.environ}
    found = {}
    for name, words in programs.items():
        found[name] = os.path.join(os.path.abspath(captures), f"{name}.hiw")
        command = [sys.executable, "-m", "hiwater", "run", "-q", "-o", found[name], *words]
        for _ in range(1 + warm_up):
            try:
                done = subprocess.run(command, cwd=folder, env=environment, stdout=sys.__stderr__, check=False)
            except OSError as error:
                raise ProgramFailed(
                    f"the program {name!r} cannot be started ({error.strerror})", MORE_PROCESSES
                ) from error
            if done.returncode:
                raise ProgramFailed(
                    f"the program {name!r} ended with {done.returncode}, so its figures are not those of a whole run",
                    "make it end with 0",
                )
    return found
