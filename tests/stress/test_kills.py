"""A share of tests/stress/kills.py."""

from pathlib import Path

import kills
from recording import needs_engine

pytestmark = needs_engine


def test_a_killed_program_leaves_a_capture_that_can_be_read(tmp_path: Path) -> None:
    assert [kills.kill_one(seed, tmp_path) for seed in range(2)] == ["", ""]


def test_readers_at_once_all_read_and_the_program_notices_none(tmp_path: Path) -> None:
    assert kills.read_at_once(4, tmp_path) == []
