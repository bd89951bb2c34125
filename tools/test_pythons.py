#!/usr/bin/env python3
"""Build hiwater and run its test suite on every CPython that is found, and end with a table of what came of it.

Looked through are PATH, pyenv's versions, and the folders in HIWATER_PYTHON_ROOTS (separated by colons): a prefix with
`bin/python3.14` in it, or the root of another system, which is entered with chroot and so needs root. Debug builds
(python3.14d, python3.14-dbg) and free-threaded ones (python3.14t) are interpreters of their own. Of several with the
same version and build the first is taken.

Exit code: 0 when every interpreter that was found passed, 1 when one did not, 2 when none was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import install

VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
TREE = Path(__file__).resolve().parent.parent
SUITE_SECONDS = 1200
# A dozen files are compiled as one, in less than half the time; `make` compiles each alone.
AT_ONCE = ("-C", "cmake.define.CMAKE_UNITY_BUILD=ON", "-C", "cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE=12")
# Only what changed is compiled: these builds follow one another. Others have a folder of their own (pyproject.toml).
KEPT_BUILD = ("--no-build-isolation", "-C", "build-dir=build/at-once/{wheel_tag}", *AT_ONCE)
IN_A_ROOT = "/opt/hiwater-tests"  # where another system keeps its copy of the tree and its environments
PROBE = """
import importlib.util, json, os, platform, sys, sysconfig
print(json.dumps({
    "python": sys.implementation.name,
    "version": "%d.%d" % sys.version_info[:2],
    "full": sys.version.split()[0],
    "flags": sys.abiflags,
    "libc": "musl" if str(sysconfig.get_config_var("HOST_GNU_TYPE")).endswith("musl") else "",
    "processor": platform.machine(),
    "real": os.path.realpath(sys.executable),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
}))
"""
# An emulated interpreter makes an environment without pip (that of this system puts packages there) and without scripts
# that activate it: qemu 7.2 looks for the attributes of files that shutil copies in this system, not in the other root.
EMULATED_ENVIRONMENT = """
import sys, venv
builder = venv.EnvBuilder(clear=True, symlinks=True)
builder.setup_scripts = lambda context: None
builder.create(sys.argv[1])
"""
# A system's root needs /proc, and terminals and a /dev/shm of its own; in a namespace of mounts that ends with the
# command nothing is left behind.
ENTER = """
set -e
mount -t proc proc "$0/proc"
mkdir -p "$0/dev/shm" "$0/dev/pts"
mount -t devpts devpts "$0/dev/pts"
mount -t tmpfs tmpfs "$0/dev/shm"
exec chroot "$0" sh -c 'cd "$0" && exec "$@"' "$@"
"""


@dataclass
class Interpreter:
    """A CPython that can build and test; `root` is the system it lives in, None for this one. `libc` is empty for
    glibc. Of another processor than this machine's it runs under an emulator, and builds nothing."""

    executable: str
    version: str
    full: str
    flags: str
    real: str
    root: Path | None
    libc: str = ""
    processor: str = platform.machine()

    @property
    def is_emulated(self) -> bool:
        return self.processor != platform.machine()

    @property
    def name(self) -> str:
        """What tells it from the others: version, build, C library and processor."""
        parts = (self.version + self.flags, self.libc, self.processor if self.is_emulated else "")
        return "-".join(filter(None, parts))

    @property
    def build(self) -> str:
        """The build in words."""
        return {"": "release", "d": "debug", "t": "free-threaded", "td": "free-threaded debug"}.get(
            self.flags, self.flags
        )


@dataclass
class Outcome:
    """What came of one interpreter; `step` is where it ended: "done" where the whole suite ran and nothing in it
    failed."""

    interpreter: Interpreter
    step: str = "environment"
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    lacking: list[str] = field(default_factory=list)


def inside(root: Path | None, folder: Path, words: list[str]) -> list[str]:
    """Return the command that runs `words` in `folder` (of `root`, where there is one)."""
    if root is None:
        return words
    return ["unshare", "--mount", "sh", "-c", ENTER, str(root), str(folder), *words]


def probe(executable: str, root: Path | None, *, headers: bool = True) -> tuple[Interpreter | None, str]:
    """Ask an interpreter what it is; return it, or None and what it lacks."""
    try:
        done = subprocess.run(
            inside(root, Path("/"), [executable, "-c", PROBE]), capture_output=True, text=True, timeout=60, check=True
        )
        told = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None, "does not run"
    if told["python"] != "cpython" or told["version"] not in VERSIONS:
        return None, ""
    if headers and told["processor"] != platform.machine():
        return None, f"is for {told['processor']}"
    if headers and not told["headers"]:
        return None, "has no headers"
    if not told["venv"]:
        return None, "has no venv or ensurepip"
    known = (told[name] for name in ("version", "full", "flags", "real"))
    return Interpreter(executable, *known, root, told["libc"], told["processor"]), ""


