"""A small share of `make fuzz`, with mutants that are the same on every day."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuzz
from recording import SHARE

pytest.importorskip("google.protobuf", reason="without the extra `pprof` that format is refused, whatever the capture")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    fuzz.build_originals(folder)
    return folder


def test_mutants_are_an_answer_or_one_clear_line_in_bounds(originals: Path) -> None:
    result = fuzz.read_mutants(originals, 2000 // SHARE, seed=1, workers=1)
    assert not result.failures, "\n".join(result.failures)
    assert result.count == 2000 // SHARE and result.peak_bytes > 0 and result.seconds > 0, result
