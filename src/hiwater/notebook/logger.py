"""The cell logger: prints a line with the figures of every cell. It uses IPython's events, so the cell itself is not
changed."""

from __future__ import annotations

import sys
import time
from collections import deque
from threading import get_ident

from hiwater.errors import ExtraMissing, MeterUnavailable
from hiwater.notebook import tracebacks
from hiwater.notebook.figures import Cell, CellData, first_line
from hiwater.notebook.garbage import Collector
from hiwater.scopes.manager import SCOPE_MANAGER
from hiwater.scopes.scope import Scope
from hiwater.scopes.usage import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REMEMBERED = 10_000
"""The number of cells that a logger keeps."""
_METERS = ("resident", "heap")
_WITHOUT_ENGINE = ("resident",)
_DEVICES = ("gpu",)
_DEEPEST = 16  # cells that run cells
_current: CellLogger | None = None
_latest: CellLogger | None = None


class CellLogger:
    """Measures every cell between `start()` and `stop()`, and prints a line after each.

    Peaks are as exact as those of scopes (docs/scopes.md): they include temporary memory inside one call into C. The
    figures are of the whole process while the cell runs, with background threads.
    """

    def __init__(
        self,
        *,
        compact: bool = False,
        gc_collect: bool = True,
        trim: bool = False,
        quiet: bool = False,
        shell: Any = None,
    ) -> None:
        """Make a logger. It measures after `start()`.

        `compact` prints a shorter line, `quiet` none. `gc_collect` collects garbage before each cell, and after it
        before the figures are read. Reference cycles of a cell are then in its peak, but not in what it kept, and
        cycles of earlier cells are not counted. Without it, the figures are those of the program alone. `trim` makes
        the C library return free memory to the system after each cell. Then resident memory is nearer to the live
        bytes, and the next cell is slower, because it requests memory again. `shell` is IPython's shell, by default the
        running one.
        """
        self.compact = compact
        self.gc_collect = gc_collect
        self.trim = trim
        self.quiet = quiet
        self._shell = shell
        self._cells: deque[Cell] = deque(maxlen=REMEMBERED)
        self._collector = Collector()
        self._open: dict[int, list[tuple[Any, Scope, dict[str, int]]]] = {}  # by thread: cells may run cells
        self._session: Scope | None = None

    @property
    def running(self) -> bool:
        """Whether cells are measured."""
        return self._session is not None

    @property
    def data(self) -> CellData:
        """The figures of the last cell, in bytes and seconds. Raises MeterUnavailable before the first one has
        ended."""
        return self.last.data

    @property
    def last(self) -> Cell:
        """The last cell. Raises MeterUnavailable before the first one has ended."""
        if not self._cells:
            raise MeterUnavailable("no cell has been measured yet", "run a cell after the one with start()")
        return self._cells[-1]

    @property
    def history(self) -> list[Cell]:
        """The cells, at most REMEMBERED, the latest last."""
        return list(self._cells)

    def dataframe(self) -> Any:
        """The history as a pandas DataFrame with a row for each cell. Raises ExtraMissing if pandas is not
        installed."""
        from importlib import import_module

        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ExtraMissing(f"pandas cannot be used ({error})", "install pandas, or use .history") from error
        return pandas.DataFrame([cell.row() for cell in self._cells])

    def start(self) -> CellLogger:
        """Measure cells, from the next one on. Only one logger measures at a time: another one stops.

        Raises MeterUnavailable outside IPython, and if resident memory cannot be read.
        """
        global _current, _latest  # noqa: PLW0603 - a session of IPython has one logger
        if self.running:
            return self
        shell = self._shell = self._shell or _running_shell()
        if _current is not None:
            _current.stop()
        # Open as long as the logger is: blocks of one cell that a later one frees are then known to the heap's count.
        self._session = _entered("session")
        shell.events.register("pre_run_cell", self._before)
        shell.events.register("post_run_cell", self._after)
        callbacks = shell.events.callbacks["post_run_cell"]
        callbacks.insert(0, callbacks.pop())  # first: what others do after a cell is not the cell's
        _current = _latest = self
        return self

    def stop(self) -> None:
        """Stop measuring. The figures stay."""
        global _current  # noqa: PLW0603 - see start
        if self._session is None:
            return
        for event, callback in (("pre_run_cell", self._before), ("post_run_cell", self._after)):
            if callback in self._shell.events.callbacks.get(event, ()):  # a cell may have thrown them out
                self._shell.events.unregister(event, callback)
        for running in self._open.values():
            for _, scope, _ in running:
                SCOPE_MANAGER.exit(scope)
        self._open.clear()
        SCOPE_MANAGER.exit(self._session)
        self._session = None
        if _current is self:
            _current = None

    def __repr__(self) -> str:
        return f"<hiwater.CellLogger {'running' if self.running else 'stopped'}, {len(self._cells)} cells>"

    # Called by IPython

    def _before(self, info: Any) -> None:
        running = self._open.setdefault(get_ident(), [])
        if len(running) >= _DEEPEST:  # ends that were never told: a cell may throw our callback out
            SCOPE_MANAGER.exit(running.pop(0)[1])
        names = self._collector.before(self._shell.user_ns) if self.gc_collect else {}
        running.append((info, _entered("cell", _DEVICES), names))

    def _after(self, result: Any) -> None:
        ended_ns = time.perf_counter_ns()  # the collection below is not the cell's time
        info = getattr(result, "info", None)
        running = self._open.get(get_ident(), [])
        place = next((at for at in reversed(range(len(running))) if _is_same(running[at][0], info)), None)
        if place is None:  # the cell that started us; an empty one, which has an end and no beginning
            return
        _, scope, names = running[place]
        for _, inner, _ in running[place + 1 :]:
            SCOPE_MANAGER.exit(inner)
        del running[place:]
        assert scope.began is not None
        cell_ns = ended_ns - scope.began[0]
        error = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
        if self.gc_collect:
            self._collector.after(self._shell.user_ns, names, cell_ns, failed=error is not None)
        if self.trim:
            _trim()
        SCOPE_MANAGER.exit(scope)
        if place and not getattr(info, "store_history", True):
            return  # a part of the cell that runs it, as under %%capture, whose output is not ours to add to
        scope.error = type(error).__name__ if error is not None else ""
        number = getattr(result, "execution_count", None) or self._shell.execution_count
        source, usage = first_line(getattr(info, "raw_cell", None) or ""), Usage(scope)
        heap, devices = usage.levels.get("heap"), tuple(usage.gpu)
        cell = Cell(number, source, usage.started_at, cell_ns / 1e9, usage.resident, heap, usage.error, devices)
        self._cells.append(cell)
        if not self.quiet:
            self._tell(cell)

    def _tell(self, cell: Cell) -> None:
        show(self._shell, cell.line(compact=self.compact))
        said = tracebacks.warning(self._shell.user_ns) if cell.error else None
        if said is not None:
            show(self._shell, said)


