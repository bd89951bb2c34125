"""How often the recorder's thread takes samples: seldom while a program rests, unless it is near a limit."""

from pathlib import Path

import numpy as np
import pytest

import hiwater
from children import run_hiwater
from hiwater.capture import Capture
from recording import needs_engine

pytestmark = needs_engine

RESTING = """
import resource, sys, time
if sys.argv[1] == "near":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    room = bytearray(830 << 20)  # untouched: more than three quarters of the limit
until = time.monotonic() + 0.3
while time.monotonic() < until:
    str(until)
time.sleep(2)
held = b"x" * (30 << 20)
until = time.monotonic() + 0.3
while time.monotonic() < until:
    str(until)
"""


@pytest.fixture
def points(tmp_path: Path):
    def record(where: str) -> tuple[int, Capture]:
        (tmp_path / "resting.py").write_text(RESTING)
        done = run_hiwater("run", "-o", f"{where}.hiw", "resting.py", where, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        capture = hiwater.open(tmp_path / f"{where}.hiw")
        at = capture.timeline.at_ns / 1e9
        return int(np.count_nonzero((at > 0.8) & (at < 1.8))), capture

    return record


def test_a_program_that_rests_has_few_samples_and_none_of_what_follows_is_missed(points) -> None:
    resting, capture = points("far")
    assert 1 <= resting <= 30  # fifty milliseconds apart, and no ten
    resident = capture.timeline.resident_bytes
    assert resident[len(resident) // 2 :].max() - resident[: len(resident) // 2].max() > 25 << 20


def test_near_a_limit_a_program_that_rests_has_as_many_as_any(points) -> None:
    far, _ = points("far")
    near, capture = points("near")
    used = [row.address_space_bytes / row.address_space_limit for row in capture.pressure if row.address_space_limit]
    assert 0.75 < max(used) < 0.99
    assert near > 2 * far
