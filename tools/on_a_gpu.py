#!/usr/bin/env python3
"""Try on a real GPU all that hiwater does with one, in at most eight minutes, and write down what was seen.

Run it with the interpreter that has torch. hiwater is installed into a folder of its own that stands before the
interpreter's packages: from a wheel in `build/gpu-wheels` (`make gpu-wheel`), else built with the packages of the
interpreter, else with build tools from an index. Then come the checks of `gpu_checks`, in the order of their worth,
each in a process of its own with a time limit, then the tests marked `gpu`. In the folder `--out` it leaves `table.md`,
`results.json`, `golden.json` (data for tests that run without a card), `page.html`, `page.png` and `pytest.txt`. It
writes what it has after each check: a run that is cut short leaves the rest.

Without a card, `--double` runs the checks over the simulated `torch._C` of `tests/helpers/cuda_double`: that shows that
they work, and nothing about a GPU.

Exit code: 0 when all that could be seen held, 1 when something did not, 2 when hiwater cannot be installed or there is
no card.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE / "tools"))

from gpu_checks import CHECKS  # noqa: E402 - the folder of this script is on the path of nobody who imports it

BUILD = TREE / "build"
WHEELS, SITE, TOOLS = BUILD / "gpu-wheels", BUILD / "gpu-site", BUILD / "gpu-tools"
BUILD_TOOLS = ("scikit-build-core", "nanobind", "cmake", "ninja")
LEFT = ("page.html", "page.png")
"""What checks leave that is worth keeping."""
MOST_GOLDEN_BYTES = 4 << 20
CARD = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
# Folders of PYTHONPATH have no .pth files read, and one of these starts the recording of child processes. The
# environment may have a module of this name itself.
START = """import importlib.machinery, importlib.util, os, site, sys
here = os.path.dirname(os.path.abspath(__file__))
site.addsitedir(here)
others = [path for path in sys.path if os.path.abspath(path) != here]
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
if spec is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


def environment(*folders: Path) -> dict[str, str]:
    """The variables of this process, with these folders before all others that hold packages."""
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def pip_install(target: Path, *words: str, tools: Path | None = None) -> bool:
    """Install into a folder; whether that succeeded. What pip says goes to stderr."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--target",
        str(target),
    ]
    done = subprocess.run([*command, *words], check=False, env=environment(*filter(None, [tools])), stdout=sys.stderr)
    return done.returncode == 0


def wheels_to_install(folder: Path) -> list[str]:
    """The wheels that were brought along for this interpreter: hiwater's, and of the others what is not installed.
    [] without hiwater's."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = {path: path.stem.split("-") for path in sorted(folder.glob("*.whl"))}
    if not any(tags[0] == "hiwater" and tags[-3] == version for tags in wheels.values()):
        return []
    fits = (path for path, (_, _, *tags) in wheels.items() if tags[-3] == version or tags[-2] in {"abi3", "none"})
    return [str(path) for path in fits if wheels[path][0] == "hiwater" or not is_installed(wheels[path][0])]


