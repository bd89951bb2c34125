"""Whose code it is, from the name of its file: the rules, in one place.

The engine applies them when it interns a code object (native/stacks/ownership.h) and writes the answer into the
capture, so that all readers have the same. Captures that no engine wrote, such as histories of other libraries, get
theirs here when they are read; so do the packages that `hiwater report --own` adds.

Code in files that are not installed is the user's. So is that of installed packages which were installed from a folder
of this machine (`pip install .`), which are named (`--own`, `HIWATER_OWN`, `own` in pyproject.toml), or which are run.
A recorded process finds these out once, at its start.
"""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater._os import trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    Rule = tuple[str, int]

LIBRARY, OWN, RUN, IMPORTS = range(4)
"""Owners, as in native/capture/format.h: a library, which stands also for the interpreter and for generated code;
the user; the package that is run, which is installed; the import system."""

IMPORT_SYSTEM = "<frozen importlib."
COMMAND = "<-c"
"""How the name of the code of `python -c` begins. The interpreter calls its file `<string>`, as that of much code that
libraries generate."""

THE_COMMAND = COMMAND + ">"
"""The name of the code that the first process of a run has from its command line."""

SENT = "<dynamic-code>"
"""What cloudpickle calls the file of a function that it sends by value: one of `__main__`, or a local one. The engine
finds the file itself, unless it is a cell of a notebook."""

# By the user, into a program or a notebook; or sent.
_TYPED = ("<stdin>", "<console>", "<ipython-input*>", "<python-input*>", SENT, COMMAND + "*")
_TEMPLATES = (".html", ".htm", ".j2", ".jinja", ".jinja2", ".mako", ".tmpl", ".tpl", ".txt", ".xml", ".sql", ".md")
_LIBRARIES = (
    "*/site-packages/*", "*/dist-packages/*", "*/lib/python3/*", "*/lib64/python3/*", "*/lib/python3.*/*",
    "*/lib64/python3.*/*", "*/installed_wheels/*",  # the last is of pex
    "*/transformers_modules/*", "*/diffusers_modules/*", "*/torch/hub/*",  # code that came with a model
)  # fmt: skip
_GENERATED = (
    "*/??/c" + 51 * "?" + ".py",  # by torch.compile, in a folder that can be chosen
    "*/torch_geometric.*.py",  # in the folder for temporary files
)
# They run the programs of others: what a person changes is there, and not in these packages.
_RUNNERS = frozenset({
    "IPython", "accelerate", "airflow", "bokeh", "celery", "coverage", "dagster", "daphne", "dask", "debugpy",
    "deepspeed", "distributed", "django", "dramatiq", "fastapi_cli", "flask", "granian", "gunicorn", "huey",
    "hypercorn", "ipykernel", "ipykernel_launcher", "joblib", "jupyter", "jupyter_core", "jupyterlab", "kernprof",
    "line_profiler", "locust", "luigi", "memray", "mpi4py", "mypy", "nbconvert", "notebook", "panel", "papermill",
    "pip", "prefect", "pytest", "ray", "rq", "scalene", "scrapy", "sphinx", "streamlit", "torch", "twisted", "uvicorn",
    "uwsgi", "viztracer", "waitress", "xdist",
})  # fmt: skip
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_LONGEST_LAUNCHER = 4096  # bytes
_LINES_OF_LAUNCHERS = (
    "#",
    "import re",
    "import sys",
    "from ",
    "if __name__ ==",
    "if sys.argv[0]",
    "elif sys.argv[0]",
    "sys.argv[0] =",
    "sys.exit(",
)
_MOST_NAMED = 6


def number_of_text(text: str) -> str:
    """Four digits that tell one text from others."""
    return f"{int.from_bytes(text.encode('utf-8', 'replace'), 'big') % 65521:04x}"


def rules(own: Iterable[str] = (), run: Iterable[str] = (), *, launchers: Iterable[str] = ()) -> list[Rule]:
    """The rules as (pattern, owner), of which the first that matches counts; '*' stands for any text, '?' for one
    character. `own` and `run` are installed packages by their names, `launchers` the files of console scripts."""
    return [
        ("", LIBRARY),
        (IMPORT_SYSTEM + "*", IMPORTS),
        *((name, OWN) for name in _TYPED),
        ("<*>*", LIBRARY),  # torch has `<_remote_module_non_scriptable>.py`
        *((file, LIBRARY) for file in launchers),
        *((pattern, OWN) for name in own for pattern in _patterns(name)),
        *((pattern, RUN) for name in run for pattern in _patterns(name)),
        *((pattern, LIBRARY) for pattern in (*_LIBRARIES, *_GENERATED)),
        *(("*" + ending, LIBRARY) for ending in _TEMPLATES),  # compiled: the lines are not the template's
        ("memory:0x*", LIBRARY),  # Mako's, of a template without a file
        ("*", OWN),
    ]


