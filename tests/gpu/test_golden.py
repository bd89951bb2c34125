"""What a card answered, replayed without one. `tools/on_a_gpu.py` brings the data back; docs/gpu.md says on which
card, and when."""

import json

import pytest

import gpu_golden
from places import TESTS

SEEN = sorted((TESTS / "data" / "gpu").glob("*.json"))


@pytest.mark.parametrize("path", SEEN, ids=lambda path: path.stem)
def test_the_same_data_gives_the_same_figures(path, tmp_path):
    assert gpu_golden.replay(json.loads(path.read_text()), tmp_path)
