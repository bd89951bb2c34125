"""`%hiwater`, `%%hiwater` and their aliases; `%memit`, `%%memit` and `%mprun` come with them."""

from __future__ import annotations

import ast
import builtins
import difflib
import inspect
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand

from hiwater import _registry
from hiwater.errors import HiwaterError
from hiwater.notebook import logger
from hiwater.notebook.logger import CellLogger, show
from hiwater.notebook.recording import CellRecording, RecordingOptions
from hiwater.recording import cells

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from types import CodeType

    Method = TypeVar("Method", bound=Callable[..., Any])

NAMES = ("hiwater", "filprofile")
"""Cell magics that record: ours, and Fil's."""
_FIRST_LINE = re.compile(rf"%%({'|'.join(NAMES)})(?:[ \t]+([^\n]*))?\n?\Z")
_CALL = re.compile(rf"get_ipython\(\)\.run_(?:line|cell)_magic\('(?:{'|'.join(NAMES)})', .*\)(?=\n?\Z)")
"""As IPython writes them: at the end of a line, their text in one literal."""
_WORDS = ("on", "off", "vars", "holders", "timeline", "forget")
_OPTIONS = "[--sample SIZE] [-o FILE] [--lines] [--kept] [--native]"
_USAGE = f"%hiwater {' | '.join(_WORDS)} | STATEMENT, or %%hiwater {_OPTIONS}"


def marked(lines: list[str]) -> list[str]:
    """The input transformation of `%%hiwater`. Its line becomes one that begins a recording; the rest is an ordinary
    cell with its own line numbers, `await`, tracebacks and value. IPython calls this for every cell."""
    found = _FIRST_LINE.match(lines[0]) if lines else None
    if found is None:
        return lines
    following = next((line for line in lines[1:] if line.strip()), "")
    if following.startswith("%%") or any(line.startswith("from __future__") for line in lines[1:]):
        return lines  # those must be first in a cell: the magic itself runs them
    words = f"{found[1]} {(found[2] or '').strip()}".rstrip()
    return [f"get_ipython().run_line_magic('hiwater_begin', {words!r})\n", *lines[1:]]


def _as_typed(method: Method) -> Method:
    """A statement is Python, so IPython must not replace `{names}`. The types of IPython's own decorator fit no
    method."""
    decorate: Any = no_var_expand
    decorated: Method = decorate(method)
    return decorated


