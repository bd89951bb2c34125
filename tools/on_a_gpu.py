#!/usr/bin/env python3
"""Try on a real GPU all that hiwater does with one, in at most eight minutes, and write down what was seen.

Builds hiwater into an environment of its own that has the packages of this interpreter's (torch; JAX and CuPy where they are), runs the checks and
measurements of `gpu_checks.py`, each in a process of its own with a time limit, then all tests marked `gpu`. In the folder `--out` it leaves
`table.md`, `results.json`, `golden.json` (data for tests that run without a card) and `pytest.txt`.

Without a card, `--double` runs the checks over the simulated `torch._C` of `tests/helpers/cuda_double`: that shows that they work, and nothing about a GPU.

Exit code: 0 when all that could be seen held, 1 when something did not, 2 when hiwater cannot be built or there is no card.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu_checks

TREE = Path(__file__).resolve().parent.parent
CARD = "import torch; print(torch.__version__, torch.cuda.get_device_name() if torch.cuda.is_available() else '')"


def build(work: Path, wheels: Path | None) -> str | None:
    """Make the environment in `work` and install hiwater into it; return its interpreter, or None with the reason on stderr."""
    python = str(work / "bin/python")
    offline = ["--no-index", "--find-links", str(wheels)] if wheels else []
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *offline]
    steps = [
        [sys.executable, "-m", "venv", "--system-site-packages", str(work)],
        [
            *install,
            "scikit-build-core",
            "nanobind",
            "cmake",
            "ninja",
            "pytest",
            "hypothesis",
            "psutil",
            "rich",
            "numpy",
        ],
        [*install, "--no-build-isolation", "--no-deps", str(TREE)],
    ]
    for step in steps:
        if subprocess.run(step, check=False).returncode != 0:
            return None
    return python


def run_check(python: str, name: str, folder: Path, *, double: bool, seconds: float) -> dict[str, Any]:
    """Run one check; its result, with how it ended."""
    result = folder / f"{name}.json"
    result.unlink(missing_ok=True)
    words = [python, str(TREE / "tools/gpu_checks.py"), name, str(result), *(["--double"] if double else [])]
    begun = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        ending = "" if result.exists() else f"exit code {done.returncode}: {done.stderr[-600:]}"
    except subprocess.TimeoutExpired:
        ending = f"did not end within {seconds:.0f} s"
    found: dict[str, Any] = json.loads(result.read_text()) if result.exists() and not ending else {"held": False}
    result.unlink(missing_ok=True)
    return found | {"ending": ending, "seconds": round(time.monotonic() - begun, 1)}


def run_tests(python: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Run what is marked `gpu`."""
    words = [python, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-rs", str(TREE / "tests")]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False, cwd=TREE)
    except subprocess.TimeoutExpired:
        return {"held": False, "ending": f"did not end within {seconds:.0f} s", "figures": {}}
    (folder / "pytest.txt").write_text(done.stdout + done.stderr)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    return {"held": done.returncode == 0, "ending": "", "figures": {"pytest": last.strip("= ")}}


def table(about: dict[str, str], results: dict[str, dict[str, Any]]) -> str:
    """The results, as Markdown."""
    lines = [f"- {name}: {value}" for name, value in about.items()]
    lines += ["", "| check | held | seen |", "|---|---|---|"]
    for name, found in results.items():
        held = {True: "yes", False: "**no**", None: "seen"}[found["held"]]
        seen = found["ending"] or "; ".join(f"{key} {value}" for key, value in found.get("figures", {}).items())
        subject = gpu_checks.CHECKS[name].subject if name in gpu_checks.CHECKS else name
        lines.append(f"| {subject} ({name}) | {held} | {seen.replace(chr(10), ' ').replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def write(folder: Path, about: dict[str, str], results: dict[str, dict[str, Any]]) -> None:
    """Write all that is known so far: a run that is cut short leaves what it had."""
    golden = {name: found.pop("golden") for name, found in results.items() if found.get("golden")}
    if golden:
        known = json.loads((folder / "golden.json").read_text()) if (folder / "golden.json").exists() else {}
        (folder / "golden.json").write_text(json.dumps(known | golden))
    (folder / "results.json").write_text(json.dumps({"about": about, "results": results}, indent=1))
    (folder / "table.md").write_text(table(about, results))


def main() -> int:
    """Run everything that there is time for."""
    parser = argparse.ArgumentParser(description="Tries on a real GPU all that hiwater does with one.")
    parser.add_argument(
        "--out", type=Path, default=TREE / "build/gpu", help="folder for what was seen (default: build/gpu)"
    )
    parser.add_argument("--seconds", type=float, default=480, help="longest time for all (default: 480)")
    parser.add_argument("--wheels", type=Path, help="folder with the packages to build with, where there is no network")
    parser.add_argument("--python", help="an interpreter that has hiwater, instead of building it")
    parser.add_argument("--double", action="store_true", help="without a card, over the simulated torch._C")
    parser.add_argument("checks", nargs="*", choices=[[], *gpu_checks.CHECKS], help="these alone, without the tests")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "golden.json").unlink(missing_ok=True)
    python = arguments.python or build(TREE / "build/gpu-environment", arguments.wheels)
    if python is None:
        return 2
    card = subprocess.run([python, "-c", CARD], capture_output=True, text=True, check=False)
    version, _, name = card.stdout.strip().partition(" ")
    if not version or not (name or arguments.double):
        print(f"there is no card that torch can use: {card.stderr[-300:] or version}", file=sys.stderr)
        return 2
    about = {
        "card": "none: the double" if arguments.double else name,
        "torch": version,
        "Python": platform.python_version(),
    }

    results: dict[str, dict[str, Any]] = {}
    for name, chosen in gpu_checks.CHECKS.items():
        if (arguments.checks and name not in arguments.checks) or (arguments.double and chosen.needs_card):
            continue
        left = until - time.monotonic()
        if left < 1:
            results[name] = {"held": False, "ending": "there was no time left"}
            continue
        results[name] = run_check(
            python, name, arguments.out, double=arguments.double, seconds=min(left, chosen.seconds)
        )
        write(arguments.out, about, results)
        print(f"{name}: held {results[name]['held']} {results[name]['ending']}", flush=True)
    if not arguments.checks and not arguments.double:
        results["tests marked gpu"] = run_tests(python, arguments.out, max(10.0, until - time.monotonic()))
        write(arguments.out, about, results)
    print((arguments.out / "table.md").read_text())
    return 0 if all(found["held"] in (True, None) for found in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