def executables() -> list[tuple[str, Path | None]]:
    """Return every file that by its name may be one of ours, with the root it lives in; pyenv's newest first."""
    names = [f"python{version}{suffix}" for version in VERSIONS for suffix in ("", "d", "-dbg", "t")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    by_age = sorted(
        pyenv.glob("*"), key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)], reverse=True
    )
    folders = [path / "bin" for path in by_age] + [
        Path(entry) for entry in os.get_exec_path() if not entry.endswith("/shims")
    ]
    roots = [Path(entry).resolve() for entry in os.environ.get("HIWATER_PYTHON_ROOTS", "").split(":") if entry]
    folders += [root / "bin" for root in roots if not (root / "usr/bin").is_dir()]
    found: list[tuple[str, Path | None]] = [
        (str(folder / name), None) for name in names for folder in folders if os.access(folder / name, os.X_OK)
    ]
    for root in roots:
        found += [(f"/usr/bin/{name}", root) for name in names if (root / "usr/bin" / name).exists()]
    return found


def find() -> tuple[list[Interpreter], list[str]]:
    """Return the interpreters to test, and a line for each that is there and cannot be used."""
    found: dict[str, Interpreter] = {}
    unusable: dict[str, None] = {}
    for executable, root in executables():
        if root is not None and os.geteuid() != 0:
            unusable[f"{root}: only root can enter it"] = None
            continue
        interpreter, lack = probe(executable, root)
        if interpreter is not None:
            found.setdefault(interpreter.name, interpreter)
        elif lack:
            unusable[f"{root or ''}{executable}: {lack}"] = None
    return sorted(found.values(), key=lambda one: (VERSIONS.index(one.version), one.flags)), list(unusable)


def environment(root: Path | None) -> dict[str, str]:
    """The variables that a command gets. What starts compilers here, such as ccache, may not be in another root."""
    left_out = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"}
    if root is not None:
        left_out |= {"CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER"}
    return {name: value for name, value in os.environ.items() if name not in left_out}


class Place:
    """Where one interpreter is tested: its environment, and for another system's root a copy of the tree."""

    def __init__(self, interpreter: Interpreter, work: Path) -> None:
        self._root = interpreter.root
        self._interpreter = interpreter
        self._folder = work if self._root is None else Path(IN_A_ROOT)
        self._tree = TREE if self._root is None else self._folder / "tree"
        self._bin = self._folder / interpreter.name / "bin"
        self.log = work / f"{interpreter.name}.log"

    def run(self, words: list[str], seconds: float = 900) -> tuple[int, str]:
        """Run a command in the tree; return its exit code and all it said, which also goes into the log."""
        command = inside(self._root, self._tree, words)
        with self.log.open("a") as log:
            log.write(f"$ {shlex.join(words)}\n")
            log.flush()
            begin = log.tell()
            try:
                code = subprocess.run(
                    command,
                    cwd=TREE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(self._root),
                    timeout=seconds,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = 124
        return code, self.log.read_text(errors="replace")[begin:]

    def python(self, *words: str, seconds: float = 900) -> tuple[int, str]:
        """Run the environment's interpreter."""
        return self.run([self.executable, *words], seconds)

    @property
    def executable(self) -> str:
        """The environment's interpreter, as its system sees it."""
        return str(self._bin / "python")

    def make(self) -> bool:
        """Make the environment anew."""
        self.log.unlink(missing_ok=True)
        words = ["-c", EMULATED_ENVIRONMENT] if self._interpreter.is_emulated else ["-m", "venv", "--clear"]
        return self.run([self._interpreter.executable, *words, str(self._bin.parent)])[0] == 0

    def install(self, *words: str) -> bool:
        """Install packages into the environment, in the versions of `make lock`."""
        return self.python("tools/install.py", *words)[0] == 0

    def install_hiwater(self) -> bool:
        """Build and install hiwater alone, of what a build needs and not of what it depends on."""
        return self.python("-m", "pip", "install", "--quiet", *KEPT_BUILD, "--no-deps", ".")[0] == 0


def copy_tree(root: Path) -> None:
    """Copy what git knows, and what it would add, to where the interpreters of another system see it."""
    to = root / IN_A_ROOT.lstrip("/") / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=TREE,
        capture_output=True,
        check=True,
    ).stdout
    shutil.rmtree(to, ignore_errors=True)
    for name in filter(None, os.fsdecode(listed).split("\0")):
        if (TREE / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, to / name)


def build_packages() -> list[str]:
    """Return what a build needs."""
    about = tomllib.loads((TREE / "pyproject.toml").read_text())
    return about["build-system"]["requires"] + [tool for tool in ("cmake", "ninja") if shutil.which(tool) is None]


