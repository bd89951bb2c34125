#!/usr/bin/env python3
"""Check what `make wheels` built, as somebody gets it: the version is the same everywhere, and each wheel installs into
an environment without a compiler, records with the right figures (tools/truth_probe.py), and makes a report and a page.

Interpreters are looked for as `tools/test_pythons.py` does; they need no headers, so the root of a minimal system
(debootstrap --variant=minbase --include=python3,python3-venv) in HIWATER_PYTHON_ROOTS is one, too. So is a CPython that
was built against musl (tools/musl_python.sh).
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from test_pythons import IN_A_ROOT, TREE, Interpreter, Place, executables, probe, say

WORK = TREE / "build/release-check"
DIST = TREE / "dist"
INSTALL_SECONDS, START_SECONDS = 10, 5
DOWNLOAD_BYTES = 40_000_000
# Where the wheels of what hiwater depends on may come from, by the C library.
PLATFORMS = {
    "": ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64"),
    "musl": ("musllinux_1_2_x86_64",),
}
UV = "uv==0.13.9"
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


def expect(holds: bool, what: str) -> None:
    say(f"{'ok' if holds else 'FAILED'}  {what}")
    if not holds:
        _failures.append(what)


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


def check_versions(wheels: list[Path], sdists: list[Path]) -> None:
    here = version()
    expect(not other_versions(), f"the sources say {here} {' but for '.join(['', *other_versions()])}".rstrip())
    told = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False)
    expect(set(told.stdout.split()) <= {f"v{here}"}, f"no tag of this commit says other than v{here}")
    expect(len(sdists) == 1 and bool(wheels), f"{DIST} has a source distribution and wheels")
    others = [path.name for path in (*wheels, *sdists) if re.split(r"-|\.tar", path.name)[1] != here]
    expect(not others, f"all of {DIST} is of {here}")


def dependencies(system: str) -> list[str]:
    """Those of pyproject.toml on a system that conda calls so, in its words."""
    about = tomllib.loads((TREE / "pyproject.toml").read_text())
    asked = [one.partition("; ") for one in about["project"]["dependencies"]]
    known = {"", "sys_platform != 'linux'"}
    assert {marker for _, _, marker in asked} <= known
    return [one.replace(">=", " >=") for one, _, marker in asked if marker == "" or not system.startswith("linux")]


def check_metadata() -> None:
    """The recipe for conda, as conda's own tools read it, and CITATION.cff by its schema."""
    readers = WORK / "metadata/bin"
    subprocess.run([sys.executable, "-m", "venv", readers.parent], check=True)
    subprocess.run([readers / "python", "-m", "pip", "install", "--quiet", *METADATA_READERS], check=True)
    read = [readers / "python", "-c", READ_RECIPE]
    done = subprocess.run(read, cwd=TREE, capture_output=True, text=True, check=False)
    needed = json.loads(done.stdout) if done.returncode == 0 else {}
    wrong = [system for system, words in needed.items() if words != ["python", *dependencies(system)]]
    expect(bool(needed) and not wrong, f"conda/recipe.yaml {' '.join(wrong)} {done.stderr[-300:]}".rstrip())
    validate = [readers / "cffconvert", "--validate", "-i", "CITATION.cff"]
    expect(subprocess.run(validate, cwd=TREE, capture_output=True, check=False).returncode == 0, "CITATION.cff")


def suits(wheel: Path, interpreter: Interpreter) -> bool:
    """Whether the wheel is for this version, C library and processor."""
    _, _, version, _, system = wheel.stem.split("-")
    is_known = version == f"cp{interpreter.version.replace('.', '')}" and system.endswith(platform.machine())
    return is_known and (interpreter.libc or "many") in system


def download(interpreter: Interpreter, what: str | Path, to: Path) -> None:
    """A package and what is installed with it, into `to`: some interpreters have no network, or no OpenSSL."""
    platforms = [word for name in PLATFORMS[interpreter.libc] for word in ("--platform", name)]
    version = ["--implementation", "cp", "--python-version", interpreter.version]
    words = ["download", "--quiet", "--only-binary=:all:", *version, *platforms, "--dest", str(to), str(what)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)


