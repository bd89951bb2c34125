"""hiwater under Fil's name: `python -m filprofiler run script.py`, `%load_ext filprofiler`, `filprofiler.api.profile`.

Found by `PYTHONPATH="$(python -m hiwater.compat)"`. What differs, and why, is in docs/coming-from-fil.md.
"""

from __future__ import annotations

from hiwater import __version__

__all__ = ["__version__", "load_ipython_extension"]


def load_ipython_extension(ipython: object) -> None:
    """Called by `%load_ext filprofiler`: `%%filprofile` records a cell, in any kernel."""
    from hiwater.notebook import magics

    magics.load_recording(ipython)
