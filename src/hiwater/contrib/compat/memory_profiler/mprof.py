"""mprof's commands: run, attach, plot, list, clean, rm and peak."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time
from pathlib import Path

from hiwater import __version__
from hiwater._os import procfs
from hiwater._os.replacing import replacing
from hiwater.cli.messages import say
from hiwater.contrib.compat.drop_ins import folder as compat_folder
from hiwater.contrib.compat.memory_profiler import datfile
from hiwater.errors import (
    BadRequest,
    CaptureUnwritable,
    HiwaterError,
    NoSuchProcess,
    NotFound,
    NotRunnable,
    OutputFailed,
)
from hiwater.sampling.usage import memory_usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from hiwater.analysis.curves import Plot

_ATTACHED_SECONDS = 3600.0
_DRAWINGS = ("png", "svg", "pdf")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mprof ACTION …` and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in ACTIONS:
        known = words[:1] in (["-h"], ["--help"])
        if words[:1] == ["--version"]:
            print(f"mprof {__version__} (hiwater)")
            return 0
        stream = sys.stdout if known else sys.stderr
        stream.write("Usage: mprof <command> <options> <arguments>\n\nAvailable commands:\n\n")
        for name, action in ACTIONS.items():
            stream.write(f"    {name:<8}{(action.__doc__ or '').splitlines()[0]}\n")
        return 0 if known else 1
    try:
        return ACTIONS[words[0]](words[1:])
    except HiwaterError as error:
        say(str(error))
        return error.exit_code


def run_action(words: Sequence[str] | None = None) -> int:
    """Run a program and record its memory over time.

    With --exit-code it raises SystemExit with the program's exit code, as mprof does, also for 0; 128 + n if signal n
    ended the program.
    """
    parser = _parser("run", "[options] program …")
    parser.add_argument("--version", action="version", version=f"mprof {__version__} (hiwater)")
    parser.add_argument("--python", action="store_true", help="note when @profile'd functions run (implied by .py)")
    parser.add_argument("--nopython", action="store_true", help="run a .py file as it is")
    parser.add_argument("-E", "--exit-code", action="store_true", help="end with the program's exit code")
    parser.add_argument("-a", "--attach", action="store_true", help="the program is a running process")
    _add_sampling(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    parsed = parser.parse_args(_words(words))
    program = parsed.program[1:] if parsed.program[:1] == ["--"] else parsed.program
    if not program:
        parser.error("a program must be given")
    if parsed.attach:
        return _attach(parsed, program)
    command, environment = _command(parsed, program, path := _new_file(parsed.output))
    with _opened(path) as file:
        file.write("CMDLINE " + " ".join(program) + "\n")
        file.flush()
        print(f"mprof: Sampling memory every {parsed.interval}s")
        sys.stdout.flush()
        process = _start(command, environment)
        try:
            _record(process, parsed, file)
        finally:
            code = _wait(process)
    if parsed.exit_code:
        if code != 0:
            sys.stderr.write(f"mprof: the program ended with exit code {code}\n")
        sys.exit(code)
    return 0


def attach_action(words: Sequence[str] | None = None) -> int:
    """Record the memory of a running process, given by its number or a part of its name."""
    return run_action(["--attach", *_words(words)])


def _attach(parsed: argparse.Namespace, program: list[str]) -> int:
    pid = _find(program[0])
    if parsed.timeout is None:
        parsed.timeout = _ATTACHED_SECONDS
    with _opened(_new_file(parsed.output)) as file:
        file.write("CMDLINE " + (" ".join(procfs.command_of(pid)) or procfs.name_of(pid)) + "\n")
        print(f"mprof: Sampling memory of process {pid} every {parsed.interval}s")
        sys.stdout.flush()
        try:
            _record(pid, parsed, file)
        except KeyboardInterrupt:
            return 0
    if procfs.state_of(pid) in {"", "Z", "X"}:
        print(f"mprof: process {pid} has ended")
    return 0


def _find(word: str) -> int:
    """The process with this number, or the first whose name contains this text. Raises NoSuchProcess."""
    if word.isdecimal():
        procfs.open_target(int(word)).close()
        return int(word)
    for pid in procfs.all_processes():
        if word in procfs.name_of(pid) and pid != os.getpid():
            return pid
    raise NoSuchProcess(f"no process has {word!r} in its name", "look with `ps`")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-T", "--interval", type=float, default=0.1, help="seconds between samples")
    parser.add_argument("-C", "--include-children", action="store_true", help="add child processes")
    parser.add_argument("-M", "--multiprocess", action="store_true", help="record child processes apart")
    parser.add_argument("-t", "--timeout", type=float, help="stop sampling after as many seconds")
    parser.add_argument("-o", "--output", help="the file (default: mprofile_<time>.dat)")
    parser.add_argument("--backend", default="psutil")


def _command(parsed: argparse.Namespace, program: list[str], path: str) -> tuple[list[str], dict[str, str]]:
    """The command to start, and its environment. Raises BadRequest."""
    environment = dict(os.environ)
    is_script = program[0].endswith(".py")
    if parsed.nopython or not (parsed.python or is_script):
        return program, environment
    if program[0] == sys.executable or os.path.basename(program[0]).startswith("python"):
        program = program[1:]
    if not program:
        raise BadRequest("there is no program after the interpreter", "name a script")
    places = [compat_folder(), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(places)
    words = [
        sys.executable,
        "-m",
        "memory_profiler",
        "--timestamp",
        "-o",
        os.path.abspath(path),
        "--backend",
        parsed.backend,
    ]
    if parsed.include_children:
        words.append("--include-children")
    print("running as a Python program...")
    return [*words, *program], environment


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment)
    except FileNotFoundError:
        raise NotFound(f"there is no program {command[0]!r}", "check the name and PATH") from None
    except OSError as error:
        raise NotRunnable(f"{command[0]!r} cannot be run ({error.strerror})", "check its permissions") from None


def _record(process: subprocess.Popen[bytes] | int, parsed: argparse.Namespace, file: TextIO) -> None:
    try:
        memory_usage(
            process, interval=parsed.interval, timeout=parsed.timeout, include_children=parsed.include_children,
            multiprocess=parsed.multiprocess, stream=file, backend=parsed.backend,
        )  # fmt: skip
    except NoSuchProcess:
        return  # it ended before the first sample


def _wait(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # from the terminal: the program has it, too
        return code if code >= 0 else 128 - code


def _new_file(wanted: str | None) -> str:
    """The file to write. Two runs in one second get different files."""
    if wanted is not None:
        return wanted
    name = time.strftime("mprofile_%Y%m%d%H%M%S")
    path, number = f"{name}.dat", 1
    while os.path.exists(path):
        path, number = f"{name}_{number}.dat", number + 1
    return path


def _opened(path: str) -> TextIO:
    try:
        return open(path, "a", encoding="utf-8")  # the program itself appends its FUNC lines
    except OSError as error:
        raise CaptureUnwritable(f"{path!r} cannot be written ({error.strerror})", "choose another with -o") from error


def list_action(words: Sequence[str] | None = None) -> int:
    """List the files of this folder with their numbers."""
    _parser("list", "").parse_args(_words(words))
    for number, name in enumerate(datfile.get_profile_filenames(["all"])):
        digits = name.removeprefix("mprofile_")[:14]
        try:
            when = time.strftime("%H:%M:%S %d/%m/%Y", time.strptime(digits, "%Y%m%d%H%M%S"))
        except ValueError:
            when = ""
        print(number, name, when)
    return 0


def rm_action(words: Sequence[str] | None = None) -> int:
    """Remove files, by name or number."""
    parser = _parser("rm", "[--dry-run] file-or-number …")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("profiles", nargs="+")
    parsed = parser.parse_args(_words(words))
    return _remove(datfile.get_profile_filenames(parsed.profiles), dry_run=parsed.dry_run)


def clean_action(words: Sequence[str] | None = None) -> int:
    """Remove all files of mprof from this folder."""
    parser = _parser("clean", "[--dry-run]")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parsed = parser.parse_args(_words(words))
    return _remove(datfile.get_profile_filenames(["all"]), dry_run=parsed.dry_run)


def _remove(names: list[str], *, dry_run: bool) -> int:
    if dry_run:
        print("Files to be removed: ")
    for name in names:
        if dry_run:
            print(name)
        else:
            os.remove(name)
    return 0


def peak_action(words: Sequence[str] | None = None) -> int:
    """Print the highest memory."""
    parser = _parser("peak", "[--func NAME] [file-or-number …]")
    parser.add_argument("--func", help="only while this function ran")
    parser.add_argument("profiles", nargs="*")
    parsed = parser.parse_args(_words(words))
    for name in datfile.get_profile_filenames(parsed.profiles or ["-1"]):
        profile = datfile.read_mprofile_file(name)
        used = datfile.filter_mprofile_mem_usage_by_function(profile, parsed.func)
        print(f"{name}\t{max(used, default=float('nan')):.3f} MiB")
        for child, samples in profile["children"].items():
            print(f"  Child {child}\t\t\t{max(used for used, _ in samples):.3f} MiB")
    return 0


def plot_action(words: Sequence[str] | None = None) -> int:
    """Plot the newest file or the given ones; on the terminal without -o."""
    from hiwater.analysis.curves import window

    parser = _parser("plot", "[options] [file-or-number …]")
    parser.add_argument("-t", "--title", help="instead of the command line")
    parser.add_argument("-n", "--no-function-ts", action="store_true", help="leave functions out")
    parser.add_argument("-o", "--output", help="write a drawing (.png, .svg, .pdf)")
    parser.add_argument("-w", "--window", help="A,B: only this stretch, in seconds")
    parser.add_argument("-f", "--flame", action="store_true", help="functions are always stacked by depth here")
    parser.add_argument("-s", "--slope", action="store_true", help="say how fast memory grows, in the title")
    parser.add_argument("--backend", help="a matplotlib backend; files need none")
    parser.add_argument("profiles", nargs="*")
    parsed = parser.parse_args(_words(words))
    profiles = [datfile.read_mprofile_file(name) for name in datfile.get_profile_filenames(parsed.profiles or ["-1"])]
    plots = [datfile.plot_of(profile, functions=not parsed.no_function_ts) for profile in profiles]
    if parsed.window:
        start, end = _window(parsed.window)
        plots = [window(shown, start, end) for shown in plots]
    title = parsed.title or (_with_slope(profiles[0]) if parsed.slope and len(profiles) == 1 else None)
    if parsed.output is None:
        from hiwater.report.text import timeline_plot

        timeline_plot.draw(plots, sys.stdout, title=title)
    else:
        _write_drawing(plots, parsed.output, title)
    return 0


def _write_drawing(plots: Sequence[Plot], path: str, title: str | None) -> None:
    """Write the drawing; the file is replaced only when it is complete. Raises BadRequest, OutputFailed,
    PlotLibraryMissing."""
    from hiwater.report.export import plot

    drawing = os.path.splitext(path)[1].lower().removeprefix(".")
    if drawing not in _DRAWINGS:
        raise BadRequest(f"{path!r} is not a drawing that can be made", "end the name in .png, .svg or .pdf")
    drawn = io.BytesIO()
    plot.draw(plots, drawing, drawn, title=title)
    try:
        with replacing(Path(path)) as stream:
            stream.buffer.write(drawn.getvalue())
    except OSError as error:
        raise OutputFailed(f"the plot cannot be written to {path!r} ({error.strerror})", "write elsewhere") from error


def _window(text: str) -> tuple[float, float]:
    try:
        start, end = map(float, text.split(","))
    except ValueError:
        raise BadRequest(f"{text!r} is not a window", "write two times in seconds, such as 1.5,20") from None
    return start, end


def _with_slope(profile: datfile.Profile) -> str:
    """The command line, and the slope of the straight line through all samples (least squares)."""
    import numpy as np

    name = profile["cmd_line"] or profile["filename"]
    if len(profile["timestamp"]) < 2:
        return str(name)
    slope = float(np.polyfit(np.array(profile["timestamp"]) - profile["timestamp"][0], profile["mem_usage"], 1)[0])
    return f"{name} · slope {slope:.3f} MiB/s"


def _parser(action: str, usage: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"mprof {action}", usage=f"%(prog)s {usage}")


def _words(words: Sequence[str] | None) -> list[str]:
    """The action's arguments; those of the command line if it is called without any, as in mprof's tests."""
    if words is not None:
        return list(words)
    return sys.argv[2:] if len(sys.argv) > 1 and sys.argv[1] in ACTIONS else sys.argv[1:]


ACTIONS: dict[str, Callable[[Sequence[str] | None], int]] = {
    "run": run_action,
    "attach": attach_action,
    "rm": rm_action,
    "clean": clean_action,
    "list": list_action,
    "plot": plot_action,
    "peak": peak_action,
}
