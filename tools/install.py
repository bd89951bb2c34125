#!/usr/bin/env python3
"""Install packages into the environment of the interpreter that runs this, in the versions of `make lock`.

`python tools/install.py --extra test numpy` installs numpy and what pyproject.toml's extra `test` names. uv takes a
tenth of the processor time that pip takes. It reads nothing of pip's configuration, and so may not find what pip
finds: pip does what uv cannot.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
LOCKED = ["install", "--quiet", "--constraint", str(TREE / "requirements/dev.txt")]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", *LOCKED, "--no-compile"]
UV = [sys.executable, "-m", "uv", "pip", *LOCKED, "--python", sys.executable]


def wanted(
    extras: Sequence[str], *, dependencies: bool = True, groups: Sequence[str] = (), left_out: Sequence[str] = ()
) -> list[str]:
    """Return what these parts of pyproject.toml name, but for the packages that are left out."""
    about = tomllib.loads((TREE / "pyproject.toml").read_text())
    named = list(about["project"]["dependencies"]) if dependencies else []
    named += [one for extra in extras for one in about["project"]["optional-dependencies"][extra]]
    named += [one for group in groups for one in about["dependency-groups"][group]]
    return [one for one in named if re.split("[<>=!~; ]", one)[0] not in left_out]


def install(words: list[str]) -> int:
    """Install with uv, or with pip; return the exit code."""
    if importlib.util.find_spec("uv") is None:
        subprocess.run([*PIP, "uv"], check=False, stderr=subprocess.DEVNULL)
    if subprocess.run([*UV, *words], check=False, capture_output=True).returncode == 0:
        return 0
    return subprocess.run([*PIP, *words], check=False).returncode


def main() -> int:
    """Install what was asked for."""
    parser = argparse.ArgumentParser(
        description="Installs packages in the versions of requirements/dev.txt. Other words are for the installer."
    )
    parser.add_argument("--dependencies", action="store_true", help="what hiwater needs to run")
    parser.add_argument("--extra", action="append", default=[], help="what this extra of pyproject.toml names")
    parser.add_argument("--group", action="append", default=[], help="what this group of pyproject.toml names")
    parser.add_argument("--no-compile", action="store_true")
    arguments, words = parser.parse_known_args()
    code = install(words + wanted(arguments.extra, dependencies=arguments.dependencies, groups=arguments.group))
    if not arguments.no_compile:
        # What tests start writes no compiled modules. The packages' own tests are a fifth of all, and what no test
        # imports another one; templates, which are no Python, may fail.
        compileall.compile_dir(
            sysconfig.get_path("purelib"), quiet=2, rx=re.compile("/(tests|fontTools|mypy|mypyc|pip)/"), workers=0
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
