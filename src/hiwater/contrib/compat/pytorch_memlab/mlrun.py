"""`%mlrun` and `%%mlrun`: run a statement or a cell, and measure the lines of functions on the GPU."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from hiwater.contrib.torch.lines import DEFAULT_COLUMNS, LineProfiler
from hiwater.errors import HiwaterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hiwater.lines.device_display import LinesDisplay

_SHORT = "f:c:Drg:qT:"
_LONG = {
    "function=": "f", "column=": "c", "no_default_columns": "D", "no-default-columns": "D", "return-profiler": "r",
    "gpu=": "g", "quiet": "q", "dump-profile=": "T",
}  # fmt: skip


@magics_class
class MemlabMagics(Magics):
    """The magic of pytorch_memlab."""

    kind: type[LineProfiler] = LineProfiler

    @line_cell_magic
    @no_var_expand  # a statement is Python: IPython must not replace {names}
    def mlrun(self, line: str = "", cell: str | None = None) -> Any:
        """Run a statement or a cell, and show the GPU memory of each line of the given functions.

        %mlrun [-f FUNCTION …] [-c COLUMN …] [-D] [-r] [-g GPU] [-q] [-T FILE] statement, or %%mlrun and a cell.

        -f, --function FUNCTION    measure this function, which the cell may define; may be given several times
        -c, --column COLUMN        show this statistic, too: a name of torch.cuda.memory_stats(), hits, increment,
                                   peak_above_start …
        -D, --no_default_columns   without active_bytes.all.peak and reserved_bytes.all.peak
        -r, --return-profiler      return the LineProfiler; the table is not shown then
        -g, --gpu GPU              on this device, 0 by default
        -q, --quiet                show nothing
        -T, --dump-profile FILE    write the table as text to a file
        """
        options, statement = self._parsed(line)
        code = statement if cell is None else f"{statement}\n{cell}" if statement.strip() else cell
        columns = ([] if "D" in options else list(DEFAULT_COLUMNS)) + options.get("c", [])
        profiler = self._profiler((options.get("g") or ["0"])[-1])
        try:
            self._run(profiler, code, options.get("f", []))
        except UsageError:
            raise
        except BaseException:
            if "q" not in options:  # the table is also needed if memory ran out
                publish: Any = display
                publish(self._shown(profiler, columns))
            raise
        shown = self._shown(profiler, columns)
        for path in options.get("T", []):
            with open(path, "w", encoding="utf-8") as file:
                file.write(repr(shown))
        if "r" in options:
            return profiler
        return None if "q" in options else shown

    def _parsed(self, line: str) -> tuple[dict[str, list[str]], str]:
        """The options by their letter, and the statement."""
        found, rest = self.parse_options(
            line, _SHORT, *_LONG, list_all=True, posix=False, strict=False, preserve_non_opts=True
        )
        long = {name.rstrip("="): letter for name, letter in _LONG.items()}
        options: dict[str, list[str]] = {}
        for name, values in found.items():
            options.setdefault(long.get(name, name), []).extend(values if isinstance(values, list) else [values])
        return options, rest

    def _profiler(self, device: str) -> LineProfiler:
        try:
            return self.kind(target_gpu=int(device) if device.isdecimal() else device)
        except HiwaterError as error:
            raise UsageError(str(error)) from None

    def _shown(self, profiler: LineProfiler, columns: list[str]) -> LinesDisplay:
        try:
            return profiler.display(columns=columns)
        except HiwaterError as error:
            raise UsageError(str(error)) from None

    def _run(self, profiler: LineProfiler, code: str, wanted: list[str]) -> None:
        """Run code in the notebook's namespace. A function that it defines is watched as soon as it exists."""
        shell: Any = self.shell
        text = shell.transform_cell(code)
        file = shell.compile.cache(text, shell.execution_count, raw_code=code)
        body = shell.compile.ast_parse(text, filename=file).body
        defined = set(_names_bound(body))
        wanted = self._watch(profiler, wanted)
        for name in wanted:
            if _root(name) not in defined:
                raise UsageError(
                    f"Could not find function {name!r}: it is not defined, and the code that is run does not"
                )
        with profiler:
            for statement in body:
                exec(shell.compile(ast.Module([statement], []), file, "exec"), shell.user_ns)  # noqa: S102 - what the user typed
                wanted = self._watch(profiler, wanted)
        if wanted:
            raise UsageError(f"Could not find function {wanted[0]!r}: the code did not define it")

    def _watch(self, profiler: LineProfiler, wanted: list[str]) -> list[str]:
        """Watch the functions that exist; return the names of the others."""
        shell: Any = self.shell
        missing = []
        for name in wanted:
            try:
                profiler.add_function(eval(name, shell.user_ns))  # noqa: S307 - what the user typed
            except (NameError, AttributeError):
                missing.append(name)
        return missing


def load(shell: Any, kind: type[LineProfiler] = LineProfiler) -> None:
    """Register the magic with this class of profiler."""
    magics = MemlabMagics(shell)
    magics.kind = kind
    shell.register_magics(magics)


def load_classic(shell: Any) -> None:
    """Register the magic with tables in the format of pytorch_memlab."""
    from hiwater.contrib.compat.pytorch_memlab.lines import ClassicLineProfiler

    load(shell, ClassicLineProfiler)


def _root(name: str) -> str:
    return name.partition(".")[0].partition("[")[0].strip()


def _names_bound(body: list[ast.stmt]) -> Iterator[str]:
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
