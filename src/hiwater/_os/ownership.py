"""Whose code it is, from the name of its file: the rules, in one place.

The engine applies them when it interns a code object (native/stacks/ownership.h) and writes the answer into the
capture, so that all readers have the same. Captures that no engine wrote, such as histories of other libraries, get
theirs here when they are read; so do the packages that `hiwater report --own` adds.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