@magics_class
class HiwaterMagics(Magics):
    """The magics of hiwater."""

    _recording: CellRecording | None = None

    @_as_typed
    @line_cell_magic
    def hiwater(self, line: str = "", cell: str | None = None) -> Any:
        """Measure cells, or record one with the stacks that held its memory.

        %hiwater on [--compact] [--no-gc] [--trim]   a line after every cell: peak above its start, kept, resident and
                                                     allocated
        %hiwater off                                 stop that
        %hiwater vars                                the variables that hold most memory
        %hiwater holders [TYPE | FILE:LINE]          what holds the objects of this session, or those of a type or from
                                                     a line
        %hiwater timeline                            the session so far, with cells as bands
        %hiwater forget                              release what the last traceback keeps alive
        %hiwater STATEMENT                           record a statement, also one that awaits
        %%hiwater [--sample SIZE] [-o FILE] [--lines] [--kept] [--native]
                                                     record the cell: --sample records a sample of the blocks below
                                                     SIZE, -o keeps the capture, --lines shows source line by line,
                                                     --kept what was kept, not the peak, --native adds the frames
                                                     of C, C++, Rust and Fortran to the page
        """
        __tracebackhide__ = True  # a cell that fails shows frames of its own
        return self._obey("hiwater", line, cell)

    def _obey(self, name: str, line: str, cell: str | None) -> Any:
        __tracebackhide__ = True
        if cell is not None:
            typed = f"%%{name} {line}".rstrip()
            cells.show_first_line(self._running_file(), typed)
            return self._run_recorded(_recording_options(self, line), cell, typed)
        word, _, rest = line.strip().partition(" ")
        if word in _WORDS and not rest.lstrip().startswith(("=", ".", "(", "[")):
            try:
                return getattr(self, f"_{word}")(rest.strip())
            except HiwaterError as error:
                raise UsageError(str(error)) from None
        if not word:
            raise UsageError(_USAGE)
        recording_options, statement = _of_statement(self, line.strip())
        _check_statement(self.shell, word, statement)
        return self._run_recorded(recording_options, statement)

    @_as_typed
    @line_cell_magic
    def filprofile(self, line: str = "", cell: str | None = None) -> Any:
        """Fil's `%%filprofile`: the same as `%%hiwater`."""
        __tracebackhide__ = True
        return self._obey("filprofile", line, cell)

    @line_magic
    def hiwater_begin(self, words: str = "") -> None:
        """The first line of a `%%hiwater` cell after its transformation: records until the cell ends."""
        file = self._running_file()
        cells.show_first_line(file, f"%%{words}")
        recording = self._recording_of(_recording_options(self, words.partition(" ")[2]), file)
        if recording is not None:
            self._recording = recording

    def ended(self, result: Any = None) -> None:
        """Called by IPython after every cell, those that a recorded cell runs itself included."""
        recording = self._recording
        text = getattr(getattr(result, "info", None), "raw_cell", None)
        if recording is None or (text and not any(f"%%{name}" in text for name in NAMES)):
            return
        self._recording = None
        recording.finish()

    # The words of %hiwater

    def _on(self, rest: str) -> None:
        known = {"--compact", "--no-gc", "--trim"}
        words = rest.split()
        if not known.issuperset(words):
            raise UsageError(f"%hiwater on takes {', '.join(sorted(known))}")
        try:
            chosen = {"compact": "--compact" in words, "gc_collect": "--no-gc" not in words, "trim": "--trim" in words}
            self._logger = CellLogger(**chosen, shell=self.shell).start()
        except HiwaterError as error:
            raise UsageError(str(error)) from None

    def _off(self, _: str) -> None:
        running = logger.current()
        if running is not None:
            running.stop()

    def _vars(self, _: str) -> None:
        from hiwater.notebook.inventory import of_session

        show(self.shell, of_session(self.shell))

    def _holders(self, rest: str) -> None:
        import io

        from hiwater.analysis.source import Sources
        from hiwater.recording.holders import holders
        from hiwater.report.text import holders as text

        stream = io.StringIO()
        text.write(holders(rest or None), Sources("", 0), "", stream)
        show(self.shell, stream.getvalue())

    def _timeline(self, _: str) -> None:
        from hiwater.notebook.bands import timeline

        shell: Any = self.shell
        shell.display_pub.publish(timeline().bundle())

    def _forget(self, _: str) -> None:
        from hiwater.notebook.tracebacks import forget

        count = forget()
        show(self.shell, f"{count} frames of the last traceback let go of their variables" if count else "no traceback")

    # Recording

    def _recording_of(self, recording_options: RecordingOptions, file: str) -> CellRecording | None:
        """A recording that has begun; None where the engine cannot work. Raises UsageError."""
        try:
            recording = CellRecording(self.shell, recording_options, f"cell [{cells.number(self.shell, file)}]", file)
            return recording if recording.begin() else None
        except HiwaterError as error:
            raise UsageError(str(error)) from None

    def _run_recorded(self, recording_options: RecordingOptions, code: str, first_line: str | None = None) -> Any:
        """Run code in the notebook's names and return the value of its last expression, as the cell would have.
        `first_line` is that of the cell, where the code is the rest of it."""
        __tracebackhide__ = True
        shell: Any = self.shell
        text = shell.transform_cell(code)
        number = cells.number(shell, self._running_file()) or shell.execution_count
        if first_line is not None:
            text = f"\n{text}"  # so lines have the numbers that they have in the cell
        file = cells.compiled(shell, text, number, code)
        if first_line is not None:
            cells.show_first_line(file, first_line)
        body = shell.compile.ast_parse(text, filename=file)
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0):
            parts = [shell.compile(body, file, "exec")]
            if last is not None:
                parts.append(shell.compile(ast.Expression(last.value), file, "eval"))
        if any(_is_coroutine(part) for part in parts):
            return self._run_awaited(recording_options, file, parts)
        value = None
        with self._recorded(recording_options, file):
            for part in parts:
                value = eval(part, shell.user_ns)  # noqa: S307 - what the user typed
        return value

    async def _run_awaited(self, recording_options: RecordingOptions, file: str, parts: list[CodeType]) -> Any:
        """The same of code that awaits. The cell awaits this: see `awaiting`."""
        __tracebackhide__ = True
        shell: Any = self.shell
        value = None
        with self._recorded(recording_options, file):
            for part in parts:
                value = eval(part, shell.user_ns)  # noqa: S307 - what the user typed
                value = await value if _is_coroutine(part) else value
        return value

    @contextmanager
    def _recorded(self, recording_options: RecordingOptions, file: str) -> Iterator[None]:
        __tracebackhide__ = True
        recording = self._recording_of(recording_options, file)
        try:
            yield
        finally:
            if recording is not None:
                recording.finish()

    def awaiting(self, lines: list[str]) -> list[str]:
        """The transformation of magics whose code awaits, after IPython has made them calls: the cell awaits the
        call. IPython calls this for every cell."""
        shell: Any = self.shell
        return [
            _CALL.sub(lambda call: f"{'await ' * self._awaits(call[0])}{call[0]}", line) if shell.autoawait else line
            for line in lines
        ]

    def _awaits(self, call: str) -> bool:
        shell: Any = self.shell
        try:
            name, *words = map(ast.literal_eval, ast.parse(call, mode="eval").body.args)  # type: ignore[attr-defined] # it is a call
            code = words[-1] if len(words) == 2 else _of_statement(self, words[0].strip())[1]
            return _is_coroutine(compile(shell.transform_cell(code), name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        except (SyntaxError, ValueError, UsageError):
            return False

    def _running_file(self) -> str:
        """The file name in the code of the cell that called the magic: the nearest frame whose globals are the
        notebook's names."""
        shell: Any = self.shell
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals is not shell.user_ns:
            frame = frame.f_back
        return frame.f_code.co_filename if frame is not None else ""


def load(shell: Any) -> None:
    """Register the magics, the transformation and the end of a cell; once, however often the extension is loaded."""
    load_recording(shell)
    for entry in _registry.MAGICS:
        _registry.load(entry)(shell)


def load_recording(shell: Any) -> None:
    """The same with `%hiwater`, `%%hiwater` and `%%filprofile` alone."""
    unload(shell)
    magics = HiwaterMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(marked)
    shell.input_transformers_post.append(magics.awaiting)
    shell.events.register("post_run_cell", magics.ended)


def unload(shell: Any) -> None:
    """Stop the logger and leave cells as they are."""
    running = logger.current()
    if running is not None:
        running.stop()
    for transformers in (shell.input_transformers_cleanup, shell.input_transformers_post):
        transformers[:] = [one for one in transformers if one is not marked and not _is_ours(one)]
    for callback in filter(_is_ours, list(shell.events.callbacks["post_run_cell"])):
        shell.events.unregister("post_run_cell", callback)


def _is_ours(callback: Any) -> bool:
    return isinstance(getattr(callback, "__self__", None), HiwaterMagics)


def _is_coroutine(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_COROUTINE)


def _recording_options(magics: HiwaterMagics, words: str) -> RecordingOptions:
    options, rest = _parsed(magics, words)
    if rest.strip():
        raise UsageError(f"%%hiwater does not know {rest.strip()!r}; it takes {_OPTIONS}")
    return options


def _of_statement(magics: HiwaterMagics, line: str) -> tuple[RecordingOptions, str]:
    """Options may stand before a statement; one that begins with a minus otherwise is the statement's own."""
    if re.match(r"(--(sample|lines|kept|native)\b|-o\b)", line):
        return _parsed(magics, line)
    return RecordingOptions(), line


def _check_statement(shell: Any, word: str, statement: str) -> None:
    """Raise UsageError for what is not a statement, or has names that do not exist: it was meant to be a word of
    `%hiwater`."""
    try:
        unknown = unknown_names(ast.parse(shell.transform_cell(statement)), shell.user_ns)
    except SyntaxError as error:
        reason = f"{statement!r} is not a statement: {error.msg}"
    else:
        if not unknown:
            return
        reason = f"{unknown[0]!r} is not defined"
    similar = difflib.get_close_matches(word, _WORDS, n=1)
    meant = f"; did you mean `%hiwater {similar[0]}`?" if similar else "."
    raise UsageError(
        f"%hiwater does not know {word!r}{meant} It takes {', '.join(_WORDS)} or a statement, and {reason}"
    )


def unknown_names(tree: ast.AST, known: Container[str]) -> list[str]:
    """The names that code reads and neither binds nor finds, in their order."""
    nodes = [*ast.walk(tree)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    bound |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    read = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)]
    return [name for name in read if name not in bound and name not in known and not hasattr(builtins, name)]


def _parsed(magics: HiwaterMagics, words: str) -> tuple[RecordingOptions, str]:
    flags = ("lines", "kept", "native")
    options, rest = magics.parse_options(words, "o:", "sample=", *flags, posix=True, preserve_non_opts=True)
    chosen = {flag: flag in options for flag in flags}
    return RecordingOptions(options.get("sample"), options.get("o"), **chosen), rest
