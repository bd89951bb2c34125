"""The view of `hiwater live` with Textual: the table scrolls, by keys and the mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from hiwater.cli.live_viewer import ACTIONS, KEYS

if TYPE_CHECKING:
    from hiwater.cli.live_viewer import Viewer


class LiveScreen(App[None]):  # type: ignore[misc]  # Textual's types are not read: it is not installed everywhere
    """The figures, the table, and the keys."""

    CSS = "#figures { height: auto; } VerticalScroll { height: 1fr; } #rows { height: auto; }"
    BINDINGS = [Binding(key, f"press('{key}')", what, show=key in ACTIONS) for key, what in KEYS.items()]  # noqa: RUF012  # as Textual declares it
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, viewer: Viewer) -> None:
        super().__init__(ansi_color=True)
        self._viewer = viewer

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield Static(id="figures")
        with VerticalScroll():
            yield Static(id="rows")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(VerticalScroll).focus()
        self._read()

    def on_resize(self) -> None:
        self._draw()

    def action_press(self, key: str) -> None:
        if self._viewer.press(key):
            self._draw()
        else:
            self.exit()

    def _read(self) -> None:
        pause = self._viewer.read()
        self._draw()
        if self._viewer.run.is_running:
            self.set_timer(pause, self._read)

    def _draw(self) -> None:
        width = self.size.width
        if not width:
            return
        for part, lines in (("#figures", self._viewer.figures(width)), ("#rows", self._viewer.rows(width - 2))):
            shown = self.query_one(part, Static)
            shown.update(Text("\n").join(lines), layout=shown.size.height != len(lines))


def show(viewer: Viewer) -> int:
    """Show it until the viewer leaves."""
    LiveScreen(viewer).run()
    return 0
