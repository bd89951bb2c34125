"""The session as a drawing: resident memory over time, a band for each cell."""

from __future__ import annotations

from collections.abc import Sequence

from hiwater.errors import MeterUnavailable
from hiwater.notebook import logger as loggers
from hiwater.notebook.figures import Cell
from hiwater.notebook.logger import CellLogger


class CellTimeline:
    """A drawing of cells. With matplotlib a notebook shows it as an image, otherwise as text."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = tuple(cells)
        self._bundle: dict[str, str] | None = None

    def bundle(self) -> dict[str, str]:
        """The drawing by MIME type: text, and with matplotlib a PNG in base64.

        Raises OSError or ValueError if the process that draws cannot start or fails.
        """
        if self._bundle is None:
            import json

            from hiwater.notebook.outside import render

            rows = [
                {
                    "name": f"[{cell.number}]",
                    "start": cell.started_at,
                    "seconds": cell.seconds,
                    "start_bytes": cell.resident.start_bytes,
                    "peak_bytes": cell.resident.peak_bytes,
                    "end_bytes": cell.resident.end_bytes,
                }
                for cell in self.cells
            ]
            self._bundle = render(["timeline"], json.dumps(rows))
        return self._bundle

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.bundle()

    def __str__(self) -> str:
        return self.bundle()["text/plain"]

    def __repr__(self) -> str:
        return f"<hiwater.CellTimeline of {len(self.cells)} cells>"


def timeline(logger: CellLogger | None = None) -> CellTimeline:
    """The session so far, of `logger` or of the logger that started last.

    Raises MeterUnavailable if no cell was measured.
    """
    chosen = logger or loggers.latest()
    if chosen is None or not chosen.history:
        raise MeterUnavailable("no cell has been measured yet", "`%hiwater on` measures those that follow")
    return CellTimeline(chosen.history)
