"""What of a run the viewer chose to see, for both ways to show it."""

from __future__ import annotations

import time
from contextlib import suppress

from rich.text import Text

from hiwater.analysis.live_run import LiveRun
from hiwater.errors import CaptureError
from hiwater.report.live_views import View
from hiwater.report.text import live

_VIEWS = [*View]
KEYS = {
    **{view[0]: str(view) for view in View},
    "m": "marker", "g": "growth", "a": "all processes", "n": "next process", "q": "quit",
}  # fmt: skip
"""What each key shows or does."""
ACTIONS = {key: action for key, action in KEYS.items() if action not in _VIEWS}
"""Those that do something."""
_COST = 0.01  # of a core
_LONGEST_PAUSE = 30.0
_FIRST_READINGS = 3


class Viewer:
    """A run, and what of it the viewer chose to see."""

    def __init__(self, run: LiveRun, view: View, interval: float) -> None:
        self.run = run
        self.view = view
        self.growth = False
        self._interval = self._pause = interval
        self._used = time.process_time()
        self._readings = 0

    def read(self) -> float:
        """Read what has changed; the seconds to wait before the next reading, so that all that the viewer does costs
        a hundredth of a core."""
        with suppress(CaptureError):  # it changed while it was read: the next reading may be better
            self.run.read()
        used, self._used = time.process_time() - self._used, time.process_time()
        self._readings += 1
        if self._readings > _FIRST_READINGS:  # to begin costs more than to go on
            longest = max(self._interval, min(_LONGEST_PAUSE, 2 * self._pause))
            self._pause = min(max(self._interval, used / _COST), longest)
        return self._pause

    def press(self, key: str) -> bool:
        """Do what a key is for; False if it ends the view."""
        action = KEYS.get(key, "")
        if action in _VIEWS:
            self.view = View(action)
        elif action == "marker":
            with suppress(CaptureError):
                self.run.set_marker()
            self.growth = True
        elif action == "growth":
            self.growth = not self.growth
        elif action == "all processes":
            with suppress(CaptureError):
                self.run.show_all()
        elif action == "next process":
            self.run.show_next()
        return action != "quit"

    def figures(self, width: int) -> list[Text]:
        return live.figures(self.run, self._shown(width))

    def rows(self, width: int) -> list[Text]:
        return list(live.rows(self.run, self._shown(width)))

    def _shown(self, width: int) -> live.Shown:
        return live.Shown(self.view, self.growth, width)
