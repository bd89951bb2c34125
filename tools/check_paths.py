"""Finds code of hiwater's that opens, changes or removes files by path, or writes to the console, outside of the module
that does it safely.

`hiwater._os.trust` opens what other users may have put somewhere: it expects FIFOs, links and other owners. Elsewhere a
module uses paths only as this table says. Text goes to the console through `cli.messages.say`, which escapes what a
terminal would obey, or through a renderer of reports. `/proc` and `/sys` are the kernel's, and may be opened anywhere.

A function counts wherever it is named, under whatever name it was imported. Of methods, whose objects have no types
here, calls count whose name and arguments are those of `pathlib`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "hiwater"
SAFE = "_os/trust.py"
MESSAGES = "cli/messages.py"

BY_PATH = {
    "open", "io.open", "io.open_code", "io.FileIO", "codecs.open", "gzip.open", "bz2.open", "lzma.open", "tarfile.open",
    "tokenize.open", "sqlite3.connect", "shelve.open", "dbm.open", "fileinput.input", "runpy.run_path",
    "linecache.getline", "linecache.getlines", "numpy.load", "numpy.fromfile", "numpy.memmap", "numpy.loadtxt",
    "numpy.save", "numpy.savez", "tempfile.gettempdir", "tempfile.mktemp", *(f"os.{name}" for name in (
        "open", "chown", "lchown", "chmod", "lchmod", "chflags", "rename", "renames", "replace", "truncate", "utime",
        "mkfifo", "mknod", "link", "symlink", "unlink", "remove", "rmdir", "removedirs", "mkdir", "makedirs",
        "setxattr", "removexattr",
    )),
}  # fmt: skip
SAFE_OF_SHUTIL = {"shutil.which", "shutil.get_terminal_size", "shutil.disk_usage"}
METHODS = {
    "read_bytes", "read_text", "write_bytes", "write_text", "chmod", "lchmod", "rename", "symlink_to", "hardlink_to",
    "touch", "unlink", "rmdir", "mkdir",
}  # fmt: skip
MODES = set("rwxabt+")
KERNEL = ("/proc/", "/sys/")
CONSOLE = {"print", "rich.print", "traceback.print_exc", "traceback.print_exception", "warnings.warn"}
STREAMS = {f"sys.{name}" for name in ("stdout", "stderr", "__stdout__", "__stderr__")}

NAMED = "the user names it"
OWN = "in a folder that this process has made, or by a new name that mkstemp or O_EXCL has taken"
DESCRIPTOR = "a descriptor, no path"
PROGRAM = "the source of functions of this process"
SHIPPED = "of the installation"
CHECKED = "what is open is checked: a regular file, whose contents show what it is"
JOB = "in the folder of a job, which its user names and shares with the machines of the job"
COUNTER = "a counter or a gate is opened, no file"
OURS = "a file or folder that hiwater itself has made and named, is removed; a link would be removed, not followed"
PATHS = {
    "_os/cgroup_files.py": "of the kernel: a cgroup's files, which is_events_file() or find() have found",
    "_os/control_file.py": f"{OWN}; {OURS}",
    "_os/destination.py": OURS,
    "_os/kept_file.py": "of the kernel: its users name files of /proc",
    "_os/ownership.py": SHIPPED,
    "_os/process_identity.py": "of the kernel, or in a copy of /proc of tests",
    "_os/procfs.py": "of the kernel, or in a copy of /proc of tests",
    "_os/replacing.py": f"{NAMED}; the rest: {OWN}",
    "analysis/baseline.py": NAMED,
    "analysis/symbols/names_file.py": "the folder of the user's own cache, used only if nobody else may write to it",
    "analysis/suppressions.py": NAMED,
    "capture/packing.py": f"the sources: {CHECKED}; the result: {OWN}",
    "capture/reader.py": CHECKED,
    "capture/writer.py": OWN,
    "cli/check_baseline.py": NAMED,
    "cli/check_programs.py": NAMED,
    "cli/gdb.py": OWN,
    "cli/injected.py": OWN,
    "cli/lines.py": NAMED,
    "cli/run.py": OURS,
    "cli/sample.py": f"{OURS}; {COUNTER}",
    "contrib/cluster/": JOB,
    "contrib/compat/": f"{NAMED}, as for the tools in whose place these modules are",
    "contrib/pytest_plugin/evidence.py": f"{NAMED}, or by a new name that nobody can guess; {COUNTER}",
    "contrib/torch/cli/estimate.py": NAMED,
    "contrib/torch/estimate/": DESCRIPTOR,
    "contrib/torch/swap.py": "of the kernel: /proc/meminfo and the files of a cgroup",
    "device_history/files.py": NAMED,
    "lines/child_figures.py": OWN,
    "lines/decorator.py": OURS,
    "lines/device_display.py": PROGRAM,
    "lines/report.py": PROGRAM,
    "meters/heap.py": COUNTER,
    "notebook/recording.py": OURS,
    "recording/children.py": "is_own_folder() checks what is there",
    "recording/holders.py": OURS,
    "recording/run_before.py": "a capture of this user's, which the engine has read",
    "recording/standby.py": OURS,
    "recording/target.py": NAMED,
    "report/export/svg.py": SHIPPED,
    "report/html/page.py": SHIPPED,
    "sampling/recording.py": OURS,
    "scopes/logs.py": NAMED,
    "scopes/manager.py": COUNTER,
}
RENDERED = "what a renderer has escaped, or what hiwater alone has made"
PASSED_ON = "the stream of a program of the user's"
INSIDE = "in the user's own program, about that program"
ON_CONSOLE = {
    "cli/check_programs.py": PASSED_ON,
    "cli/doctor.py": "about this machine",
    "cli/leaks.py": PASSED_ON,
    "cli/lines.py": RENDERED,
    "cli/live.py": RENDERED,
    "cli/live_plain.py": RENDERED,
    "cli/output.py": "the name of a file that is made from the user's own arguments, for other programs to read",
    "cli/pager.py": RENDERED,
    "cli/progress.py": "numbers",
    "cli/run.py": "the streams that the program replaced are put back",
    "cli/sample.py": "numbers",
    "cli/sampled_command.py": "it is flushed",
    "cli/standard_output.py": RENDERED,
    "cli/verbs.py": "its help",
    "compat.py": SHIPPED,
    "contrib/cluster/": INSIDE,
    "contrib/compat/": f"{INSIDE}, in the words of the tools in whose place these modules are",
    "contrib/pytest_plugin/": INSIDE,
    "contrib/torch/": INSIDE,
    "lines/": INSIDE,
    "notebook/": INSIDE,
    "recording/": INSIDE,
    "sampling/": INSIDE,
}


def imported(tree: ast.AST) -> dict[str, str]:
    """What each name that is imported anywhere in a module stands for: {"np": "numpy", "remove": "os.remove"}."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def name_of(node: ast.AST, names: dict[str, str]) -> str:
    """What an expression names, in full: "os.open"; "" for what has no name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value, names)}.{node.attr}"
    if isinstance(node, ast.Call) and name_of(node.func, names) == "getattr" and len(node.args) > 1:
        owner, attribute = node.args[:2]
        if isinstance(attribute, ast.Constant):
            return f"{name_of(owner, names)}.{attribute.value}"
    return ""


def is_safe(call: ast.Call, names: dict[str, str]) -> bool:
    """Whether the path begins with a folder of the kernel's, or is a descriptor of a file that `trust` has opened."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Call):
        return ".trust." in f".{name_of(first.func, names)}"
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    return isinstance(first, ast.Constant) and str(first.value).startswith(KERNEL)