def additions(own: Iterable[str]) -> list[Rule]:
    """The rules for installed packages that a reader counts as the user's, besides what the capture says."""
    return [(pattern, OWN) for name in own for pattern in _patterns(name)]


def _patterns(package: str) -> tuple[str, str]:
    path = package.replace("-", "_").replace(".", "/")
    return f"*-packages/{path}/*", f"*-packages/{path}.py"


def owners(files: Sequence[str], by: Sequence[Rule]) -> list[int]:
    """The owner of the code in each of these files."""
    import re

    wild = {"*": ".*", "?": "."}
    compiled = [
        (re.compile("".join(wild.get(one) or re.escape(one) for one in pattern), re.DOTALL), owner)
        for pattern, owner in by
    ]
    return [next((owner for pattern, owner in compiled if pattern.fullmatch(file)), LIBRARY) for file in files]


class OwnCode:
    """The packages that count as the user's: `own` always, `run` where no other code of the user's called them. Each
    with the reason."""

    __slots__ = ("_is_child", "command", "launchers", "own", "run")

    def __init__(self) -> None:
        self.own: dict[str, str] = {}
        self.run: dict[str, str] = {}
        self.launchers: list[str] = []
        self.command = ""  # the text of `-c`
        self._is_child = False

    @classmethod
    def of_this_process(cls, named: Iterable[str] = ()) -> Self:
        """What counts in the program that this process runs."""
        found = cls()
        found.own = dict.fromkeys(filter(_is_name, [*named, *_settings()]), "named")
        for package, why in _local_installs(sys.path):
            found.own.setdefault(package, why)
        found.add_program(sys.orig_argv)
        return found

    @classmethod
    def of_parent(cls, text: str) -> Self:
        """What `as_text` returned in the process that started this one, and what this process runs."""
        found = cls()
        found._is_child = True
        for line in text.splitlines():
            kind, name, why = line.split("\t")
            if kind == "launcher":
                found.launchers.append(name)
            else:
                (found.own if kind == "own" else found.run)[name] = why
        found.add_program(sys.orig_argv)
        return found

    def as_text(self) -> str:
        """All of it for `of_parent`."""
        rows = [("own", *row) for row in self.own.items()] + [("run", *row) for row in self.run.items()]
        return "\n".join(map("\t".join, [*rows, *(("launcher", file, "") for file in self.launchers)]))

    def add_program(self, arguments: Sequence[str]) -> None:
        """Add what the interpreter runs, by its arguments: a module, the package that a console script imports, or
        the text of `-c`."""
        kind, program = program_of(arguments[1:])
        if kind == "command":
            # A worker of multiprocessing may be recorded alone, too.
            if not program.startswith("from multiprocessing.") and not (self._is_child and _only_calls(program)):
                self.command = program
        elif kind == "module":
            self._add_run(program.partition(".")[0], "run with -m")
        elif kind == "script" and (package := launched_package(program)):
            self._add_run(package, f"run by {os.path.basename(program)}" if _is_name(program) else "run by a script")
            self.launchers += filter(_is_name, [os.path.abspath(program)])

    def _add_run(self, package: str, why: str) -> None:
        if package in self.own:
            self.own = {package: f"{self.own.pop(package)}, {why}"} | self.own
        elif package and package not in _RUNNERS and _is_name(package):
            self.run[package] = why

    def rules(self) -> list[tuple[str, int]]:
        """The rules for the engine."""
        return rules(self.own, self.run, launchers=self.launchers)

    @property
    def command_name(self) -> str:
        """What the engine calls the file of the text of `-c`, "" where there is none. Of a process that another one
        started it has a number which tells the text from others: a run may have several, and no capture has the
        text."""
        if not self.command:
            return ""
        if not self._is_child:
            return THE_COMMAND
        return f"{COMMAND} {number_of_text(self.command)}>"

    def arguments(self, words: Sequence[str]) -> list[str]:
        """The arguments of the interpreter, `words`, without the text of `-c`."""
        if not self.command:
            return list(words)
        at = next(place for place, word in enumerate(words) if word.endswith(self.command))
        option = words[at].removesuffix(self.command)  # `-cTEXT` is one argument
        return [*words[:at], *([option] if option else []), *words[at + 1 :]]

    def words(self) -> str:
        """What reports say about it."""
        known = [f"package {name} ({why})" for name, why in (self.run | self.own).items()]
        rest = [f"{len(known) - _MOST_NAMED} more packages"] if len(known) > _MOST_NAMED else []
        return ", ".join(["files that are not installed", *known[:_MOST_NAMED], *rest])


