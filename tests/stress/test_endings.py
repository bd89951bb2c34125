"""A small share of `make stress-endings`."""

from __future__ import annotations

import endings
from recording import needs_engine


@needs_engine
def test_a_program_ends_as_its_own_whatever_happens_to_its_capture() -> None:
    """Each harm at least twice, and half of the endings: the same ones every time."""
    assert endings.run(30, 2000) == []
