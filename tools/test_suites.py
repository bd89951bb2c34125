#!/usr/bin/env python3
"""Run parts of other projects' test suites plain and recorded, and compare them test by test.

The projects, of fixed versions, are installed into an environment of their own under `build/suites`; the tests of those
whose wheels have none are taken from their source packages. Results and exit codes must be the same, the engine must
find itself sound at the end, and the capture's sums must be right.

Exit code: 0 when nothing differs, 1 when something does, 2 when the environment cannot be made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOLS), str(TOOLS.parent / "tests" / "helpers")]

import test_cpython  # noqa: E402 - the same
import test_pythons  # noqa: E402 - the same
from test_cpython import say  # noqa: E402 - the same

import faithful  # noqa: E402 - found by the line above


@dataclass(frozen=True)
class Project:
    """What to install, and which of its tests to run: modules of the installed package, or files below its source's
    folder."""

    version: str
    tests: tuple[str, ...]
    from_source: bool = False
    options: tuple[str, ...] = ()


PROJECTS = {
    "numpy": Project(
        "2.4.6",
        ("numpy._core.tests.test_multiarray", "numpy._core.tests.test_mem_overlap", "numpy._core.tests.test_nditer",
            "numpy._core.tests.test_stringdtype",
         "numpy._core.tests.test_multithreading", "numpy._core.tests.test_item_selection", "numpy.fft",
         "numpy.ma.tests.test_core", "numpy.lib.tests.test_io"),
    ),
    "pandas": Project(
        "3.1.1",
        ("pandas.tests.frame.test_constructors", "pandas.tests.groupby.test_groupby",
            "pandas.tests.reshape.merge.test_merge", "pandas.tests.io.json",
         "pandas.tests.libs", "pandas.tests.arrays.string_", "pandas.tests.indexes.multi"),
    ),
    "networkx": Project("3.6.1", ("networkx.classes", "networkx.readwrite", "networkx.algorithms.shortest_paths",
        "networkx.algorithms.flow")),
    "greenlet": Project(
        "3.5.6",
        tuple(f"greenlet.tests.test_{name}" for name in (
            "contextvars", "cpp", "extension_interface", "gc", "generator", "generator_nested", "greenlet",
            "greenlet_trash", "stack_saved", "throw", "tracing", "weakref",
        )),
    ),
    "gevent": Project(
        "26.9.0",
        tuple(f"gevent.tests.test__{name}" for name in ("queue", "pool", "event", "events", "greenlet", "local", "lock",
            "semaphore", "threadpool")),
    ),
    "SQLAlchemy": Project("2.1.9", ("test/engine", "test/base", "test/orm/test_unitofwork.py",
        "test/sql/test_compiler.py"), from_source=True),
    "attrs": Project("26.1.0", ("tests",), from_source=True, options=("--ignore=tests/test_mypy.yml",)),
    "click": Project("8.5.1", ("tests",), from_source=True),
    "Jinja2": Project("3.1.6", ("tests",), from_source=True),
    "aiohttp": Project(
        "3.14.5",
        ("tests/test_client_functional.py", "tests/test_web_functional.py", "tests/test_http_parser.py",
            "tests/test_streams.py", "tests/test_urldispatch.py"),
        from_source=True,
        options=("-o", "addopts=",),
    ),
}  # fmt: skip
# What the tests need, and what reading the source packages' metadata does.
NEEDED = (
    "psutil", "rich", "coverage==7.17.3", "objgraph==3.7.0", "pytest-timeout", "pytest==9.2.0", "hypothesis==6.170.15",
    "pytest-mock==3.17.0", "blockbuster==1.5.29", "trustme==1.2.1", "isal==1.9.1", "zlib-ng==1.1.0", "freezegun==1.5.5",
    "re-assert==1.1.0", "proxy.py==2.4.10", "trio==0.35.0", "cloudpickle==3.1.2", "setuptools>=77,<82", "cython",
    "flit_core", "hatchling", "hatch-vcs", "hatch-fancy-pypi-readme", "pkgconfig",
)  # fmt: skip
PASSED_OR_FAILED = (0, 1)  # pytest's exit codes where it ran the tests
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml", "{junit}")


def sources(python: str, name: str, version: str, folder: Path) -> Path | None:
    """Return the folder of a project's source, which is fetched where it is not there yet; None where it cannot be
    had."""
    home = folder / f"{name}-{version}"
    if not home.is_dir():
        fetched = folder / f"{name}-{version}-fetched"
        words = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(fetched)]
        subprocess.run([python, "-m", "pip", *words, f"{name}=={version}"], check=False)
        archives = list(fetched.glob("*.tar.gz"))
        if not archives:
            return None
        with tarfile.open(archives[0]) as archive:
            archive.extractall(fetched, filter="data")
        shutil.move(str(archives[0]).removesuffix(".tar.gz"), home)
        shutil.rmtree(fetched)
    return home


def suite(name: str, python: str, folder: Path, seconds: float) -> faithful.Suite | None:
    """Return the suite of a project; None where its source cannot be had."""
    project = PROJECTS[name]
    if not project.from_source:
        words = (*PYTEST, *project.options, "--pyargs", *project.tests)
        return faithful.Suite(name, words, seconds, PASSED_OR_FAILED)
    home = sources(python, name, project.version, folder)
    if home is None:
        return None
    tests = [str(home / path) for path in project.tests]
    return faithful.Suite(name, (*PYTEST, "--rootdir", str(home), *project.options, *tests), seconds, PASSED_OR_FAILED)


def prepare(work: Path) -> str | None:
    """Make the environment in `work`, unless it is there; install this hiwater into it. Return its interpreter."""
    python = str(work / "bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [f"{name}=={project.version}" for name, project in PROJECTS.items()]
    steps = [
        [*install, "--prefer-binary", *NEEDED, *wanted, *test_pythons.build_packages()],
        [*install, *test_pythons.KEPT_BUILD, "--no-deps", str(test_pythons.TREE)],
    ]
    if not Path(python).exists():
        steps.insert(0, [sys.executable, "-m", "venv", str(work)])
    return python if all(subprocess.run(step, check=False).returncode == 0 for step in steps) else None


def main() -> int:
    """Compare all that was asked for."""
    parser = argparse.ArgumentParser(description="Compares parts of other projects' test suites plain and recorded.")
    parser.add_argument("projects", nargs="*", choices=[[], *PROJECTS], help="these alone")
    parser.add_argument("--mode", action="append", choices=list(faithful.MODES), help="record in this mode alone")
    parser.add_argument("--seconds", type=float, default=900, help="longest time for one run of one suite")
    parser.add_argument("--jobs", type=int, default=1, help="how many suites run at the same time")
    parser.add_argument(
        "--work", type=Path, default=test_pythons.TREE / "build/suites", help="where the environment and the log go"
    )
    arguments = parser.parse_args()
    faithful.default_signals()
    os.environ["GREENLET_SKIP_LEAKCHECKS"] = (
        "1"  # its tests would repeat themselves until the collector finds nothing new
    )
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python = prepare(work / "environment")
    if python is None:
        say("the environment could not be made: see above")
        return 2
    suites = {name: suite(name, python, work, arguments.seconds) for name in arguments.projects or PROJECTS}
    lacking = [name for name, one in suites.items() if one is None]
    if lacking:
        say(f"the source of {', '.join(lacking)} could not be had: see above")
        return 2
    modes = arguments.mode or list(faithful.MODES)
    say(f"CPython {sys.version.split()[0]}: tests, seconds plain, {', '.join(modes)}")
    chosen = [one for one in suites.values() if one is not None]
    same = test_cpython.compare_all(faithful.Place(python), chosen, modes, arguments.jobs, work / "log.jsonl")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
