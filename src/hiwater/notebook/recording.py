"""Records a cell or a statement with stacks, and shows the report below it.

A separate process makes the report: it needs NumPy and more, which must not be imported into the measured kernel.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass

from hiwater.errors import EngineFailed, EngineUnavailable, HiwaterError
from hiwater.notebook.logger import show
from hiwater.notebook.outside import render
from hiwater.recording import cells
from hiwater.recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEIGHT_PIXELS = 720


@dataclass(frozen=True)
class RecordingOptions:
    """The options of `%%hiwater`. `sample` is a size as typed, `output` the path of the capture."""

    sample: str | None = None
    output: str | None = None
    lines: bool = False
    kept: bool = False
    native: bool = False


class CellRecording:
    """One recording in the session, from `begin()` to `finish()`."""

    def __init__(self, shell: Any, recording_options: RecordingOptions, title: str, file: str) -> None:
        """`title` is its title in the report, `file` the file name of the code that will run. Raises HiwaterError
        for an invalid size or path."""
        self._shell = shell
        self._recording_options = recording_options
        self._title = title
        self._folder = None if recording_options.output else tempfile.mkdtemp(prefix="hiwater-")
        try:
            path = recording_options.output or os.path.join(str(self._folder), "cell.hiw")
            self._recorder = Recorder(
                os.path.expanduser(path), sample=recording_options.sample, native=recording_options.native
            )
        except HiwaterError:
            self._remove()
            raise
        self._recorder.note("program", title)
        cells.note(self._recorder, shell, file)

    def begin(self) -> bool:
        """Start the recording. If the engine cannot work, prints that and returns False; the cell still runs.

        Raises CaptureUnwritable.
        """
        try:
            self._recorder.start()
        except (EngineUnavailable, EngineFailed) as error:
            self._remove()
            show(self._shell, f"hiwater: not recorded: {error}")
            return False
        except HiwaterError:
            self._remove()
            raise
        return True

    def finish(self) -> None:
        """Stop, and show the report."""
        if not self._recorder.owned_here:
            self._folder = None  # a forked child that continues in the cell: the folder belongs to its parent
            return
        self._recorder.stop()
        try:
            self._show()
        finally:
            self._remove()

    def _show(self) -> None:
        path = self._recorder.path
        try:
            said = render(["report", path, *self._words()])
        except (OSError, ValueError) as error:
            show(self._shell, f"hiwater: the report could not be made ({error})")
            return
        text = said["text"]
        if self._recording_options.output:
            text += f"capture {path}: read it with `hiwater report {path}`\n"
        data = {"text/plain": text.rstrip()}
        if said.get("page"):
            data["text/html"] = _framed(text, said["page"], self._title)
        self._shell.display_pub.publish(data)

    def _words(self) -> list[str]:
        asked = {
            "--lines": self._recording_options.lines,
            "--kept": self._recording_options.kept,
            "--no-page": _is_terminal(self._shell),
        }
        return [word for word, is_wanted in asked.items() if is_wanted]

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _is_terminal(shell: Any) -> bool:
    """Whether this is a terminal, which shows only text and no page."""
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    return isinstance(shell, TerminalInteractiveShell)


def _framed(text: str, page: str, title: str) -> str:
    """The summary, and the page in a frame. Its scripts run, but can reach neither the notebook nor the network."""
    from html import escape

    return (
        '<pre class="hiwater" style="font-size:85%;line-height:1.35;margin:0 0'
        f' .5em">{escape(text.rstrip())}</pre><iframe sandbox="allow-scripts" srcdoc="{escape(page)}"'
        f' title="{escape(title)}: memory" style="width:100%;height:{_HEIGHT_PIXELS}px;border:1px solid'
        ' rgba(128,128,128,.4);border-radius:4px"></iframe>'
    )
