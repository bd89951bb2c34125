"""Builds the engine that records Python's objects alone, and compiles it for a system that is not here.

    python tools/objects_only.py build FOLDER     builds it for this system, with the layer for any POSIX system
    python tools/objects_only.py macos FOLDER     compiles its files for macOS on aarch64 with zig, and links nothing

The engine is then in FOLDER/hiwater, beside links to this checkout's Python files, so that FOLDER can be put into
PYTHONPATH. For macos, FOLDER is one that was built before; zig is the package `ziglang` of the interpreter that runs
this.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "aarch64-macos"


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests of several processes want it
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build(folder)


def _build(folder: Path) -> None:
    made = folder / "build"
    subprocess.run(
        [
            "cmake", "-S", ROOT, "-B", made, "-DHIWATER_ENGINE=ON", "-DHIWATER_HOOKS=python",
            f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
            # Half the time: optimised as far as it costs little, and each language in one unit.
            "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-Og", "-DCMAKE_CXX_FLAGS=-Og",
            "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0",
            *(() if shutil.which("make") else ("-G", "Ninja")),
        ],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", made, "--target", "_core", "--parallel", jobs], check=True, stdout=subprocess.DEVNULL
    )
    package = folder / "hiwater"
    package.mkdir(exist_ok=True)
    (engine,) = (made / "native").glob("_core*.so")
    for file in (engine, *(ROOT / "src" / "hiwater").iterdir()):
        if not (package / file.name).exists() and (file == engine or file.suffix != ".so"):
            (package / file.name).symlink_to(file)


def compile_for_macos(folder: Path) -> int:
    objects = folder / TARGET
    objects.mkdir(exist_ok=True)
    headers = _headers(objects / "include")
    ours = [
        entry
        for entry in json.loads((folder / "build" / "compile_commands.json").read_text())
        if "_core.dir" in entry["command"]
    ]

    def compiled(entry: dict[str, str]) -> bool:
        source, command = Path(entry["file"]), entry["command"].split()
        is_cpp = source.suffix != ".c"
        folders = [word.removeprefix("-I") for word in command if "nanobind" in word and ".cpp" not in word]
        done = subprocess.run(
            [
                sys.executable, "-m", "ziglang", "c++" if is_cpp else "cc", "-target", TARGET, "-c",
                "-Wno-static-in-inline",
                f"-std={'c++20' if is_cpp else 'c11'}", "-DHIWATER_POSIX", "-I", ROOT / "native", "-isystem", headers,
                *(word for path in folders for word in ("-isystem", path)),
                "-o", objects / f"{source.name}.o", source,
            ],
            check=False,
        )  # fmt: skip
        return done.returncode == 0

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = list(pool.map(compiled, ours)).count(False)
    print(f"{len(ours) - failed} of {len(ours)} units of their files compile for {TARGET}")
    return 1 if failed or not ours else 0


def _headers(folder: Path) -> Path:
    """Python's headers, with the configuration of this system beside them: Debian's header leads elsewhere. What they
    say of the processor is the same for both."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("include"), folder)
    shutil.copy(sysconfig.get_config_h_filename(), folder / "pyconfig.h")
    return folder


def main() -> int:
    match sys.argv[1:]:
        case ["build", folder]:
            build(Path(folder).resolve())
            return 0
        case ["macos", folder]:
            return compile_for_macos(Path(folder).resolve())
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
