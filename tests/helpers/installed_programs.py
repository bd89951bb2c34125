"""Installs small programs as `pip install .` does, without a package that builds: each is a module and a console
script of its name."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "installed_programs"
version = "1.0"
"""
_BACKEND = """
import pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "installed_programs-1.0-py3-none-any.whl", "installed_programs-1.0.dist-info/"
    modules = sorted(path for path in pathlib.Path().glob("*.py") if path.name != "backend.py")
    files = {path.name: path.read_text() for path in modules}
    files[info + "METADATA"] = "Metadata-Version: 2.1\\nName: installed_programs\\nVersion: 1.0\\n"
    files[info + "WHEEL"] = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    scripts = "".join(f"{path.stem} = {path.stem}:main\\n" for path in modules)
    files[info + "entry_points.txt"] = f"[console_scripts]\\n{scripts}"
    files[info + "RECORD"] = "".join(f"{file},,\\n" for file in [*files, info + "RECORD"])
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return name
"""


@dataclass(frozen=True)
class Installed:
    """Where they are: the folder of their modules, which PYTHONPATH must have, and that of their console scripts."""

    modules: Path
    scripts: Path

    def command(self, program: str, way: str) -> list[str]:
        """The words that run a program: with `-m`, or by its console script."""
        return ["-m", program] if way == "-m" else [str(self.scripts / program)]


def install(programs: Iterable[Path], folder: Path) -> Installed:
    """Install these modules below `folder`."""
    source, prefix = folder / "source", folder / "prefix"
    source.mkdir()
    for program in programs:
        (source / program.name).write_text(program.read_text())
    (source / "pyproject.toml").write_text(_PROJECT)
    (source / "backend.py").write_text(_BACKEND)
    words = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--prefix",
        str(prefix),
        str(source),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True, timeout=300)
    places = sysconfig.get_paths(vars={"base": str(prefix), "platbase": str(prefix)})
    return Installed(Path(places["purelib"]), Path(places["scripts"]))
