"""`%memit`, `%%memit` and `%mprun` for IPython and notebooks."""

from __future__ import annotations

import gc
import io
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.page import page

from hiwater.contrib.compat.memory_profiler.profiler import CompatLineProfiler, show_results
from hiwater.sampling.usage import memory_usage


@dataclass(frozen=True)
class MemitResult:
    """The result of `%memit` in MiB: the peak of each repeat, and the memory before them."""

    mem_usage: list[float]
    baseline: float
    repeat: int
    timeout: float | None
    interval: float
    include_children: bool

    def __str__(self) -> str:
        highest = max(self.mem_usage)
        return f"peak memory: {highest:.02f} MiB, increment: {highest - self.baseline:.02f} MiB"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(f"<MemitResult : {self}>")


@magics_class
class MemoryProfilerMagics(Magics):
    """The magics of memory_profiler."""

    @line_cell_magic
    def memit(self, line: str = "", cell: str | None = None) -> MemitResult | None:
        """Measure the peak memory of a statement, once.

        %memit [-r REPEATS] [-t SECONDS] [-i INTERVAL] [-c] [-o] [-q] statement; as %%memit the line is run before and
        the cell is measured. -c adds child processes, -o returns the result, -q prints nothing. The peak is the
        kernel's high-water mark where it keeps one: it includes memory that was used for an instant only.
        """
        options, statement = self.parse_options(line, "r:t:i:coq", posix=False, strict=False)
        repeat = max(1, int(getattr(options, "r", 1)))
        timeout = float(options.t) if "t" in options else None
        interval = float(getattr(options, "i", 0.1))
        include_children = "c" in options
        shell: Any = self.shell
        names = shell.user_ns
        if cell is not None:
            exec(shell.transform_cell(statement), names)  # noqa: S102 - what the user typed
        measured = compile(shell.transform_cell(statement if cell is None else cell), "<memit>", "exec")
        gc.collect()
        baseline: float = memory_usage(-1, include_children=include_children)[0]
        peaks = [
            memory_usage(
                (exec, (measured, names)), interval=interval, timeout=timeout, max_usage=True,
                include_children=include_children,
            )
            for _ in range(repeat)
        ]  # fmt: skip
        result = MemitResult(peaks, baseline, repeat, timeout, interval, include_children)
        if "q" not in options:
            print(result)
        return result if "o" in options else None

    @line_cell_magic
    def mprun(self, line: str = "", cell: str | None = None) -> CompatLineProfiler | None:
        """Measure functions line by line while a statement runs, also functions of the notebook.

        %mprun -f FUNCTION [-f FUNCTION …] [-T FILE] [-r] [-c] statement. -T writes the report to a file as well, -r
        returns the profiler, -c adds child processes.
        """
        options, statement = self.parse_options(line, "f:T:rc", list_all=True, posix=False, strict=False)
        shell: Any = self.shell
        names = shell.user_ns
        profiler = CompatLineProfiler(include_children="c" in options)
        for name in options.get("f", []):
            try:
                profiler.add_function(eval(name, names))  # noqa: S307 - what the user typed
            except Exception as error:
                raise UsageError(f"Could not find function {name!r}.\n{type(error).__name__}: {error}") from error
        code = statement if cell is None else statement + "\n" + cell
        with profiler:
            try:
                exec(shell.transform_cell(code), names)  # noqa: S102 - what the user typed
            except SystemExit:
                print("*** SystemExit exception caught in code being profiled.")
            except KeyboardInterrupt:
                print("*** KeyboardInterrupt exception caught in code being profiled.")
        report = io.StringIO()
        show_results(profiler, stream=report)
        page(report.getvalue())
        for path in options.get("T", []):
            with open(path, "w", encoding="utf-8") as file:
                file.write(report.getvalue())
            print(f"\n*** Profile printout saved to text file {path}. ")
        return profiler if "r" in options else None


def load_ipython_extension(ipython: Any) -> None:
    """Register the magics."""
    ipython.register_magics(MemoryProfilerMagics)