def current() -> CellLogger | None:
    return _current


def latest() -> CellLogger | None:
    """The logger that started last, running or not."""
    return _latest


def show(shell: Any, text: str) -> None:
    """Display text below the cell, in HTML small and paler. Never raises, whatever the cell did to the display."""
    from html import escape

    style = "opacity:.75;font-size:85%;font-family:ui-monospace,monospace;white-space:pre-wrap"
    html = f'<div class="hiwater" style="{style}">{escape(text)}</div>'
    try:
        shell.display_pub.publish({"text/plain": text, "text/html": html})
    except Exception:  # noqa: BLE001 - a cell may have replaced the display or stdout
        if sys.__stdout__ is not None:
            sys.__stdout__.write(text + "\n")


def _running_shell() -> Any:
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
        if shell is not None:
            return shell
    raise MeterUnavailable("this is not an IPython session, so there are no cells", "use `with hiwater.track():` here")


def _entered(name: str, more: tuple[str, ...] = ()) -> Scope:
    """A scope that has begun, with the meters that work here. Resident memory is required."""
    scope = Scope(name, _METERS + more)
    try:
        SCOPE_MANAGER.enter(scope)
    except MeterUnavailable:
        scope = Scope(name, _WITHOUT_ENGINE + more)
        SCOPE_MANAGER.enter(scope)
    return scope


def _is_same(begun: Any, ended: Any) -> bool:
    """Whether two of IPython's descriptions are of the same cell. For an interrupted cell it makes a second one."""
    return begun is ended or getattr(begun, "raw_cell", None) == getattr(ended, "raw_cell", 0)


def _trim() -> None:
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
