"""A long recording costs at its end what it cost at first: short runs of `make test-long`, where only what must stay
the same exactly is compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import long_runs
from recording import needs_engine, rounds

pytestmark = needs_engine

RARE = 16
"""Call paths that a program takes now and then, such as that of a thread that has to wait for a lock. One more for
each thread would be hundreds."""


def check_tables(parts: Sequence[long_runs.Part]) -> None:
    """They have not grown since the first of these parts."""
    assert parts[-1].nodes - parts[0].nodes <= RARE and parts[-1].accounts - parts[0].accounts <= RARE


@pytest.mark.grid
@pytest.mark.parametrize("options", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
@pytest.mark.parametrize(
    ("name", "count"), [("allocations", 3_000_000), ("native threads", 1500), ("python threads", 1500), ("forks", 500)]
)
def test_one_more_leaves_nothing_in_the_tables(name: str, count: int, options: tuple[str, ...], tmp_path: Path) -> None:
    parts = long_runs.run(name, rounds(count), options, tmp_path)

    assert len(parts) == long_runs.PARTS
    if not options:  # a sampled recording meets a stack when it draws a block of it
        check_tables(parts[1:])
    assert parts[-1].capture - parts[0].capture <= long_runs.ROOM
    assert parts[-1].resident - parts[0].resident <= long_runs.ROOM


def test_threads_whose_names_differ_in_numbers_share_call_paths(tmp_path: Path) -> None:
    parts = long_runs.run("numbered threads", 2500, (), tmp_path)

    check_tables(parts[2:])
