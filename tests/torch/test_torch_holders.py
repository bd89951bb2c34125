"""Tensors in RAM are held with their storage, which views do not have a second time."""

import json
from pathlib import Path

import pytest

from children import run_hiwater
from recording import needs_engine

torch = pytest.importorskip("torch")
pytestmark = needs_engine

PROGRAM = """
import torch
class Layer:
    def __init__(self):
        self.weight = torch.ones(1000, 1000)
        self.view = self.weight[10:]
LAYERS = [Layer() for _ in range(5)]
"""


def test_a_storage_belongs_to_one_of_its_tensors(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run_hiwater("run", "-q", "--holders", "-o", "run.hiw", "program.py", folder=tmp_path, check=True)
    done = run_hiwater("holders", "run.hiw", "--type", "torch.Tensor", "--format", "json", folder=tmp_path, check=True)
    groups = [group for group in json.loads(done.stdout)["groups"] if "`LAYERS`" in group["held_by"]]
    assert sum(group["count"] for group in groups) == 10
    assert 20_000_000 <= sum(group["bytes"] for group in groups) < 20_100_000
    assert groups[0]["allocated_at"][0]["line"] in (5, 6)
