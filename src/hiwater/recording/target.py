"""The program to run, found and prepared as the interpreter would do it, before any of it has run.

A target describes how `python` would run it: the values of `sys.argv` and `sys.path[0]`, the contents of the new
`__main__`, and the call that runs it. The interpreter's rules are in Modules/main.c, Python/pythonrun.c and
Lib/runpy.py.
"""

from __future__ import annotations

import os
import sys

import hiwater
from hiwater._os import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

# Of a program: an installer that begins it with /bin/sh, for a long path, names Python in the second line.
_START_BYTES = 1024
# Up to 3.14, the interpreter gives the __main__ of a script this name.
_CACHED: dict[str, object] = {} if sys.version_info >= (3, 15) else {"__cached__": None}


class Target:
    """A program that is ready to run. `entry(main)` returns the call that runs it in the module `main`."""

    __slots__ = ("argv", "audit", "container", "entry", "is_file", "name", "original", "path_head")

    def __init__(
        self,
        *,
        name: str,
        argv: list[str],
        path_head: str | None,
        entry: Callable[[ModuleType], tuple[Callable[..., object], tuple[object, ...]]],
        audit: tuple[str, str],
        original: list[str],
        container: bool = False,
        is_file: bool = False,
    ) -> None:
        self.name = name  # for messages, and for the name of the capture
        self.argv = argv
        self.path_head = path_head  # the new sys.path[0]; None for no new entry
        self.entry = entry
        self.audit = audit  # the audit event of `python`, with its argument
        self.original = original  # the end of sys.orig_argv
        self.is_file = is_file  # a script or standard input: the interpreter flushes stdout and stderr after it
        self.container = container  # a folder or an archive: it is on sys.path even with -P


def find(kind: str, program: str, arguments: Sequence[str]) -> Target:
    """Return the target of a kind ("script", "module" or "command"). Raises what the functions below raise."""
    return {"script": script, "module": module, "command": command}[kind](program, arguments)


def script(path: str, arguments: Sequence[str]) -> Target:
    """Return the target for `python path arguments…`: a source or .pyc file, or a folder or archive with a `__main__`.
    A name that is no file is that of a Python program on PATH.

    Raises NotFound or NotRunnable; SyntaxError as compiling the script does.
    """
    if path == "-":
        return standard_input(arguments)
    if not os.path.lexists(path):
        path = _on_path(path)
    absolute = path if os.path.isabs(path) else os.path.join(_current_folder() or "", path)
    if _is_importable_from(absolute):
        return _container(path, absolute, arguments)
    source = _read(path)
    compiled = _is_bytecode(path, source)
    code = _unmarshal(path, source) if compiled else _compile(absolute, source)

    def entry(main: ModuleType) -> tuple[Callable[..., object], tuple[object, ...]]:
        # Not from importlib.machinery, which `python` would not have loaded.
        from _frozen_importlib_external import SourceFileLoader, SourcelessFileLoader

        loader = SourcelessFileLoader if compiled else SourceFileLoader
        main.__dict__.update(__file__=absolute, __loader__=loader("__main__", absolute), **_CACHED)
        return exec, (code, main.__dict__)

    return Target(
        name=_without_suffix(os.path.basename(path)),
        argv=[path, *arguments],
        path_head=os.path.dirname(os.path.realpath(path)),
        entry=entry,
        audit=("cpython.run_file", absolute),
        original=[path, *arguments],
        is_file=True,
    )


def module(name: str, arguments: Sequence[str]) -> Target:
    """Return the target for `python -m name arguments…`. As in the interpreter, the module is searched for when it
    runs."""
    import runpy  # the interpreter uses it for -m, so its frames are in the same tracebacks

    def entry(_main: ModuleType) -> tuple[Callable[..., object], tuple[object, ...]]:
        return runpy._run_module_as_main, (name,)  # type: ignore[attr-defined]  # private, and what `python -m` calls

    return Target(
        name=name,
        argv=["-m", *arguments],
        path_head=_current_folder(),
        entry=entry,
        audit=("cpython.run_module", name),
        original=["-m", name, *arguments],
    )


def command(source: str, arguments: Sequence[str]) -> Target:
    """Return the target for `python -c source arguments…`. Raises SyntaxError as compiling it does."""
    text = source + "\n"
    code = _code_of(text, "<string>")
    if sys.version_info >= (3, 13):  # since 3.13, a traceback shows the lines of -c
        import linecache

        linecache.cache["<string>"] = (len(text), None, text.splitlines(keepends=True), "<string>")

    def entry(main: ModuleType) -> tuple[Callable[..., object], tuple[object, ...]]:
        return exec, (code, main.__dict__)

    return Target(
        name="command",
        argv=["-c", *arguments],
        path_head="",
        entry=entry,
        audit=("cpython.run_command", text),
        original=["-c", source, *arguments],
    )


