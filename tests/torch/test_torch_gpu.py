"""What can only be seen on a GPU: the sum against the caching allocator, and a card that is really given back."""

import gc
import json
from pathlib import Path

import pytest

from children import run_python

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after torch is known to be there

import hiwater  # noqa: E402
from hiwater.contrib.torch.records import Category  # noqa: E402

PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "estimate_score" / "programs.py"

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(autouse=True)
def nothing_left_of_other_tests():
    gc.collect()
    torch.cuda.empty_cache()


def _sum(report):
    return report.device("cuda:0").identity


def test_the_sum_closes_against_the_allocator():
    linear = nn.Linear(1024, 1024).cuda()
    given = torch.randn(512, 1024, device="cuda")
    optimizer = torch.optim.AdamW(linear.parameters())
    loss = linear(given).relu().exp().mean()
    for _ in range(2):
        sums = _sum(hiwater.contrib.torch.MemReporter(linear).data(0))
        assert sums.allocated_bytes == torch.cuda.memory_allocated(0)
        assert sums.residual_bytes == 0 and sums.source == "the allocator's blocks"
        assert sums.by_category[Category.parameter] == (1 << 22) + (1 << 12)
        if loss is not None:
            assert sums.by_category[Category.saved] >= 2 << 20
            loss.backward()
            optimizer.step()
            loss = None
    assert sums.by_category[Category.optimizer] >= 2 * ((1 << 22) + (1 << 12))


def test_a_convolution_leaves_nothing_but_workspaces_to_cpp():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)).cuda()
    result = model(torch.randn(8, 3, 32, 32, device="cuda")).sum()
    sums = _sum(hiwater.contrib.torch.MemReporter(model).data(0))
    assert sums.residual_bytes == 0 and {each.origin for each in sums.unowned} == {""}
    assert sums.unowned_bytes <= 2 * (33 << 20)  # workspaces of cuBLAS on Hopper: forward and backward have one each
    del result


def test_a_step_needs_what_was_estimated_to_the_byte(tmp_path):
    """By the command, which runs the step in a process of its own. Half a minute: it loads torch four times."""
    name = "small_encoder"
    words = ["estimate", f"{PROGRAMS}:{name}", "--record-row", str(tmp_path / "row.json")]
    done = run_python("-m", "hiwater", *words)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "row.json").read_text())["rows"][name]
    assert (row["estimated_allocated"], row["estimated_reserved"]) == (row["allocated"], row["reserved"])


def test_pinned_memory_is_told():
    pinned = torch.ones(1000).pin_memory()
    torch.zeros(1, device="cuda")
    rows = hiwater.contrib.torch.MemReporter().data("cpu").device("cpu").storages
    assert [one.pinned for one in rows if one.owner.name.startswith("pinned in")] == [True]
    del pinned


def _train(lend):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 2048)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    given = torch.randn(256, 2048, device="cuda")
    for step in range(3):
        optimizer.zero_grad()
        loss = model(given).square().mean()
        if step == 1:
            lend()
        loss.backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_courtesy_frees_what_it_promises_and_training_goes_on_to_the_bit():
    seen = []

    def lend():
        courtesy = hiwater.contrib.torch.Courtesy()
        before = torch.cuda.memory_allocated()
        yielded = courtesy.yield_memory()
        seen.append((before, torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), yielded))
        courtesy.restore()

    never = _train(lambda: None)
    lent = _train(lend)
    assert all(torch.equal(one, other) for one, other in zip(never, lent, strict=True))
    before, after, reserved, yielded = seen[0]
    assert yielded.kept == () and after <= 0.01 * before
    assert reserved <= 0.01 * before + (2 << 20)
