"""`hiwater doctor`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import sysconfig
import tempfile
from typing import NamedTuple

from hiwater import __version__, _registry
from hiwater._os import cgroup_files, native, portable
from hiwater._os.destination import folder_of_children
from hiwater._os.sizes import format_size
from hiwater.cli import progress
from hiwater.cli.messages import escaped
from hiwater.errors import EngineFailed, EngineUnavailable, MeterUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from hiwater.cli.parsing import Parser
    from hiwater.meters.devices import Device
    from hiwater.meters.devices.nvml import Nvml

_SELF_TEST_SECONDS = 30
_PROGRAM = (
    "import subprocess, sys; held = bytearray(1000000); subprocess.run([sys.executable, '-c', 'pass'], check=True)"
)
_START_UP_FILE = "hiwater.pth"
PARSER = {
    "description": "Says what works on this machine, and why the rest does not.",
    "epilog": """examples:
  hiwater doctor     what works on this machine
  hiwater doctor -q  only what does not work

exit codes: 0 if this machine can record programs and their children, 1 if it cannot
""",
}
_RESET_RESIDENT_PEAK = "5"  # proc(5), /proc/pid/clear_refs


class Diagnosis(NamedTuple):
    """What was found of one thing that hiwater needs. `works` is None for information."""

    name: str
    works: bool | None
    text: str


def add_arguments(parser: Parser) -> None:
    parser.option("-q, --quiet", "show only what does not work")
    parser.option("-v, --verbose", "show the folders in use, too")


def run(args: argparse.Namespace) -> int:
    """Print the diagnoses on stdout. Returns 0 if this machine can record programs and their children, 1 if it
    cannot."""
    with progress.shown("testing what works here"):
        diagnoses = [
            *_about_the_engine(), _resident_peak(), _cgroup(), *_about_the_interpreter(), *_versions(),
            *_about_devices(),
        ]  # fmt: skip
    if args.verbose:
        diagnoses += [Diagnosis("hiwater folder", None, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
        diagnoses += [Diagnosis("python", None, sys.executable)]
    for diagnosis in diagnoses:
        if args.quiet and diagnosis.works is not False:
            continue
        status = {True: "ok", False: "no", None: "  "}[diagnosis.works]
        sys.stdout.write(f"{status} {diagnosis.name:<20} {escaped(diagnosis.text)}\n")
    needed = {"engine", "recording", "start-up file"}
    can_record = all(diagnosis.works for diagnosis in diagnoses if diagnosis.name in needed)
    return 0 if can_record else 1


def _about_the_engine() -> Iterator[Diagnosis]:
    try:
        core = native.load()
    except (EngineUnavailable, EngineFailed) as error:
        yield Diagnosis("engine", False, str(error))
        return
    yield Diagnosis("engine", True, f"present, built for CPython {core.BUILT_FOR}")
    yield from _self_test()


def _self_test() -> Iterator[Diagnosis]:
    """Record a small program in a separate process, so that a crash is a result, too. It starts a child, which must
    record itself."""
    with tempfile.TemporaryDirectory(prefix="hiwater-doctor-") as folder:
        capture = os.path.join(folder, "self-test.hiw")
        words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", capture, "-c", _PROGRAM]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_SELF_TEST_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            yield Diagnosis("recording", False, f"the self-test did not end: {error}")
            return
        said = done.stderr.decode(errors="replace").strip().replace("\n", "; ")
        misses = native.load().MISSES
        if done.returncode != 0 or said != (f"hiwater: warning: {misses}" if misses else ""):
            yield Diagnosis(
                "recording", False, f"the self-test ended with {done.returncode}: {said or 'it said nothing'}"
            )
            return
        size = os.path.getsize(capture)
        has_child = bool(glob.glob(os.path.join(glob.escape(folder_of_children(capture)), "*.hiw")))
    wrote = f"the self-test started, recorded, stopped and wrote {size:,} bytes"
    yield Diagnosis("recording", True, f"{wrote}; {misses}" if misses else wrote)
    if misses:
        return
    if has_child:
        yield Diagnosis("start-up file", True, "a child of the self-test recorded itself")
    else:
        why = "there" if os.path.exists(os.path.join(sysconfig.get_path("platlib"), _START_UP_FILE)) else "not there"
        problem = f"a child of the self-test has not recorded itself; {_START_UP_FILE}, which has it do so, is {why}"
        yield Diagnosis("start-up file", False, f"{problem}: install hiwater again with the pip of this interpreter")


def _resident_peak() -> Diagnosis:
    """Whether the kernel keeps and resets a high-water mark of resident memory, which makes resident peaks exact."""
    name = "resident peak"
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write(_RESET_RESIDENT_PEAK)
    except OSError as error:
        return Diagnosis(
            name, False, f"sampled, not exact: the kernel's high-water mark cannot be reset ({error.strerror})"
        )
    try:
        with open("/proc/self/status") as file:
            high_water = [line.split()[1] for line in file if line.startswith("VmHWM:")]
    except OSError as error:
        return Diagnosis(name, False, f"sampled, not exact: /proc/self/status cannot be read ({error.strerror})")
    if not high_water:
        return Diagnosis(
            name, False, "sampled, not exact: the kernel keeps no high-water mark (no VmHWM in /proc/self/status)"
        )
    return Diagnosis(name, True, "exact, from the kernel's high-water mark (VmHWM, reset through clear_refs)")


def _cgroup() -> Diagnosis:
    try:
        group = cgroup_files.find()
    except MeterUnavailable:
        return Diagnosis(
            "cgroup", None, "no memory controller to read here (neither v1 nor v2): limits are the machine's"
        )
    limit = group.limit()
    words = "no limit" if limit is None else f"limit {format_size(limit)}"
    return Diagnosis("cgroup", True, f"v{group.version}, {words}, in {group.folder}")


def _about_the_interpreter() -> Iterator[Diagnosis]:
    version = ".".join(map(str, sys.version_info[:3]))
    traits = ["debug build" if native.is_debug_build() else "release build"]
    if native.is_free_threaded():
        traits.append("free-threaded")
    jit = getattr(sys, "_jit", None)  # from 3.14 on
    if jit is not None and jit.is_enabled():
        traits.append("with its JIT on")
    yield Diagnosis("interpreter", None, f"{sys.implementation.name} {version} ({', '.join(traits)})")
    chosen = os.environ.get("PYTHONMALLOC") if not sys.flags.ignore_environment else None
    usual = "debug hooks (-X dev)" if sys.flags.dev_mode else "the build's default"
    yield Diagnosis("object allocator", None, f"{chosen} (PYTHONMALLOC)" if chosen else usual)
    yield Diagnosis("system", None, portable.platform_name())


def _about_devices() -> Iterator[Diagnosis]:
    """The libraries that can show memory of accelerators, and the driver. Nothing is loaded that makes a context. A
    missing one is no error."""
    from importlib.util import find_spec

    from hiwater.meters import devices
    from hiwater.meters.devices.nvml import Nvml

    found = [name for name in _registry.DEVICE_LIBRARIES if find_spec(name) is not None]
    nothing = f"none of {', '.join(_registry.DEVICE_LIBRARIES)} is installed"
    yield Diagnosis("GPU libraries", None, ", ".join(map(_library, found)) or nothing)
    nvml = devices.backend("nvml")
    assert isinstance(nvml, Nvml)
    status = nvml.status()
    yield Diagnosis("NVIDIA driver", True if status.works else None, status.reason)
    for card in nvml.devices() if status.works else ():
        yield _card(nvml, card)
    for driver, file in (("AMD", "/dev/kfd"), ("Intel", "/dev/dri/by-path")):
        if os.path.exists(file):
            yield Diagnosis(f"{driver} driver", None, f"{file} is there; its memory is known through torch alone")


def _library(name: str) -> str:
    """A library's name and version; for torch also its build, read from its files without loading it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        known = version(name)
    except PackageNotFoundError:
        return name
    if name == "torch" and "+cpu" in known:
        return f"torch {known} (built without GPU support)"
    return f"{name} {known}"


def _card(nvml: Nvml, card: Device) -> Diagnosis:
    from uuid import UUID

    memory, name = nvml.card(card), f" ({UUID(card.uuid)})" if card.uuid else ""
    if memory.reason:
        return Diagnosis(f"GPU {card.name}", None, f"{memory.reason}{name}")
    total, used = format_size(memory.total_bytes), format_size(memory.used_bytes)
    return Diagnosis(f"GPU {card.name}", True, f"{used} of {total} used, by everybody{name}")


def _versions() -> Iterator[Diagnosis]:
    from importlib.metadata import PackageNotFoundError, version

    yield Diagnosis("hiwater", None, __version__)
    for package, purpose in (("numpy", "reads captures"), ("rich", "draws reports")):
        try:
            yield Diagnosis(package, True, version(package))
        except PackageNotFoundError:
            yield Diagnosis(package, False, f"is not installed, and {purpose}: pip install {package}")