def _is_name(text: str) -> bool:
    """Whether the engine and the environment of children, which have one on a line and in UTF-8, can have it."""
    return text.isprintable()


def _settings() -> list[str]:
    """The packages in HIWATER_OWN, separated by commas, or in `own` of the nearest pyproject.toml. A program does
    not fail by a mistake there: `hiwater run` tells of it."""
    from hiwater._os import settings  # children have what their parent found

    try:
        return settings.here().names("own")
    except (OSError, hiwater.errors.UsageError):
        return []


def program_of(words: Sequence[str]) -> tuple[str, str]:
    """What an interpreter with these arguments runs: "module", "command" or "script" and its name, text or path; ""
    for neither."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            return ("script", word) if word != "-" else ("", "")
        if word in _OPTIONS_WITH_VALUE:
            next(rest, "")
        elif not word.startswith("--"):
            for kind, letter in (("command", "c"), ("module", "m")):
                before, found, after = word[1:].partition(letter)
                if found and before.isalpha() | (not before) and not set(before) & set("XWcm"):
                    return kind, after or next(rest, "")
    return "", ""


def _only_calls(command: str) -> bool:
    """Whether the text of `-c` imports a function and calls it, and no more: libraries such as joblib start processes
    of their own in this way."""
    head, _, rest = command.partition(" import ")
    name, _, call = rest.partition(";")
    return head.startswith("from ") and call.strip().startswith(f"{name.strip()}(")


def launched_package(script: str) -> str:
    """The package whose function a console script calls, as pip and uv write such scripts; "" for any other file."""
    try:
        with open(trust.open_regular(script, follows=True), "rb") as file:
            text = file.read(_LONGEST_LAUNCHER + 1)
    except OSError:
        return ""
    lines = [line.strip() for line in text.decode("utf-8", "replace").split("\n")]
    if len(text) > _LONGEST_LAUNCHER or not all(line.startswith(_LINES_OF_LAUNCHERS) for line in lines if line):
        return ""
    imported = [line.split()[1] for line in lines if line.startswith("from ")]
    calls = any(line.startswith("sys.exit(") and line.endswith("())") for line in lines)
    return imported[0].partition(".")[0] if len(imported) == 1 and calls else ""


def _local_installs(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The packages that were installed from a folder, editable ones included; also those from files of wheels,
    unless everything is: images of containers install all libraries so."""
    for folder in path:
        if not folder.endswith("-packages"):
            continue
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
        except OSError:
            continue
        archives = []
        for name in names:
            source = f"{folder}/{name}/direct_url.json"
            if name.startswith("hiwater-") or not os.access(source, os.R_OK):  # most have none: a tenth of an open()
                continue
            record = _read(source)
            if '"file:' not in record or _read(f"{folder}/{name}/INSTALLER").strip() == "conda":
                continue  # conda's packages name the folder in which they were built
            if '"dir_info"' not in record:
                archives.append(name)
                continue
            yield from _packages_of(
                folder, name, "editable install" if '"editable": true' in record else "local install"
            )
        if 2 * len(archives) < len(names):
            for name in archives:
                yield from _packages_of(folder, name, "local install")


def _packages_of(folder: str, distribution: str, why: str) -> Iterator[tuple[str, str]]:
    """The top-level packages and modules of a distribution, from its list of files; its own name where these are
    elsewhere."""
    tops = {line.partition(",")[0].strip('"') for line in _read(f"{folder}/{distribution}/RECORD").split("\n")}
    names = {
        top.partition("/")[0].removesuffix(".py")
        for top in tops
        if top.endswith(".py") and not top.startswith(("..", "__editable__"))
    }
    for name in sorted(names) or [distribution.partition("-")[0]]:
        yield name, why


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