def check_wheel(interpreter: Interpreter, wheel: Path) -> None:
    """Install it, record known programs, and read that. Nothing but the environment's own commands is on PATH."""
    place = Place(interpreter, WORK)
    name = f"{interpreter.name} ({interpreter.full}){f' in {interpreter.root.name}' if interpreter.root else ''}"
    folder = Path(IN_A_ROOT) if interpreter.root else WORK
    outside = interpreter.root / IN_A_ROOT.lstrip("/") if interpreter.root else WORK
    (outside / "tree").mkdir(parents=True, exist_ok=True)  # where commands in another system's root begin
    for file in (wheel, TREE / "examples/etl.py", TREE / "tools/truth_probe.py"):
        shutil.copy2(file, outside)
    if not place.make():
        expect(False, f"{name}: an environment, see {place.log}")
        return
    shutil.rmtree(outside / "cached", ignore_errors=True)
    download(interpreter, wheel, outside / "cached")
    size = sum(path.stat().st_size for path in (outside / "cached").glob("*.whl"))
    expect(size <= DOWNLOAD_BYTES, f"{name}: {wheel.name} and its dependencies have {size / 1e6:.1f} MB")
    bare = ["env", f"PATH={Path(place.executable).parent}", "PIP_DISABLE_PIP_VERSION_CHECK=1", place.executable]
    install = [*bare, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(folder / "cached")]
    began = spent()
    code, _ = place.run([*install, str(folder / wheel.name)])
    seconds = spent() - began
    expect(code == 0 and seconds <= INSTALL_SECONDS, f"{name}: installs in {seconds:.1f} s of processor time")
    code, said = place.run([*bare, str(folder / "truth_probe.py")])
    expect(code == 0, f"{name}: {said.strip()}")
    download(interpreter, "pandas", outside / "cached")
    place.run([*install, "pandas"])
    capture, page = str(folder / "etl.hiw"), str(folder / "etl.html")
    hiwater = [*bare, "-m", "hiwater"]
    code, said = place.run([*hiwater, "run", "-o", capture, str(folder / "etl.py")])
    expect(code == 0 and "etl.py:82 in Pipeline.apply" in said, f"{name}: hiwater run etl.py")
    code, said = place.run([*hiwater, "report", capture])
    expect(code == 0 and "etl.py:" in said, f"{name}: hiwater report")
    made = place.run([*hiwater, "report", capture, "--html", "-o", page])[0] == 0
    expect(made and (outside / "etl.html").stat().st_size > 100_000, f"{name}: the page")


def spent() -> float:
    """The processor time of all commands so far: it depends less on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_start(wheel: Path) -> None:
    """`uvx hiwater run`, where the packages are in uv's cache."""
    subprocess.run([sys.executable, "-m", "venv", WORK / "uv"], check=True)
    subprocess.run([WORK / "uv/bin/python", "-m", "pip", "install", "--quiet", UV], check=True)
    environment = os.environ | {"UV_CACHE_DIR": str(WORK / "uv-cache")}
    words = [
        WORK / "uv/bin/uvx",
        "--isolated",
        "--from",
        wheel,
        "--python",
        sys.executable,
        "hiwater",
        "run",
        "-q",
        "-c",
        "pass",
    ]
    seconds = 0.0
    for _ in range(2):  # the first fills the cache
        began = time.monotonic()
        done = subprocess.run(words, cwd=WORK, env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    expect(done.returncode == 0 and seconds <= START_SECONDS, f"uvx hiwater run: {seconds:.1f} s {done.stderr[-300:]}")


def main() -> int:
    WORK.mkdir(parents=True, exist_ok=True)
    wheels, sdists = sorted(DIST.glob("hiwater-*.whl")), sorted(DIST.glob("hiwater-*.tar.gz"))
    check_versions(wheels, sdists)
    check_metadata()
    found: dict[tuple[str, Path | None], Interpreter] = {}
    for executable, root in executables():
        interpreter, _ = probe(executable, root, headers=False)
        if interpreter is not None and not interpreter.flags:
            found.setdefault((interpreter.name, root), interpreter)
    for wheel in wheels:
        for one in found.values():
            if suits(wheel, one):
                check_wheel(one, wheel)
                if one.root is None and one.name == f"{sys.version_info[0]}.{sys.version_info[1]}":
                    check_start(wheel)
    say(f"{len(_failures)} failed" if _failures else "all is well")
    return bool(_failures)


if __name__ == "__main__":
    sys.exit(main())
