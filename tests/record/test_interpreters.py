"""Builds of CPython that differ in what the engine reads: it works there, or says in one line why not and lets the
program run."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from children import run_hiwater
from recording import child_environment, needs_engine

PRETENDING = "import os, sys; {how}; from hiwater.cli import main; sys.exit(main())"
OTHER_BUILD = "" if "d" in sys.abiflags else "d"

# The frames of an executable that is linked to a fixed address and takes the address of `free`: its own call stub for
# it is then what the loader gives to everybody who asks.
FIXED = """\
#include <stdlib.h>
int Py_BytesMain(int, char**);
void (*volatile give_back)(void*);
void* (*volatile take)(size_t);
int main(int argc, char** argv) {
    give_back = free;
    take = malloc;
    give_back(take(100));
    return Py_BytesMain(argc, argv);
}
"""


def pretending(folder: Path, how: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs hiwater in an interpreter that says of itself to be another build, or of another system."""
    return subprocess.run(
        [sys.executable, "-c", PRETENDING.format(how=how), *words],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip


@needs_engine
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("sys.abiflags = 't'", "does not work on a free-threaded build of CPython yet"),
        (f"sys.abiflags = {OTHER_BUILD!r}", "was built for CPython"),
        ("os.sysconf = {'SC_PAGE_SIZE': 16384}.get", "the kernel's pages have 16 KiB"),
    ],
)
def test_where_the_engine_refuses_the_program_runs_all_the_same(tmp_path: Path, how: str, reason: str) -> None:
    done = pretending(tmp_path, how, "run", "-c", "print('mine'); raise SystemExit(5)")
    assert (done.returncode, done.stdout) == (5, "mine\n")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("hiwater: warning: the program runs unrecorded: ")
    assert reason in done.stderr
    assert not list(tmp_path.iterdir())
    doctor = pretending(tmp_path, how, "doctor")
    assert doctor.returncode == 1
    (line,) = (line for line in doctor.stdout.splitlines() if line[3:].startswith("engine"))
    assert line.startswith("no ") and reason in line


@needs_engine
def test_the_doctor_says_what_the_engine_was_built_for(tmp_path: Path) -> None:
    done = run_hiwater("doctor")
    build = "debug" if "d" in sys.abiflags else "release"
    assert f"built for CPython {sys.version_info[0]}.{sys.version_info[1]} {build}\n" in done.stdout


@needs_engine
def test_an_interpreter_at_a_fixed_address(tmp_path: Path) -> None:
    config = sysconfig.get_config_vars()
    static = Path(config["LIBPL"], config["LIBRARY"])
    if not static.exists():
        pytest.skip(f"this interpreter came without {static.name} to link with")
    (tmp_path / "fixed.c").write_text(FIXED)
    libraries = [*config["LIBS"].split(), *config["SYSLIBS"].split(), *config["LINKFORSHARED"].split()]
    command = ["cc", "-O1", "-fno-pic", "-no-pie", "fixed.c", "-o", "fixed", static, *libraries]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{static.name} cannot be linked here: {done.stderr.strip().splitlines()[-1]}")
    home = {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": ":".join(sys.path)}
    main = (
        f"import site, sys; site.addsitedir({sysconfig.get_path('purelib')!r}); from hiwater.cli import main; "
        "sys.exit(main())"
    )
    done = subprocess.run(
        [tmp_path / "fixed", "-c", main, "run", "-o", "a.hiw", "-c", "held = bytearray(5_000_000); print('mine')"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=child_environment(home),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    assert "peak 4.8 MiB" in done.stderr
