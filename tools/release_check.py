#!/usr/bin/env python3
"""Build a release and check it as somebody gets it, part by part: `make release-check`, or some parts of it alone,
`make release-check WORDS='readme start'`. What cannot be tried here is a failure, unless it is named:
`--untried 'cp312-*musllinux*.whl'` leaves out wheels that no interpreter here can run.

Interpreters are looked for as `tools/test_pythons.py` does; they need no headers, so the root of a minimal system
(debootstrap --variant=minbase --include=python3,python3-venv) in HIWATER_PYTHON_ROOTS is one, too. So is a CPython that
was built against musl (tools/musl_python.sh), and one for another processor that an emulator runs
(tools/emulated_python.sh). Of several for a version, one in a root of its own is taken.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import wheels
from test_pythons import IN_A_ROOT, TREE, VERSIONS, Interpreter, Place, executables, probe, say

WORK = TREE / "build/release-check"
DIST = TREE / "dist"
INSTALL_SECONDS, START_SECONDS = 10, 5
DOWNLOAD_BYTES = 40_000_000
# Where the wheels of what hiwater depends on may come from, by the C library.
PLATFORMS = {"": ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17"), "musl": ("musllinux_1_2",)}
FOR_README = ("pandas", "pytest", "gunicorn")
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "clang++")
STARTERS = ("uv==0.13.9", "pipx==1.8.0")
METADATA_READERS = ("py-rattler-build==0.73.0", "cffconvert==2.0.0")
# Prints what the recipe for conda asks for on each system.
READ_RECIPE = """
import json, sys
from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig
recipe = Stage0Recipe.from_yaml(open("conda/recipe.yaml").read())
variant = {"python": ["3.13.*"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.17"]}
needed = {}
for system in ("linux-64", "linux-aarch64", "osx-arm64", "win-64"):
    config = RenderConfig(platform=PlatformConfig(target_platform=system))
    (rendered,) = recipe.render(VariantConfig(variant), config)
    needed[system] = rendered.recipe.requirements.to_dict()["run"]
print(json.dumps(needed))
"""

_failures: list[str] = []
_untried: list[str] = []  # patterns of wheels


def expect(holds: bool, what: str) -> None:
    say(f"{'ok' if holds else 'FAILED'}  {what}")
    if not holds:
        _failures.append(what)


def built() -> tuple[list[Path], list[Path]]:
    """The wheels and the source distributions that there are."""
    return sorted(DIST.glob("hiwater-*.whl")), sorted(DIST.glob("hiwater-*.tar.gz"))


def runs(words: list[str | Path], what: str, *, seconds: float = 7200, **variables: str) -> None:
    """Expect that a command succeeds."""
    done = subprocess.run(
        words,
        cwd=TREE,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    said = f": {(done.stdout + done.stderr)[-2000:].strip()}" if done.returncode else ""
    expect(done.returncode == 0, what + said)


# The sources


def check_build() -> None:
    """All wheels, each twice, into dist."""
    done = subprocess.run([sys.executable, TREE / "tools/wheels.py", "--twice"], cwd=TREE, check=False)
    expect(done.returncode == 0, "the wheels are built, and have the same bytes twice")


def version() -> str:
    (found,) = re.findall(r'^__version__ = "(.*)"$', (TREE / "src/hiwater/__init__.py").read_text(), re.MULTILINE)
    return str(found)


def other_versions() -> list[str]:
    """Which files of the sources say another version than `__init__.py`, where pyproject.toml reads it."""
    here = version()
    changes = re.search(r"^## (\S+?),? ", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.search(r"^version: (.+)$", (TREE / "CITATION.cff").read_text(), re.MULTILINE)
    packed = re.search(r"^  version: (.+)$", (TREE / "conda/recipe.yaml").read_text(), re.MULTILINE)
    found = {"CHANGELOG.md": changes, "CITATION.cff": cited, "conda/recipe.yaml": packed}
    return [file for file, match in found.items() if match is None or match[1] != here]


def lacking() -> list[str]:
    """What a release has and dist has not, by the parts of the names of files."""
    names = [f"cp{one.replace('.', '')}-*{target.tag}" for one in VERSIONS for target in wheels.TARGETS]
    wanted = [f"hiwater-{version()}-{name}.whl" for name in ("py3-none-any", *names)]
    return [
        name for name in (f"hiwater-{version()}.tar.gz", *wanted) if not any(DIST.glob(name.replace("-cp", "-*cp")))
    ]


def check_versions() -> None:
    """One version in the sources, the tag and dist, which has all of it."""
    here = version()
    expect(not other_versions(), f"the sources say {here} {' but for '.join(['', *other_versions()])}".rstrip())
    told = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False)
    expect(set(told.stdout.split()) <= {f"v{here}"}, f"no tag of this commit says other than v{here}")
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=TREE, capture_output=True, text=True, check=False)
    expect(changed.stdout == "", f"the sources are those of the commit {changed.stdout[:300].strip()}".rstrip())
    missing = lacking()
    expect(not missing, f"{DIST} has all of a release{''.join(f'{chr(10)}        but for {name}' for name in missing)}")
    others = [path.name for paths in built() for path in paths if re.split(r"-|\.tar", path.name)[1] != here]
    expect(not others, f"all of {DIST} is of {here}")


def dependencies(system: str) -> list[str]:
    """Those of pyproject.toml on a system that conda calls so, in its words."""
    about = tomllib.loads((TREE / "pyproject.toml").read_text())
    asked = [one.partition("; ") for one in about["project"]["dependencies"]]
    known = {"", "sys_platform != 'linux'"}
    assert {marker for _, _, marker in asked} <= known
    return [one.replace(">=", " >=") for one, _, marker in asked if marker == "" or not system.startswith("linux")]


def environment(name: str, *packages: str) -> Path:
    """An environment of this interpreter with some packages; return its folder of commands."""
    commands = WORK / name / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--clear", commands.parent], check=True)
    subprocess.run([commands / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
    return commands


def check_metadata() -> None:
    """The recipe for conda, as conda's own tools read it, and CITATION.cff by its schema."""
    readers = environment("metadata", *METADATA_READERS)
    read = [readers / "python", "-c", READ_RECIPE]
    done = subprocess.run(read, cwd=TREE, capture_output=True, text=True, check=False)
    needed = json.loads(done.stdout) if done.returncode == 0 else {}
    wrong = [system for system, words in needed.items() if words != ["python", *dependencies(system)]]
    expect(bool(needed) and not wrong, f"conda/recipe.yaml {' '.join(wrong)} {done.stderr[-300:]}".rstrip())
    runs([readers / "cffconvert", "--validate", "-i", "CITATION.cff"], "CITATION.cff")


def check_docs() -> None:
    """The documentation, without a broken link."""
    runs(["make", "docs"], "make docs")


def check_sdist() -> None:
    """From the source distribution come the same one and, with the compiler of this system, an engine that records."""
    (sdist,) = built()[1]
    source = WORK / "sdist"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (unpacked,) = source.iterdir()
    (source / "again").mkdir()
    builder = environment("sdist-build", *wheels.build_packages())
    again = f"import os; os.chdir({str(unpacked)!r}); {wheels.BUILD_SDIST}"
    runs(
        [builder / "python", "-c", again, source / "again"], "builds from itself", SOURCE_DATE_EPOCH=wheels.changed_at()
    )
    same = {wheels.digest(path) for path in (sdist, *(source / "again").glob("*.tar.gz"))}
    expect(len(same) == 1, f"{sdist.name} makes {sdist.name}, the same bytes")
    python = builder / "python"
    runs(
        [python, "-m", "pip", "install", "--quiet", sdist],
        f"pip install {sdist.name}, with the compiler of this system",
    )
    runs([python, TREE / "tools/truth_probe.py"], f"{sdist.name} records what is known")


# An installation


@functools.cache
def interpreters() -> list[Interpreter]:
    """One of each version, C library and processor, in a root of its own where there is one."""
    found: dict[str, Interpreter] = {}
    for executable, root in sorted(executables(), key=lambda one: one[1] is None):
        interpreter, _ = probe(executable, root, headers=False)
        if interpreter is not None and not interpreter.flags:
            found.setdefault(interpreter.name, interpreter)
    return list(found.values())


def suits(wheel: Path, interpreter: Interpreter) -> bool:
    """Whether the wheel is for this version, C library and processor."""
    _, _, version_, _, system = wheel.stem.split("-")
    is_known = version_ == f"cp{interpreter.version.replace('.', '')}" and system.endswith(interpreter.processor)
    return is_known and (interpreter.libc or "many") in system


class Installed:
    """An environment of an interpreter with nothing but its own commands on PATH, so without a compiler."""

    def __init__(self, interpreter: Interpreter, *files: Path) -> None:
        """Make it, beside copies of some files."""
        self._interpreter = interpreter
        self._place = Place(interpreter, WORK)
        self.executable = self._place.executable
        self.name = f"{interpreter.name} ({interpreter.full})"
        root = interpreter.root
        if root is not None:
            has = [name for name in COMPILERS if any((root / folder / name).exists() for folder in ("usr/bin", "bin"))]
            self.name += f" in {root.name}, {'which has no compiler' if not has else 'without its compiler on PATH'}"
        self.folder = Path(IN_A_ROOT) if root else WORK
        self.outside = root / IN_A_ROOT.lstrip("/") if root else WORK
        (self.outside / "tree").mkdir(parents=True, exist_ok=True)  # where commands in another system's root begin
        for file in files:
            shutil.copy2(file, self.outside)
        self._cached = self.outside / "cached"
        shutil.rmtree(self._cached, ignore_errors=True)
        self.is_made = self._place.make()
        expect(self.is_made, f"{self.name}: an environment{'' if self.is_made else f', see {self._place.log}'}")

    def download(self, *what: str | Path) -> int:
        """Packages and what is installed with them, beside the environment: some interpreters have no network, or no
        OpenSSL. Return their size in bytes."""
        to = ["--only-binary=:all:", "--dest", str(self._cached)]
        words = ["download", "--quiet", *to, *self._asked_of_pip(), *map(str, what)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        return sum(path.stat().st_size for path in self._cached.glob("*.whl"))

    def python(self, *words: str, seconds: float = 900) -> tuple[int, str]:
        path = f"PATH={Path(self.executable).parent}"
        return self._place.run(["env", path, "PIP_DISABLE_PIP_VERSION_CHECK=1", self.executable, *words], seconds)

    def install(self, *words: str) -> tuple[int, str]:
        """Install what was downloaded. An emulated interpreter's own pip takes a script for its executable, and so
        finds no wheel for musl: this system's pip puts the packages there."""
        found = ["--no-index", "--find-links", str(self.folder / "cached")]
        one = self._interpreter
        if not one.is_emulated:
            return self.python("-m", "pip", "install", *found, *words)
        site = Path(self.executable).parent.parent / f"lib/python{one.version}/site-packages"
        target = ["--upgrade", "--target", str(site), "--only-binary=:all:", "--ignore-requires-python"]
        target += self._asked_of_pip()
        command = [sys.executable, "-m", "pip", "install", *found, *target, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def _asked_of_pip(self) -> list[str]:
        """What another interpreter's pip is told of this one."""
        one = self._interpreter
        platforms = [word for name in PLATFORMS[one.libc] for word in ("--platform", f"{name}_{one.processor}")]
        return ["--implementation", "cp", "--python-version", one.version, *platforms]

    def shows(self, words: list[str], word: str, what: str, *, seconds: float = 900) -> str:
        """Expect that Python succeeds and says a word; show what it said where it does not. Return that."""
        code, said = self.python(*words, seconds=seconds)
        is_right = code == 0 and word in said
        expect(is_right, f"{self.name}: {what}{'' if is_right else f': {said[-1500:].strip()}'}")
        return said


def check_wheels() -> None:
    """Each wheel where there is no compiler: it installs, records known programs, and that is read."""
    for wheel in built()[0]:
        fitting = [one for one in interpreters() if suits(wheel, one)]
        if not fitting and "-none-any" not in wheel.name:
            is_named = any(fnmatch.fnmatch(wheel.name.removeprefix(f"hiwater-{version()}-"), one) for one in _untried)
            expect(is_named, f"{wheel.name}: nothing here runs it{', as was said' if is_named else ''}")
        for one in fitting:
            check_wheel(one, wheel)


def check_wheel(interpreter: Interpreter, wheel: Path) -> None:
    """Nothing but the environment's own commands is on PATH. An emulator has no say in how long something takes."""
    here = Installed(interpreter, wheel, TREE / "examples/etl.py", TREE / "tools/truth_probe.py")
    if not here.is_made:
        return
    size = here.download(wheel)
    expect(size <= DOWNLOAD_BYTES, f"{here.name}: {wheel.name} and its dependencies have {size / 1e6:.1f} MB")
    began = spent()
    code, said = here.install("--quiet", str(here.folder / wheel.name))
    seconds = spent() - began
    is_quick = seconds <= INSTALL_SECONDS or interpreter.is_emulated
    told = f"{here.name}: installs in {seconds:.1f} s of processor time"
    expect(code == 0 and is_quick, told if code == 0 else f"{told}: {said[-1500:]}")
    here.shows([str(here.folder / "truth_probe.py")], " of ", "truth_probe.py", seconds=3600)
    check_demo(here, interpreter)


def check_demo(here: Installed, interpreter: Interpreter) -> None:
    """The example, its report and its page. Where pandas cannot be had, another program."""
    capture, page = str(here.folder / "etl.hiw"), str(here.folder / "etl.html")
    program, line = [str(here.folder / "etl.py")], "etl.py:82 in Pipeline.apply"
    if interpreter.is_emulated:  # pandas takes minutes there
        program, line = ["-c", "held = [bytearray(10**6) for _ in range(90)]"], "<-c>:1"
    else:
        here.download("pandas")
        here.install("--quiet", "pandas")
    hiwater = ["-m", "hiwater"]
    here.shows([*hiwater, "run", "-o", capture, *program], line, "hiwater run")
    here.shows([*hiwater, "report", capture], line.partition(":")[0], "hiwater report")
    here.shows([*hiwater, "report", capture, "--html", "-o", page], "", "hiwater report --html")
    made = here.outside / "etl.html"
    expect(made.exists() and made.stat().st_size > 100_000, f"{here.name}: the page")


def spent() -> float:
    """The processor time of all commands so far: it depends less on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_a_root() -> tuple[Interpreter, Path] | None:
    """An interpreter of a minimal system, and its wheel."""
    pairs = [(one, wheel) for one in interpreters() for wheel in built()[0] if one.root and suits(wheel, one)]
    return next((pair for pair in pairs if pair[0].libc == "" and not pair[0].is_emulated), None)


def check_readme() -> None:
    """README's commands and its program, in a minimal system."""
    found = in_a_root()
    expect(found is not None, "there is a minimal system (debootstrap) with an interpreter that a wheel is for")
    if found is None:
        return
    interpreter, wheel = found
    files = (wheel, TREE / "README.md", TREE / "tools/readme_commands.py", TREE / "examples/etl.py")
    here = Installed(interpreter, *files)
    here.download(wheel, *FOR_README)
    here.install("--quiet", str(here.folder / wheel.name), *FOR_README)
    words = [str(here.folder / file.name) for file in (files[2], files[1], files[3])]
    code, said = here.python(*words, seconds=3600)
    say(said.rstrip())
    expect(code == 0, f"{here.name}: README's commands")


def check_without_engine() -> None:
    """Where no wheel with an engine is for an interpreter: the pure wheel runs programs, and says what it lacks. The
    source distribution says what it needs where there is no compiler."""
    found, pure = in_a_root(), [wheel for wheel in built()[0] if "-none-any" in wheel.name]
    expect(found is not None and bool(pure), "there is a minimal system (debootstrap), and a wheel for any system")
    if found is None or not pure:
        return
    (sdist,) = built()[1]
    here = Installed(found[0], pure[0], sdist)
    here.download(pure[0], *wheels.build_packages(), "cmake", "ninja")
    code, said = here.install("--no-deps", str(here.folder / sdist.name))
    expect(
        code != 0 and "no C++ compiler" in said,
        f"{here.name}: pip install {sdist.name} says that a compiler is missing",
    )
    here.install("--quiet", str(here.folder / pure[0].name))
    hiwater, without = ["-m", "hiwater"], "built without its engine"
    what = f"{pure[0].name}: hiwater run says what it cannot do"
    said = here.shows([*hiwater, "run", "-c", "print('ran')"], without, what)
    expect("ran\n" in said, f"{here.name}: the program ran")
    _, said = here.python(*hiwater, "doctor")
    expect(without in said, f"{here.name}: hiwater doctor says why")
    sampled = str(here.folder / "sampled.hiw")
    program = [here.executable, "-c", "held = bytearray(50_000_000); import time; time.sleep(1)"]
    here.shows([*hiwater, "sample", "-o", sampled, "--", *program], "", "hiwater sample")
    here.shows([*hiwater, "report", sampled], "resident", "hiwater report")


def check_start() -> None:
    """`uvx hiwater run` and `pipx run`, where the packages are in their caches."""
    this = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    fitting = [wheel for wheel in built()[0] if re.search(rf"-{this}-.*manylinux.*_{platform.machine()}", wheel.name)]
    expect(bool(fitting), f"there is a wheel for {this} here")
    if not fitting:
        return
    starters = environment("starters", *STARTERS)
    program = ["run", "-q", "-o", WORK / "started.hiw", "-c", "pass"]
    commands = {
        "uvx": ["uvx", "--isolated", "--from", fitting[0], "--python", sys.executable, "hiwater", *program],
        "pipx run": ["pipx", "run", "--python", sys.executable, "--spec", fitting[0], "hiwater", *program],
    }
    for name, words in commands.items():
        cold, warm = (started([starters / words[0], *words[1:]]) for _ in range(2))  # the first fills the cache
        expect(
            warm[1] == "" and warm[0] <= START_SECONDS,
            f"{name} hiwater run: {cold[0]:.1f} s, then {warm[0]:.1f} s {warm[1]}",
        )


def started(words: list[str | Path]) -> tuple[float, str]:
    """How many seconds a command takes, and what it said if it failed."""
    folders = {name: str(WORK / name.lower()) for name in ("UV_CACHE_DIR", "PIPX_HOME")}
    began = time.monotonic()
    done = subprocess.run(words, cwd=WORK, env=os.environ | folders, capture_output=True, text=True, check=False)
    return time.monotonic() - began, done.stderr[-600:] if done.returncode else ""


PARTS: dict[str, Callable[[], None]] = {
    "build": check_build,
    "versions": check_versions,
    "metadata": check_metadata,
    "docs": check_docs,
    "sdist": check_sdist,
    "wheels": check_wheels,
    "readme": check_readme,
    "without-engine": check_without_engine,
    "start": check_start,
}


def main() -> int:
    listed = "".join(f"\n  {name:<16}{(part.__doc__ or '').strip()}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        description=f"Builds a release and checks it.\n\nparts:{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="these alone, in the order that they have here")
    parser.add_argument(
        "--untried",
        metavar="PATTERN",
        action="append",
        default=[],
        help="wheels that nothing here runs, by their whole names behind the version",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    _untried.extend(arguments.untried)
    WORK.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in (name for name in PARTS if not arguments.parts or name in arguments.parts):
        say(f"\n== {name}")
        before = len(_failures)
        try:
            PARTS[name]()
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # the other parts are still to be seen
            expect(False, f"{name}: {error}")
        failed += [name] * (len(_failures) > before)
    say(
        "\nall is well"
        if not failed
        else f"\n{len(_failures)} failed. Again: make release-check WORDS='{' '.join(failed)}'"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
