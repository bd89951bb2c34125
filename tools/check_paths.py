"""Finds code of hiwater's that opens files by path, or writes to the console, outside of the modules that do it safely.

Other users' files are opened in `hiwater._os` alone, which expects FIFOs, links and other owners (`trust`). Elsewhere a
module opens by path only what this table says. Text goes to the console through `cli.messages.say`, which escapes what
a terminal would obey, or through a renderer of reports. `/proc` and `/sys` are the kernel's, and may be opened
anywhere.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "hiwater"
SAFE = "_os/"  # and the module of messages
MESSAGES = "cli/messages.py"

BY_PATH = {
    "open", "io.open", "os.open", "os.chown", "os.lchown", "os.chmod", "os.rename", "os.replace", "os.truncate", "os.mkfifo", "os.link", "os.symlink",
    "shutil.copy", "shutil.copyfile", "shutil.move", "shutil.chown",
}  # fmt: skip
METHODS = {
    "read_bytes",
    "read_text",
    "write_bytes",
    "write_text",
    "chmod",
    "rename",
    "symlink_to",
    "hardlink_to",
    "touch",
}
KERNEL = ("/proc/", "/sys/")
CONSOLE = {"print", *(f"sys.{name}.write" for name in ("stdout", "stderr", "__stdout__", "__stderr__"))}

NAMED = "the user names it"
OWN = "in a folder that this process has made, or by a new name that mkstemp or O_EXCL has taken"
DESCRIPTOR = "a descriptor, no path"
SHIPPED = "of the installation"
CHECKED = "what is open is checked: a regular file, whose contents show what it is"
JOB = "in the folder of a job, which its user names and shares with the machines of the job"
PATHS = {
    "analysis/baseline.py": NAMED,
    "analysis/suppressions.py": NAMED,
    "capture/packing.py": f"the sources: {CHECKED}; the result: {OWN}",
    "capture/reader.py": CHECKED,
    "capture/writer.py": OWN,
    "cli/check_baseline.py": NAMED,
    "cli/gdb.py": OWN,
    "cli/injected.py": OWN,
    "cli/lines.py": NAMED,
    "cli/snapshot.py": OWN,
    "contrib/cluster/": JOB,
    "contrib/compat/": f"{NAMED}, as for the tools in whose place these modules are",
    "contrib/torch/cli/estimate.py": NAMED,
    "contrib/torch/estimate/": DESCRIPTOR,
    "contrib/torch/swap.py": "of the kernel: /proc/meminfo and the files of a cgroup",
    "device_history/files.py": NAMED,
    "lines/child_figures.py": OWN,
    "recording/own_code.py": SHIPPED,
    "recording/run_before.py": "a capture of this user's, which the engine has read",
    "report/export/svg.py": SHIPPED,
    "report/html/page.py": SHIPPED,
    "scopes/logs.py": NAMED,
}
RENDERED = "what a renderer has escaped, or what hiwater alone has made"
INSIDE = "in the user's own program, about that program"
ON_CONSOLE = {
    "cli/doctor.py": "about this machine",
    "cli/lines.py": RENDERED,
    "cli/live_plain.py": RENDERED,
    "cli/output.py": "the name of a file that is made from the user's own arguments, for other programs to read",
    "cli/pager.py": RENDERED,
    "cli/sample.py": "numbers",
    "cli/standard_output.py": RENDERED,
    "compat.py": SHIPPED,
    "contrib/cluster/spark_worker.py": INSIDE,
    "contrib/compat/": f"{INSIDE}, in the words of the tools in whose place these modules are",
    "contrib/torch/": INSIDE,
    "notebook/logger.py": INSIDE,
    "recording/": INSIDE,
}


def name_of(node: ast.expr) -> str:
    """What is called, as it is written: "os.open"; "" for what has no name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = name_of(node.value)
        return f"{owner}.{node.attr}" if owner else f".{node.attr}"
    return ""


def is_safe(call: ast.Call) -> bool:
    """Whether the path begins with a folder of the kernel's, or is a descriptor of a file that `trust` has opened."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Call):
        return name_of(first.func).startswith("trust.")
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    return isinstance(first, ast.Constant) and str(first.value).startswith(KERNEL)


def found_in(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """The line and the name of each call, and whether it opens by path; otherwise it writes to the console."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func)
        if name in CONSOLE:
            yield node.lineno, name, False
        elif (name in BY_PATH or (name.rpartition(".")[2] in METHODS and "." in name)) and not is_safe(node):
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
        if place.startswith(SAFE) or place == MESSAGES:
            continue
        for line, name, opens in found_in(ast.parse(path.read_text("utf-8"))):
            row = reason_in(PATHS if opens else ON_CONSOLE, place)
            unused[opens].discard(row or "")
            if row is None:
                way = "open it through hiwater._os.trust" if opens else "say it through hiwater.cli.messages"
                wrong.append(f"src/hiwater/{place}:{line}: {name}(): {way}, or give the reason in tools/check_paths.py")
    wrong += [
        f"tools/check_paths.py: {row} needs no exception any more" for row in sorted(unused[True] | unused[False])
    ]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