def is_installed(distribution: str) -> bool:
    """Whether the interpreter has it."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def install(wheels: Path) -> str | None:
    """Install hiwater into SITE; return how, or None if that failed."""
    shutil.rmtree(SITE, ignore_errors=True)
    SITE.mkdir(parents=True)
    (SITE / "sitecustomize.py").write_text(START)
    found = wheels_to_install(wheels)
    if found and pip_install(SITE, "--no-index", "--no-deps", *found):
        return "a wheel brought along"
    kept = "build-dir=build/{wheel_tag}"  # only what changed is compiled
    build = ("--no-build-isolation", "--no-deps", "--config-settings", kept, str(TREE))
    if pip_install(SITE, "--no-index", *build):
        return "built with the packages of the interpreter"
    if pip_install(TOOLS, "--upgrade", *BUILD_TOOLS) and pip_install(SITE, *build, tools=TOOLS):
        return "built with tools from an index"
    return None


def run_check(name: str, folder: Path, *, double: bool, seconds: float) -> dict[str, Any]:
    """Run one check in a folder of its own; its result, with how it ended. What it had when its time was over
    counts."""
    work = folder / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    result = work / "result.json"
    words = [sys.executable, str(TREE / "tools" / "gpu_checks"), name, str(result), *(["--double"] if double else [])]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, check=False, env=environment(SITE)
        )
        ending = (
            ""
            if done.returncode in (0, 1) and result.exists()
            else f"exit code {done.returncode}: {done.stderr[-600:]}"
        )
    except subprocess.TimeoutExpired:
        ending = f"did not end within {seconds:.0f} s"
    found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    for file in LEFT:
        if (work / file).exists():
            (work / file).replace(folder / file)
    shutil.rmtree(work, ignore_errors=True)
    held = {} if found and not ending else {"held": False}
    return found | held | {"ending": ending, "seconds": round(time.monotonic() - begun, 1)}


def run_tests(folder: Path, seconds: float) -> dict[str, Any]:
    """Run what is marked `gpu`: the files that have such tests, because others need packages that may be missing."""
    files = [str(path) for path in sorted((TREE / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-rs", *files]
    log = folder / "pytest.txt"
    with log.open("w") as stream:
        try:
            done = subprocess.run(
                words,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
                cwd=TREE,
                env=environment(SITE),
            )
        except subprocess.TimeoutExpired:
            return {"held": False, "ending": f"did not end within {seconds:.0f} s", "figures": {}}
    last = (log.read_text().strip().splitlines() or [""])[-1]
    return {"held": done.returncode == 0, "ending": "", "figures": {"pytest": last.strip("= ")}}


def table(about: dict[str, str], results: dict[str, dict[str, Any]]) -> str:
    """The results, as Markdown."""
    lines = [f"- {name}: {value}" for name, value in about.items()]
    lines += ["", "| check | held | seen |", "|---|---|---|"]
    for name, found in results.items():
        held = {True: "yes", False: "**no**", None: "seen"}[found["held"]]
        figures = "; ".join(f"{key} {value}" for key, value in found.get("figures", {}).items())
        seen = "; ".join(filter(None, [found["ending"], figures]))
        subject = CHECKS[name].subject if name in CHECKS else name
        lines.append(f"| {subject} ({name}) | {held} | {seen.replace(chr(10), ' ').replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def write(folder: Path, about: dict[str, str], results: dict[str, dict[str, Any]]) -> None:
    """Write all that is known so far."""
    golden = {name: found["golden"] for name, found in results.items() if found.get("golden")}
    sizes = {name: len(json.dumps(data)) for name, data in golden.items()}
    while sum(sizes.values()) > MOST_GOLDEN_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        del golden[largest], sizes[largest]
    text = json.dumps({"about": about, **golden})
    # These files stay for ever; where the machine had them does not matter.
    for path in (SITE, folder.resolve(), sys.prefix):
        text = text.replace(f"{path}{os.sep}", "")
    (folder / "golden.json").write_text(text)
    shown = {name: {key: value for key, value in found.items() if key != "golden"} for name, found in results.items()}
    (folder / "results.json").write_text(json.dumps({"about": about, "results": shown}, indent=1))
    (folder / "table.md").write_text(table(about, results))


def arguments_of_command() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description="Tries on a real GPU all that hiwater does with one.")
    parser.add_argument(
        "--out", type=Path, default=TREE / "build/gpu", help="folder for what was seen (default: build/gpu)"
    )
    parser.add_argument("--seconds", type=float, default=480, help="longest time for all (default: 480)")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of wheels that were brought along")
    parser.add_argument("--installed", action="store_true", help="use the hiwater that this interpreter has")
    parser.add_argument("--double", action="store_true", help="without a card, over the simulated torch._C")
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], help="these alone, without the tests")
    return parser.parse_args()


def main() -> int:
    """Run everything that there is time for."""
    begun = time.monotonic()
    arguments = arguments_of_command()
    arguments.out.mkdir(parents=True, exist_ok=True)
    how = "it was installed" if arguments.installed else install(arguments.wheels)
    if how is None:
        print("hiwater cannot be built: see above for what is missing", file=sys.stderr)
        return 2
    card = subprocess.run([sys.executable, "-c", CARD], capture_output=True, text=True, check=False)
    version, _, name = card.stdout.strip().partition(" ")
    if not version or not (name or arguments.double):
        print(f"there is no card that torch can use: {card.stderr[-300:] or version}", file=sys.stderr)
        return 2
    about = {
        "card": "none: the double" if arguments.double else name, "torch": version, "Python": platform.python_version(),
        "kernel": platform.release(), "hiwater": how, "first check after": f"{time.monotonic() - begun:.1f} s",
    }  # fmt: skip
    results: dict[str, dict[str, Any]] = {}

    def add(name: str, found: dict[str, Any]) -> None:
        results[name] = found
        write(arguments.out, about, results)
        print(f"{time.monotonic() - begun:5.0f} s  {name}: held {found['held']} {found['ending']}", flush=True)

    for name, chosen in CHECKS.items():
        if (arguments.checks and name not in arguments.checks) or (arguments.double and chosen.needs_card):
            continue
        left = arguments.seconds - (time.monotonic() - begun)
        if left < 1:
            add(name, {"held": False, "ending": "there was no time left"})
        else:
            seconds = left if arguments.double else min(left, chosen.seconds)  # the card's minutes are short
            add(name, run_check(name, arguments.out, double=arguments.double, seconds=seconds))
    if not arguments.checks and not arguments.double:
        add("tests marked gpu", run_tests(arguments.out, max(10.0, arguments.seconds - (time.monotonic() - begun))))
    print((arguments.out / "table.md").read_text())
    return 0 if all(found["held"] in (True, None) for found in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
