"""A cell or a statement recorded with stacks, and the report that is shown below it.

The report is made by a process of its own: it needs NumPy and more, which must not appear in the kernel that is measured.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass

from hiwater.errors import EngineFailed, EngineUnavailable, HiwaterError
from hiwater.notebook import cells
from hiwater.notebook.logger import show
from hiwater.notebook.outside import render
from hiwater.recording.recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEIGHT_PIXELS = 720


@dataclass(frozen=True)
class RecordingOptions:
    """What `%%hiwater` was asked for. `sample` is a size as it was typed, `output` where the capture is to stay."""

    sample: str | None = None
    output: str | None = None
    lines: bool = False
    kept: bool = False


class CellRecording:
    """One recorded piece of the session, from `begin` to `finish`."""

    def __init__(self, shell: Any, recording_options: RecordingOptions, title: str, file: str) -> None:
        """`title` is what the report calls it; `file` the file name in the code that is to run. Raises HiwaterError for a
        size or a path that is none."""
        self._shell = shell
        self._recording_options = recording_options
        self._title = title
        self._folder = None if recording_options.output else tempfile.mkdtemp(prefix="hiwater-")
        try:
            path = recording_options.output or os.path.join(str(self._folder), "cell.hiw")
            self._recorder = Recorder(os.path.expanduser(path), sample=recording_options.sample)
        except HiwaterError:
            self._remove()
            raise
        self._recorder.note("program", title)
        cells.note(self._recorder, shell, file)

    def begin(self) -> bool:
        """Start; False where the engine cannot work here, which is said, and no reason not to run the cell.

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
            self._folder = None  # a forked child that goes on in the cell: the folder is its parent's
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
    """A terminal shows text: the page would be made for nobody."""
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    return isinstance(shell, TerminalInteractiveShell)


def _framed(text: str, page: str, title: str) -> str:
    """The summary and the page in a frame of its own: its scripts run, and reach neither the notebook nor any address."""
    from html import escape

    return (
        f'<pre class="hiwater" style="font-size:85%;line-height:1.35;margin:0 0 .5em">{escape(text.rstrip())}</pre>'
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(page)}" title="{escape(title)}: memory" '
        f'style="width:100%;height:{_HEIGHT_PIXELS}px;border:1px solid #d5dbe1;border-radius:4px"></iframe>'
    )