def is_of_pathlib(call: ast.Call) -> bool:
    """Whether a method with this name and these arguments may be one of `pathlib`."""
    if not isinstance(call.func, ast.Attribute):
        return False
    given = [getattr(one, "value", None) for one in call.args]
    named = {one.arg for one in call.keywords}
    if call.func.attr == "open":
        is_mode = bool(given) and isinstance(given[0], str) and set(given[0]) <= MODES
        return not given or is_mode or bool(named & {"mode", "encoding"})
    if call.func.attr == "replace":  # a str's takes two
        return len(given) == 1 and not named
    return call.func.attr in METHODS


def found_in(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """The line and the name of each use, and whether it uses a path; otherwise it writes to the console."""
    names = imported(tree)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in BY_PATH}
    harmless = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and is_safe(node, names)}
    for node in ast.walk(tree):
        name = name_of(node, names)
        if isinstance(node, ast.Call) and node.func not in harmless and is_of_pathlib(node):
            whole = name_of(node.func, names)
            if not whole.startswith("hiwater.") and whole not in BY_PATH:
                yield node.lineno, whole, True
        if not isinstance(node, ast.Name | ast.Attribute | ast.Call) or node in harmless or not name:
            continue
        if name in CONSOLE or name in STREAMS:
            yield node.lineno, name, False
        elif (name in BY_PATH and name not in own) or (name.startswith("shutil.") and name not in SAFE_OF_SHUTIL):
            yield node.lineno, name, True


def reason_in(table: dict[str, str], place: str) -> str | None:
    """The row that allows this module: its own, or that of a folder that it is in."""
    folders = [f"{folder}/" for folder in map(Path.as_posix, Path(place).parents) if folder != "."]
    return next((row for row in (place, *folders) if row in table), None)


def main() -> int:
    """Print what is not allowed, and which rows allow nothing. Returns 1 if there is any."""
    wrong, unused = [], {True: set(PATHS), False: set(ON_CONSOLE)}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place in (SAFE, MESSAGES):
            continue
        for line, name, opens in found_in(ast.parse(path.read_text("utf-8"))):
            row = reason_in(PATHS if opens else ON_CONSOLE, place)
            unused[opens].discard(row or "")
            if row is None:
                way = "open it through hiwater._os.trust" if opens else "say it through hiwater.cli.messages"
                wrong.append(f"src/hiwater/{place}:{line}: {name}: {way}, or give the reason in tools/check_paths.py")
    wrong += [
        f"tools/check_paths.py: {row} needs no exception any more" for row in sorted(unused[True] | unused[False])
    ]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