def build(interpreter: Interpreter, work: Path, left_out: list[str]) -> Outcome:
    """Make an interpreter's environment and build in it; the step is "tests" where both went well."""
    outcome, place, began = Outcome(interpreter), Place(interpreter, work), time.monotonic()
    wanted = install.wanted(["test"], left_out=left_out)
    if not place.make() or not place.install("--no-compile", *build_packages()):
        return outcome
    if not place.install("--only-binary=:all:", *wanted):
        # Some package is not made for this interpreter: the tests that need it skip, and say so.
        outcome.lacking = [one for one in wanted if not place.install("--only-binary=:all:", one)]
    outcome.step = "build"
    if not place.install_hiwater():
        return outcome
    outcome.step = "tests"
    outcome.seconds = time.monotonic() - began
    return outcome


def test(outcome: Outcome, work: Path, pytest_words: list[str]) -> None:
    """Run the suite where all is built for it."""
    place, began = Place(outcome.interpreter, work), time.monotonic()
    code, said = place.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *pytest_words, seconds=SUITE_SECONDS)
    last = next((line for line in reversed(said.splitlines()) if " in " in line and re.search(r"\d+ \w+", line)), "")
    outcome.counts = {
        word.rstrip("s"): int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)
    }
    if code == 0:
        outcome.step = "done"
    outcome.seconds += time.monotonic() - began


def say(line: str = "") -> None:
    """Print a line now, whatever stdout is."""
    print(line, flush=True)


def show(outcomes: list[Outcome], unusable: list[str], work: Path) -> None:
    """Print the table."""
    say(f"\n{'interpreter':<22} {'build':<14} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for outcome in outcomes:
        one, counts = outcome.interpreter, outcome.counts
        failed = counts.get("failed", 0) + counts.get("error", 0)
        if counts:
            cells = f"{counts.get('passed', 0):>7} {failed:>7} {counts.get('skipped', 0):>8} {outcome.seconds:>8.0f}"
        else:
            came = "the tests passed, and said no numbers" if outcome.step == "done" else f"the {outcome.step} failed"
            cells = f"  {came}: see {work / one.name}.log"
        say(f"{'CPython ' + one.full:<22} {one.build:<14} {cells}")
        if outcome.lacking:
            say(f"{'':<22} without {', '.join(outcome.lacking)}")
    tested = {outcome.interpreter.version for outcome in outcomes}
    missing = [version for version in VERSIONS if version not in tested]
    for line in unusable:
        say(f"not tested: {line}")
    if missing:
        say(f"not tested, not found or left out: CPython {', '.join(missing)}")


def main() -> int:
    """Test on all that was asked for."""
    parser = argparse.ArgumentParser(description="Builds hiwater and runs its tests on every CPython that is found.")
    parser.add_argument("--list", action="store_true", help="say what is found, and test nothing")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="3.14, 3.14d, 3.14t …: these alone")
    parser.add_argument("--without", metavar="NAME", action="append", default=[], help="leave this one out")
    parser.add_argument("--build", action="store_true", help="make the environments, and test nothing")
    parser.add_argument("--built", action="store_true", help="use the environments that are there")
    parser.add_argument("--work", type=Path, default=TREE / "build/pythons", help="where environments and logs go")
    parser.add_argument(
        "--leave-out", nargs="+", default=[], metavar="NAME", help="packages of the tests that are not to be installed"
    )
    parser.add_argument("pytest", nargs="*", help="words for pytest, after --")
    arguments = parser.parse_args()
    found, unusable = find()
    chosen = [
        one for one in found if (not arguments.only or one.name in arguments.only) and one.name not in arguments.without
    ]
    if arguments.list:
        for one in chosen:
            say(f"{one.name:<6} {one.full:<10} {one.build:<14} {one.root or ''}{one.executable}")
        for line in unusable:
            say(f"not usable: {line}")
        return 0
    if not chosen:
        say("no CPython was found to test on: put one on PATH, or name its folder in HIWATER_PYTHON_ROOTS")
        return 2
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for root in {one.root for one in chosen if one.root is not None}:
        copy_tree(root)
    if arguments.built:
        outcomes = [Outcome(one, "tests") for one in chosen]
    else:
        # Environments are made side by side, since most of that is waiting; the suites run one after another, for the
        # clocks in them.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = list(pool.map(lambda one: build(one, work, arguments.leave_out), chosen))
    wanted = "tests" if arguments.build else "done"
    for one, outcome in zip(chosen, outcomes, strict=True):
        say(f"CPython {one.full} ({one.build}), {one.root or ''}{one.executable}")
        if outcome.step == "tests" and not arguments.build:
            test(outcome, work, arguments.pytest)
        if outcome.step != wanted:
            log = (work / f"{one.name}.log").read_text(errors="replace").splitlines()
            say("\n".join(log[-40:]))
        if arguments.build and outcome.lacking:
            say(f"without {', '.join(outcome.lacking)}")
    if not arguments.build:
        show(outcomes, unusable, work)
    return 0 if all(outcome.step == wanted for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