def standard_input(arguments: Sequence[str]) -> Target:
    """Return the target for `python - arguments…` with a program on standard input.

    Raises NotRunnable on a terminal, where the interpreter would be interactive; SyntaxError as compiling the program
    does.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise hiwater.errors.NotRunnable(
            "standard input is a terminal, not a program", "pipe a program in, or name a script"
        )
    code = _compile("<stdin>", sys.stdin.buffer.read())

    def entry(main: ModuleType) -> tuple[Callable[..., object], tuple[object, ...]]:
        main.__dict__.update(__file__="<stdin>", **_CACHED)
        return exec, (code, main.__dict__)

    return Target(
        name="stdin",
        argv=["-", *arguments],
        path_head="",
        entry=entry,
        audit=("cpython.run_stdin", ""),
        original=["-", *arguments],
        is_file=True,
    )


def _on_path(name: str) -> str:
    """The path of the Python program that a shell would start by this name. Raises NotFound or NotRunnable."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep) if os.sep not in name else []
    for path in (os.path.join(folder, name) for folder in folders):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            start = _read(path)[:_START_BYTES]
            if start.startswith(b"#!") and b"python" in start:
                return path
            raise hiwater.errors.NotRunnable(f"{name!r} is {path}, which is not a Python program", _instead_of(name))
    raise hiwater.errors.NotFound(
        f"there is no file {name!r}, and no program of this name on PATH", "check the name, or use -m for a module"
    )


def _instead_of(program: str) -> str:
    """What to do where a program that is not Python's was given."""
    name = os.path.basename(program)
    if name.startswith("python") and not name[len("python") :].strip("0123456789."):
        return "leave it out: hiwater runs the program after it, with the Python that hiwater is installed in"
    return "hiwater runs only Python programs; `hiwater sample --` watches any"


def _container(path: str, absolute: str, arguments: Sequence[str]) -> Target:
    import runpy

    def entry(_main: ModuleType) -> tuple[Callable[..., object], tuple[object, ...]]:
        return runpy._run_module_as_main, ("__main__", False)  # type: ignore[attr-defined]  # as for -m, above

    return Target(
        name=_without_suffix(os.path.basename(os.path.abspath(path))),
        argv=[path, *arguments],
        path_head=absolute,
        entry=entry,
        audit=("cpython.run_module", "__main__"),
        original=[path, *arguments],
        container=True,
    )


def _is_importable_from(path: str) -> bool:
    """Whether `path` could be an entry of sys.path: then the interpreter looks for a `__main__` inside it."""
    if path not in sys.path_importer_cache:
        importer = None
        for hook in sys.path_hooks:
            try:
                importer = hook(path)
            except ImportError:
                continue
            break
        sys.path_importer_cache[path] = importer
    return sys.path_importer_cache[path] is not None


def _read(path: str) -> bytes:
    from io import open_code

    try:
        with open_code(os.path.abspath(path)) as file:
            return file.read()
    except OSError as error:
        raise hiwater.errors.NotRunnable(
            f"{path!r} cannot be read ({error.strerror})", "check its permissions"
        ) from error


def _compile(path: str, source: bytes) -> CodeType:
    if b"\0" in source:
        raise hiwater.errors.NotRunnable(f"{path!r} is not Python source: it contains null bytes", _instead_of(path))
    try:
        return _code_of(source, path)
    except SyntaxError as error:
        # The interpreter reads a file line by line and has another message for this; here the file is not source.
        if "'utf-8' codec can't decode" in str(error.msg):
            raise hiwater.errors.NotRunnable(
                f"{path!r} is not Python source in UTF-8", "declare its encoding in the first line"
            ) from None
        raise


def _code_of(source: str | bytes, file: str) -> CodeType:
    """Compile as the interpreter does. The builtin `compile` first creates all types of syntax trees, which takes
    two milliseconds, and raises an audit event that `python` does not raise."""
    try:
        core = native.load()
    except hiwater.errors.HiwaterError:
        core = None  # compiled below, because here an error of the program would have ours as its context
    if core is None:
        return compile(source, file, "exec", dont_inherit=True)
    code: CodeType = core.compile_source(source, file)
    return code


def _is_bytecode(path: str, head: bytes) -> bool:
    from _frozen_importlib_external import MAGIC_NUMBER

    return path.endswith(".pyc") or head[: len(MAGIC_NUMBER)] == MAGIC_NUMBER


def _unmarshal(path: str, data: bytes) -> CodeType:
    import marshal
    from _frozen_importlib_external import MAGIC_NUMBER

    header = 16  # magic, flags, and the source's time and size or its hash
    if data[: len(MAGIC_NUMBER)] != MAGIC_NUMBER:
        raise hiwater.errors.NotRunnable(
            f"{path!r} was compiled by another version of Python", "run the source, or compile it again"
        )
    try:
        code = marshal.loads(data[header:])  # noqa: S302 - the user wants to run this program, so it is trusted
    except (EOFError, TypeError, ValueError) as error:
        raise hiwater.errors.NotRunnable(f"{path!r} is not complete ({error})", "compile it again") from error
    if not hasattr(code, "co_code"):
        raise hiwater.errors.NotRunnable(f"{path!r} contains no code", "compile it again")
    compiled: CodeType = code
    return compiled


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None  # the folder was removed; the interpreter then continues without it


def _without_suffix(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix in {".py", ".pyc", ".pyw", ".pyz", ".zip"} else name
