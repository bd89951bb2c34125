#!/usr/bin/env python3
"""Check what `make wheels` built, as somebody gets it: the version is the same everywhere, and each wheel installs into
an environment without a compiler, records with the right figures, and makes a report and a page.

Interpreters are looked for as `tools/test_pythons.py` does; they need no headers, so the root of a minimal system
(debootstrap --variant=minbase --include=python3,python3-venv) in HIWATER_PYTHON_ROOTS is one, too.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from test_pythons import IN_A_ROOT, TREE, Interpreter, Place, executables, probe, say

WORK = TREE / "build/release-check"
DIST = TREE / "dist"
INSTALL_SECONDS, START_SECONDS = 10, 5
DOWNLOAD_BYTES = 40_000_000
BLOCKS, BLOCK_BYTES, SLACK_BYTES = 50, 1 << 20, 20_000
# One line holds what is known; the rest is the interpreter's own.
PROGRAM = f"held = [bytearray({BLOCK_BYTES}) for _ in range({BLOCKS})]"
UV = "uv==0.13.9"

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
    found = {"CHANGELOG.md": changes, "CITATION.cff": cited}
    return [file for file, match in found.items() if match is None or match[1] != here]


def check_versions(wheels: list[Path], sdists: list[Path]) -> None:
    here = version()
    expect(not other_versions(), f"the sources say {here} {' but for '.join(['', *other_versions()])}".rstrip())
    told = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=TREE, capture_output=True, text=True, check=False)
    expect(set(told.stdout.split()) <= {f"v{here}"}, f"no tag of this commit says other than v{here}")
    expect(len(sdists) == 1 and bool(wheels), f"{DIST} has a source distribution and wheels")
    others = [path.name for path in (*wheels, *sdists) if re.split(r"-|\.tar", path.name)[1] != here]
    expect(not others, f"all of {DIST} is of {here}")


def check_wheel(interpreter: Interpreter, wheel: Path) -> None:
    """Install it, record a known program, and read that. Nothing but the environment's own commands is on PATH."""
    place = Place(interpreter, WORK)
    name = f"{interpreter.full}{f' in {interpreter.root.name}' if interpreter.root else ''}"
    folder = Path(IN_A_ROOT) if interpreter.root else WORK
    outside = interpreter.root / IN_A_ROOT.lstrip("/") if interpreter.root else WORK
    (outside / "tree").mkdir(parents=True, exist_ok=True)  # where commands in another system's root begin
    shutil.copy2(wheel, outside)
    shutil.rmtree(outside / "cached", ignore_errors=True)
    if not place.make():
        expect(False, f"{name}: an environment, see {place.log}")
        return
    bare = ["env", f"PATH={Path(place.executable).parent}", "PIP_DISABLE_PIP_VERSION_CHECK=1", place.executable]
    place.run([*bare, "-m", "pip", "download", "--quiet", "--dest", str(folder / "cached"), str(folder / wheel.name)])
    began = spent()
    code, _ = place.run(
        [*bare, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(folder / "cached"), str(folder / wheel.name)]
    )  # fmt: skip
    seconds = spent() - began
    expect(
        code == 0 and seconds <= INSTALL_SECONDS, f"{name}: {wheel.name} installs in {seconds:.1f} s of processor time"
    )
    size = sum(path.stat().st_size for path in (outside / "cached").glob("*.whl"))
    expect(size <= DOWNLOAD_BYTES, f"{name}: with its dependencies it is {size / 1e6:.1f} MB")
    capture, page = str(folder / "known.hiw"), str(folder / "known.html")
    hiwater = [*bare, "-m", "hiwater"]
    expect(place.run([*hiwater, "run", "-o", capture, "-c", PROGRAM])[0] == 0, f"{name}: hiwater run")
    _, said = place.run([*hiwater, "report", capture, "--format", "json"])
    held = held_by_the_line(json.loads(said[said.index("{") :])) if "{" in said else 0
    wanted = BLOCKS * BLOCK_BYTES
    expect(wanted <= held < wanted + SLACK_BYTES, f"{name}: the line holds {held:,} bytes of at least {wanted:,}")
    made = place.run([*hiwater, "report", capture, "--html", "-o", page])[0] == 0
    expect(made and (outside / "known.html").stat().st_size > 100_000, f"{name}: the page")


def spent() -> float:
    """The processor time of all commands so far: it depends less on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def held_by_the_line(report: dict[str, object]) -> int:
    """The bytes of the stack with most at the peak."""
    rows = report["stacks"]
    assert isinstance(rows, list)
    return max(row["bytes"] for row in rows)


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
    found: dict[tuple[str, Path | None], Interpreter] = {}
    for executable, root in executables():
        interpreter, _ = probe(executable, root, headers=False)
        if interpreter is not None and not interpreter.flags:
            found.setdefault((interpreter.version, root), interpreter)
    for wheel in wheels:
        tag = wheel.name.split("-")[2]
        for one in found.values():
            if tag == f"cp{one.version.replace('.', '')}":
                check_wheel(one, wheel)
                if one.root is None and one.version == f"{sys.version_info[0]}.{sys.version_info[1]}":
                    check_start(wheel)
    say(f"{len(_failures)} failed" if _failures else "all is well")
    return bool(_failures)


if __name__ == "__main__":
    sys.exit(main())
