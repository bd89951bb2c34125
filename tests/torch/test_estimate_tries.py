"""Changes that an estimate tries: their figures are those of the program that is changed by hand."""

from __future__ import annotations

import copy
import os

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]


class Plain(models.Checkpointed):
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def made(kind=Plain, **options):
    net = kind()
    return net, torch.randn(512, 256), torch.optim.AdamW(net.parameters(), **options), models.squares


def peaks(found):
    one = found if isinstance(found, dict) else found.to_dict()
    return one["peak_allocated_bytes"], one["peak_reserved_bytes"], one["fits"]


def estimate(made, **options):
    return hiwater.contrib.torch.estimate(*made, device="H200", **{"steps": 2, **options})


def test_each_change_has_the_figures_of_the_program_changed_by_hand():
    found = estimate(made(), tries=["checkpointing", "optimizer", "checkpointing+bf16"])
    checkpointing, optimizer, both = found.tries
    assert peaks(found) == peaks(estimate(made()))
    assert peaks(checkpointing) == peaks(estimate(made(models.Checkpointed)))
    assert peaks(optimizer) == peaks(estimate(made(fused=True)))
    assert peaks(both) == peaks(estimate(made(models.Checkpointed), autocast="bf16"))
    assert checkpointing["change"] == "checkpoint() around 4 Mlp"
    assert checkpointing["difference_bytes"] == checkpointing["peak_allocated_bytes"] - found.peak_allocated_bytes < 0
    assert "twice" in both["price"] and "less precise" in both["price"]


def test_the_models_own_switch_is_preferred_to_its_lists_of_modules():
    class Switched(Plain):
        def gradient_checkpointing_enable(self, options):
            self.use_reentrant = options["use_reentrant"]
            self.forward = super(Plain, self).forward

    (one,) = estimate(made(Switched), tries="checkpointing").tries
    assert one["change"] == "Switched.gradient_checkpointing_enable()"
    assert peaks(one) == peaks(estimate(made(models.Checkpointed)))


def blocks_of(net):
    from hiwater.contrib.torch.estimate import tries

    return [type(block).__name__ for block in tries._blocks(net)]


def test_blocks_are_members_of_the_outermost_lists_and_stages_are_entered():
    stage = nn.Sequential(models.Mlp(8, 1), models.Mlp(8, 1))
    assert blocks_of(nn.Sequential(nn.Conv2d(3, 3, 1), stage, nn.Sequential(nn.Linear(8, 8), nn.GELU()))) == [
        "Conv2d", "Mlp", "Mlp", "Sequential",
    ]  # fmt: skip
    assert blocks_of(nn.ModuleList([nn.ModuleList([models.Mlp(8, 1), nn.GELU()])])) == ["Mlp", "GELU"]
    assert blocks_of(nn.Linear(8, 8)) == []


@pytest.mark.parametrize(
    ("change", "options", "problem"),
    [
        ("checkpointing", {}, "does not know the model's blocks"),
        ("checkpointing", {"mode": "inference"}, "changes nothing in inference"),
        ("bf16", {"autocast": "fp16"}, "autocast is on already"),
        ("bf16", {"dtype": "bf16"}, "in bfloat16 already"),
        ("optimizer", {}, "no optimizer in sight"),
        ("batch", {}, "the batch is not known"),
    ],
)
def test_what_cannot_be_changed_has_a_reason_and_no_figures(change, options, problem):
    found = estimate((nn.Linear(8, 8), torch.randn(2, 8)), tries=[change], steps=1, **options)
    (one,) = found.tries
    assert problem in one["problem"]
    assert (one["change"], peaks(one), one["difference_bytes"]) == ("", (None, None, None), None)


def test_the_line_of_the_request_that_makes_the_peak_is_named():
    def step(x):
        half = x * 2
        return (half.expand(4, -1) * 3).sum()  # this one

    found = estimate((step, torch.randn(2**20)), mode="inference", steps=1)
    reached_by = found.at_peak["reached_by"]
    assert (reached_by["bytes"], reached_by["line"]) == (2**24, step.__code__.co_firstlineno + 2)
    assert f"forward, reached by 16.0 MiB for {step.__qualname__} (" in str(found)


def test_the_users_own_line_comes_before_that_of_a_library():
    def step(x):
        return copy.deepcopy([x * 2])[0].sum()  # this one

    found = estimate((step, torch.randn(2**20)), mode="inference", steps=1)
    reached_by, own = found.at_peak["reached_by"], found.at_peak["called_by"]
    assert os.path.basename(reached_by["file"]) == "copy.py"
    assert (own["bytes"], own["line"]) == (2**22, step.__code__.co_firstlineno + 1)
    assert f"reached by 4.0 MiB for {step.__qualname__} (" in str(found) and "copy.py:" in str(found).splitlines()[1]
