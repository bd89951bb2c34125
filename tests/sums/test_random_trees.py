"""The sums of random trees of forked, started, waiting, working, killed and executing processes, against what was
measured from outside.

`make test-sums` tries a thousand; HIWATER_TREES=N tries N.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import hiwater
from hiwater.capture.at_once import Instant
from process_trees import MIB, Truth, check_resident, random_tree, record
from recording import needs_engine

pytestmark = needs_engine

TREES = int(os.environ.get("HIWATER_TREES", "4"))
FIRST = int(os.environ.get("HIWATER_FIRST_TREE", "0"))


def check_allocated(instant: Instant, truth: Truth, base_bytes: int) -> None:
    """The processes said nothing of what their interpreters hold: `base_bytes` at most."""
    assert instant.at_most_bytes is not None
    assert truth.held_least_bytes <= instant.at_most_bytes >= instant.bytes
    assert instant.bytes - instant.error_bytes <= truth.held_most_bytes + base_bytes
    assert instant.bytes + instant.error_bytes >= truth.held_least_bytes


@pytest.mark.parametrize("seed", range(FIRST, FIRST + TREES))
def test_the_sums_of_a_random_tree_are_those_of_its_processes(seed: int, tmp_path: Path) -> None:
    path, truth = record(random_tree(random.Random(seed)), tmp_path)
    run = hiwater.open_run(path)
    (machine,) = run.machines
    base = sum(MIB // 4 if one.process.started_by == "fork" else 4 * MIB for one in run.captures)
    assert machine.allocated is not None
    check_allocated(machine.allocated, truth, base)
    if len(run.captures) > 1:
        check_resident(run, truth)
