"""Estimates against what torch really allocates on a CPU, by its own profiler, and against figures worked out by
hand."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest

import schemas
from children import run_python

torch = pytest.importorskip("torch")

from torch import _dynamo, nn  # noqa: E402, F401 - optimizers load the first, and every forked process would again
from torch.nn import functional as F  # noqa: E402, N812 - as everybody calls it

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402
from hiwater.errors import BadRequest, EstimateFailed, StepFailed, StepNeedsValues  # noqa: E402
from places import HELPERS  # noqa: E402

MIB = 2**20
HOPPERS = 2 * 32 * MIB  # the workspaces of cuBLAS, of forward's thread and of autograd's
SEEN = [name for name in models.MODELS if name != "lstm"]
# Compared with the CPU's own operators: the profiler's trace, a plain loop, no code in common with the estimate.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # some kernels need a buffer for each
    yield
    torch.set_num_threads(before)


def estimate(*arguments, **options):
    found = hiwater.contrib.torch.estimate(*arguments, **options)
    schemas.check(json.loads(found.to_json()), "estimate")
    assert sum(found.at_peak["categories"].values()) == found.peak_allocated_bytes
    assert sum(row["bytes"] for row in found.at_peak["lines"]) == sum(row["bytes"] for row in found.at_peak["modules"])
    assert max(point["bytes"] for point in found.timeline) == found.peak_allocated_bytes
    assert all(sum(point["categories"].values()) == point["bytes"] for point in found.timeline)
    return found


def without_workspaces(found):
    return found.peak_allocated_bytes - found.category("cuBLAS workspaces")


def error(found, real):
    return abs(found.peak_allocated_bytes - real) / real


# Against a real run on the CPU


@pytest.mark.grid
@pytest.mark.parametrize("name", SEEN)
def test_training_is_within_a_percent(name):
    make = models.MODELS[name]
    assert error(estimate(*make(), device="cpu"), models.real_peak(make, models.train)) < 0.01


@pytest.mark.grid
@pytest.mark.parametrize("name", SEEN)
def test_inference_is_within_a_percent(name):
    make = models.MODELS[name]
    assert error(estimate(*make(), device="cpu", mode="inference"), models.real_peak(make, models.infer)) < 0.01


@pytest.mark.parametrize("name", ["mlp", "encoder"])
def test_accumulated_gradients_are_within_a_percent(name):
    make = models.MODELS[name]
    real = models.real_peak(make, lambda made: models.train(made, accumulate=3))
    assert error(estimate(*make(), device="cpu", accumulate=3), real) < 0.01


def whole_step():
    net, x, optimizer, criterion = models.mlp()

    def step(x):
        optimizer.zero_grad()
        criterion(net(x)).backward()
        optimizer.step()

    return step, x, None, None


@pytest.mark.parametrize("make", [models.mlp, whole_step])
def test_the_loop_that_runs_on_cards_needs_what_a_plain_one_does(make):
    from hiwater.contrib.torch.estimate import steps

    def run(made):
        options = {"mode": "train", "steps": 3, "accumulate": 1, "dtype": None, "autocast": None}
        steps.run_really(steps.Workload(*made, options), "cpu")

    def plain(made):
        for _ in range(3):
            made[0](made[1])

    assert models.real_peak(make, run) == models.real_peak(make, plain if make is whole_step else models.train)


OPTIMIZERS = {
    "SGD": {"lr": 0.1},
    "SGD nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {},
    "Adam foreach": {"foreach": True},
    "AdamW fused": {"fused": True},
    "AdamW amsgrad": {"amsgrad": True},
    "NAdam": {},
    "RAdam foreach": {"foreach": True},
    "Adafactor": {},
    "RMSprop": {},
    "Adagrad": {},
}


@pytest.mark.skipif(torch.__version__ >= "2.4", reason="this torch has fused optimizers on the CPU, too")
def test_a_fused_optimizer_that_torch_has_on_a_card_alone_is_told():
    def build():
        net = models.Mlp(64, 1).cuda()
        return net, torch.randn(16, 64), torch.optim.AdamW(net.parameters(), fused=True)

    with pytest.raises(StepFailed, match=rf"this torch \({re.escape(torch.__version__)}\) has on a card alone"):
        hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), device="T4", largest=1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_within_a_percent(name):
    if "fused" in OPTIMIZERS[name] and torch.__version__ < "2.4":
        pytest.skip("this torch has fused optimizers on a card alone")
    if not hasattr(torch.optim, name.split()[0]):
        pytest.skip("came with torch 2.5")

    def make():
        net = models.Mlp(384, 2)
        optimizer = getattr(torch.optim, name.split()[0])(net.parameters(), **OPTIMIZERS[name])
        return net, torch.randn(16, 384), optimizer, models.squares

    found = estimate(*make(), device="cpu")
    assert error(found, models.real_peak(make, models.train)) < 0.01
    first, second = (found.steps[step]["phases"]["forward"] for step in (1, 2))
    # Adagrad makes its state at once, Adafactor's is small; the others make theirs in the first step
    state = 0 if name in {"SGD", "Adagrad", "Adafactor"} else 4 * found.parameters
    assert second - first >= state


def test_autocast_is_within_a_percent():
    def train(made):
        net, x, optimizer, criterion = made
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = net(x)
                loss = criterion(output)
            loss.backward()
            optimizer.step()

    found = estimate(*models.encoder(8), device="cpu", autocast="bf16")
    assert error(found, models.real_peak(lambda: models.encoder(8), train)) < 0.01


def test_hooks_that_step_in_backward_are_within_a_percent():
    def make():
        net = models.Mlp(384, 3)
        optimizers = {p: torch.optim.SGD([p], lr=0.1, foreach=False) for p in net.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        return net, torch.randn(16, 384), None, models.squares

    def train(made):
        net, x, _, criterion = made
        for _ in range(3):
            output = net(x)
            loss = criterion(output)
            loss.backward()

    def whole_step():
        net, x, _, criterion = make()
        return estimate(lambda inputs: criterion(net(inputs)), (x,), device="cpu")

    found = hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: make(), device="T4", largest=1).estimate
    plain = make()
    for parameter in plain[0].parameters():
        parameter._post_accumulate_grad_hooks.clear()
    whole = estimate(*plain, device="T4")
    assert without_workspaces(found) < 0.8 * without_workspaces(whole)
    assert error(whole_step(), models.real_peak(make, train)) < 0.01


def test_a_native_lstm_is_too_low_and_said_to_be():
    found = estimate(*models.lstm(), device="cpu")
    real = models.real_peak(models.lstm, models.train)
    assert found.peak_allocated_bytes < real
    assert found.low_because == ["LSTM: the native workspace and reserve are not seen"] and found.fits is None
    assert "the figures are known to be too low: LSTM" in str(found) and "peak at least" in str(found)


class Projected(nn.Module):
    """A network whose workspace is not known."""

    def __init__(self):
        super().__init__()
        self.net = nn.LSTM(64, 64, batch_first=True, proj_size=32)

    def forward(self, x):
        return self.net(x)[0]


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_what_is_known_to_be_too_low_is_never_said_to_fit(mode):
    x = torch.randn(16, 4, 64)
    net = Projected()
    found = estimate(net, x, device="H200", mode=mode)
    assert found.fits is None and found.fits_only_by_retrying is None and "LSTM" in found.low_because[0]
    first = str(found).splitlines()[2]
    assert first.startswith("unknown whether it fits on NVIDIA H200") and "too low" in first
    assert found.margin_bytes > 0 and "fits" not in str(found).splitlines()[1]
    small = estimate(net, x, device=2**20, context=0, mode=mode)
    assert small.fits is False and "does not fit" in str(small), "what does not fit for certain is said"
    assert estimate(lambda x: x.square().sum(), x, device="H200", mode="inference").fits


def test_a_search_whose_figures_are_too_low_does_not_say_what_fits():
    def build(batch_size):
        net = Projected()
        return net, torch.randn(batch_size, 16, 64)

    found = hiwater.contrib.torch.estimate.largest_batch(build, device="40MiB", context="0B", mode="inference")
    schemas.check(found.to_dict(), "estimate")
    assert found.batch_size > 1 and found.low_because == found.to_dict()["low_because"] != []
    from hiwater.contrib.torch.estimate import rendering

    stream = io.StringIO()
    rendering.write_search(found, stream)
    expected = f"unknown: no batch above {found.batch_size} fits; whether {found.batch_size} does is not known"
    assert stream.getvalue().startswith(expected)


def test_what_runs_after_backward_is_no_forward():
    weight, other = nn.Parameter(torch.zeros(2**18)), nn.Parameter(torch.zeros(2**18))

    def step(x):
        for parameter in (weight, other):
            (parameter * x).sum().backward()
            with torch.no_grad():  # as clipping does
                torch.empty(10 * MIB, dtype=torch.uint8).fill_(1)
        torch.empty(20 * MIB, dtype=torch.uint8)

    found = estimate(step, torch.ones(2**18), torch.optim.SGD([weight, other], lr=0.1), device="cpu", steps=2)
    for each in found.steps[1:]:
        phases = each["phases"]
        assert list(phases) == ["forward", "backward", "after", "optimizer"]
        assert (
            phases["after"] >= 22 * MIB and max(phases["forward"], phases["backward"], phases["optimizer"]) < 10 * MIB
        )
    assert found.at_peak["phase"] == "after"


def test_the_forward_of_a_module_after_a_backward_is_one_again():
    net = nn.Linear(512, 512)

    def step(x):
        net(x).sum().backward()
        torch.empty(20 * MIB, dtype=torch.uint8)
        with torch.no_grad():
            net(x.expand(8192, 512))  # 16 MiB

    found = estimate(step, torch.ones(1, 512), torch.optim.SGD(net.parameters(), lr=0.1), device="cpu", steps=1)
    phases = found.steps[1]["phases"]
    assert phases["after"] >= 20 * MIB and 16 * MIB <= phases["forward"] < 20 * MIB


@pytest.mark.parametrize("kind", ["products", "residual", "held"])
def test_gradients_that_meet_are_added_in_place_unless_somebody_holds_them(kind):
    """autograd adds in place where it is the last to hold the first of them, and never for tensors that are fake."""

    class Meeting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2**18))

        def forward(self, factor):
            x = self.weight * factor
            if kind == "products":
                return torch.stack([(x * factor).sum() for factor in (3, 4, 5)]).sum()
            x = x + x.relu()
            if kind == "held":
                x.register_hook(lambda gradient: setattr(self, "held", gradient))
            return x.square().sum()

    def make():
        return Meeting(), torch.ones(1), None, lambda output: output

    def train(made):
        net, factor, *_ = made
        for _ in range(2):
            net.weight.grad = None
            loss = net(factor)
            loss.backward()

    found = hiwater.contrib.torch.estimate(*make(), device="cpu", steps=2)
    assert error(found, models.real_peak(make, train)) < 0.01


# Against figures worked out by hand


FUSED = pytest.mark.skipif(torch.__version__ < "2.4", reason="this torch has fused optimizers on a card alone")


@pytest.mark.parametrize(
    ("options", "bytes_each"), [({}, 20), pytest.param({"fused": True}, 16, marks=FUSED), ({"foreach": False}, 16)]
)
def test_adam_in_float32_takes_sixteen_bytes_a_parameter_and_foreach_four_more_for_a_while(options, bytes_each):
    net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)])
    found = estimate(net, torch.randn(1, 1024), torch.optim.AdamW(net.parameters(), **options))
    count = 8 * 1024 * 1024
    assert found.parameters == count
    assert found.category("parameters") == found.category("gradients") == 4 * count
    assert found.category("optimizer state") // 2 == pytest.approx(4 * count, rel=1e-3)
    peak = found.steps[2]["phases"]["optimizer"]
    # One parameter at a time needs the root of its variance, that divided, and the last one's, whose name is still
    # bound.
    extra = 3 * 4 * MIB if options.get("foreach") is False else 0
    assert peak == pytest.approx(bytes_each * count + extra + HOPPERS, rel=1e-3)


def gpt(batch_size):
    net = models.Gpt(length=128)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    return (
        net,
        torch.zeros(batch_size, 128, dtype=torch.long),
        optimizer,
        lambda out: F.cross_entropy(out.flatten(0, 1), torch.zeros(128 * batch_size, dtype=torch.long)),
    )


@FUSED
def test_gpt_2_small_takes_what_its_parameters_say():
    found = hiwater.contrib.torch.estimate.largest_batch(gpt, device="A100 40GB", largest=1).estimate
    width, words = 768, 50257
    # the known 124 million, but for the places beyond 128
    count = 12 * (12 * width**2 + 13 * width) + (words + 128) * width + 2 * width
    assert found.parameters == count
    # In the steady state: parameters, gradients and two moments, and the output. A fused optimizer has no temporaries.
    kept = found.steps[3]["phases"]["optimizer"]
    table = words * width * 4
    # Of the words' table, its gradient and moments: less than 1 MiB each, so never split off.
    unsplit = 4 * (148 * MIB - table)
    workspaces = 2 * 8.125 * MIB
    assert kept == pytest.approx(16 * count + 128 * words * 4 + unsplit + workspaces, rel=1e-3)


@pytest.mark.parametrize(("batch", "length", "width", "heads"), [(2, 512, 512, 8)])
def test_a_transformers_activations_are_those_of_the_literature(batch, length, width, heads):
    """34 sbh + 5 as²b bytes a layer in half precision: Korthikanti et al., arXiv 2205.05198, equation 2."""

    def activations(depth):
        blocks = nn.Sequential(*[models.GptBlock(width, heads) for _ in range(depth)])
        found = estimate(blocks, torch.randn(batch, length, width), None, models.squares, dtype="fp16", steps=1)
        return max(point["categories"].get("activations", 0) for point in found.timeline)

    layer = (activations(4) - activations(2)) / 2
    assert layer == pytest.approx(34 * length * batch * width + 5 * heads * length**2 * batch, rel=0.01)


def test_attention_keeps_its_output_and_one_number_a_row():
    q, k, v = (torch.empty(8, 16, 2048, 64, dtype=torch.float16) for _ in range(3))
    found = estimate(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), mode="inference", steps=1,
        device="A100 80GB",
    )  # fmt: skip
    assert found.category("inputs") == 96 * MIB
    assert found.peak_allocated_bytes == (96 + 32 + 1) * MIB


def test_attention_in_training_adds_the_sums_of_flash():
    q, k, v = (torch.empty(2, 8, 1024, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    found = estimate(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v).sum(), (q, k, v), steps=1, device="A100 80GB"
    )
    one, row = 2 * 8 * 1024 * 64 * 2, 2 * 8 * 1024 * 4
    # inputs, output, logsumexp, three gradients, the sums of rows, and the query's gradient in float32; numbers of one
    # element besides
    assert found.steps[1]["phases"]["backward"] == pytest.approx((3 + 1 + 3 + 2) * one + 2 * row, abs=4096)


def test_dropout_on_a_card_keeps_a_mask_of_bytes():
    x = torch.randn(1024, 1024, requires_grad=True)
    card = estimate(lambda x: F.dropout(x, 0.1).sum(), (x,), steps=1)
    cpu = estimate(lambda x: F.dropout(x, 0.1).sum(), (x,), steps=1, device="cpu")
    assert card.steps[1]["phases"]["forward"] == (4 + 4 + 1) * MIB + 3 * 512  # the sum, and two buffers to make it
    assert cpu.steps[1]["phases"]["forward"] == (4 + 4 + 4) * MIB + 4


def test_autocast_for_a_card_takes_softmax_in_float32():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1024, 1024, bias=False)

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return F.softmax(self.linear(x), -1)

    found = estimate(Net(), torch.randn(1024, 1024), mode="inference", steps=1)
    # weight and input, both in half as well until autocast ends, the product in half, in float32, and the softmax of
    # that
    assert without_workspaces(found) in {(4 + 4 + 2 + 2 + 2 + 4 + 4) * MIB, (4 + 4 + 2 + 2 + 4 + 4) * MIB}


def test_sizes_are_rounded_and_reserved_in_segments_on_a_card_alone():
    net = nn.Linear(10, 10)
    card, cpu = (estimate(net, torch.randn(1, 10), device=device, mode="inference") for device in ("T4", "cpu"))
    assert card.category("parameters") == 1024
    assert card.peak_allocated_bytes % 512 == 0
    assert card.peak_reserved_bytes == (2 + 20) * MIB  # the second segment is for a workspace of 8.125 MiB
    assert card.peak_used_bytes == card.peak_reserved_bytes + card.context_bytes
    assert (cpu.category("parameters"), cpu.peak_reserved_bytes, cpu.fits) == (440, None, None)


# What code does


def test_checkpoints_keep_less_and_compute_again():
    class Plain(models.Checkpointed):
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def of(net):
        return estimate(net, torch.randn(2048, 256, requires_grad=True), None, models.squares, device="cpu")

    plain, again = of(Plain()), of(models.Checkpointed())
    assert again.category("activations") < plain.category("activations") / 2
    assert again.category("recomputed activations") > 0
    assert plain.category("recomputed activations") == 0
    assert any("blocks.3" in row["module"] for row in again.at_peak["modules"])


def test_code_written_for_a_card_runs():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64, device="cuda")

        def forward(self, x):
            assert x.dtype == self.linear.weight.dtype
            mask = torch.ones(x.shape, device=x.device).to("cuda", non_blocking=True)
            return self.linear(x.cuda()) * mask.to(x) + torch.arange(64, device="cuda").to(x.dtype)

    def build():
        with torch.device("cuda:0"):
            net = Net()
        net = net.cuda().to("cuda", torch.bfloat16).half().float()
        return net, torch.randn(4, 64).pin_memory().to("cuda"), torch.optim.SGD(net.parameters(), lr=0.1)

    found = hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), device="T4", largest=1).estimate
    assert found.category("parameters") == 64 * 64 * 4 + 512
    assert found.category("inputs") == 1024


def test_a_function_may_do_the_whole_step():
    net = models.Mlp(256, 2)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(32, 256)

    def step(inputs):
        optimizer.zero_grad()
        loss = net(inputs).square().mean()
        loss.backward()
        optimizer.step()

    whole = estimate(step, (x,), device="cpu")
    parts = estimate(net, x, optimizer, models.squares, device="cpu")
    assert set(whole.steps[2]["phases"]) >= {"forward", "backward", "optimizer"}
    assert whole.category("optimizer state") == parts.category("optimizer state") > 0
    assert whole.peak_allocated_bytes == pytest.approx(parts.peak_allocated_bytes, rel=0.05)


def test_scaling_clipping_compiling_and_schedules_do_not_hinder():
    def build():
        net = torch.compile(models.Mlp(256, 2).cuda())
        optimizer = torch.optim.AdamW(net.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
        scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()

        def step(x):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda"):
                loss = net(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            torch.cuda.synchronize()

        return step, torch.randn(8, 256)

    found = hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), device="T4", largest=1).estimate
    assert found.category("optimizer state") == 2 * 4 * found.parameters > 0


def test_a_model_made_once_serves_several_batches():
    net = models.Mlp(256, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = hiwater.contrib.torch.estimate.largest_batch(
        lambda batch_size: (net, torch.randn(batch_size, 256), optimizer), device="T4", largest=64, multiple_of=32
    )
    assert (found.batch_size, found.is_bounded, len(found.probes)) == (64, False, 2)
    assert type(net.layers[0].weight) is nn.Parameter


def test_lines_and_modules_of_a_peak_are_named():
    found = estimate(*models.conv(64), device="cpu")
    names = {row["module"] for row in found.at_peak["modules"]}
    assert {"first", "norm"} <= names
    lines = [row for row in found.at_peak["lines"] if row["file"] == models.__file__]
    assert lines[0]["function"] == "ConvNet.forward"
    text = Path(models.__file__).read_text("utf-8").splitlines()[lines[0]["line"] - 1]
    assert "self.norm" in text


def test_keywords_losses_and_types_are_taken():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, *, a, b):
            return {"loss": (self.linear(a) * b).sum()}

    inputs = {"a": torch.randn(4, 32), "b": torch.randn(4, 32)}
    half = estimate(Net(), inputs, dtype="bf16", device="cpu")
    assert half.category("parameters") == 2 * (32 * 32 + 32)
    assert not half.notes
    both = estimate(nn.Linear(8, 8), torch.randn(2, 8), loss=F.mse_loss)
    assert not both.notes
    assert "no loss was given" in estimate(nn.Linear(8, 8), torch.randn(2, 8)).notes[0]


# Verdicts and batches


def test_the_verdict_follows_from_what_the_allocator_must_get():
    net = nn.Linear(4096, 4096, bias=False)
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(1, 4096)
    plenty = estimate(net, x, optimizer, device="H100 80GB")
    assert plenty.fits
    assert plenty.margin_bytes == plenty.total_bytes - plenty.context_bytes - plenty.peak_reserved_bytes
    context = plenty.context_bytes
    exact = estimate(net, x, optimizer, device=plenty.peak_reserved_bytes + context)
    assert (exact.fits, exact.margin_bytes, exact.fits_only_by_retrying) == (True, 0, False)
    none = estimate(net, x, optimizer, device=192 * MIB + context)
    assert not none.fits
    assert none.needed_bytes >= none.peak_allocated_bytes - 2 * MIB
    assert none.margin_bytes == 192 * MIB - none.needed_bytes < 0
    enough = estimate(net, x, optimizer, device=none.needed_bytes + context)
    assert enough.fits
    assert not estimate(net, x, optimizer, device=none.needed_bytes - 2 * MIB + context).fits


def test_the_largest_batch_fits_and_the_next_does_not():
    found = hiwater.contrib.torch.estimate.largest_batch(models.mlp, device="700MiB", multiple_of=4)
    schemas.check(json.loads(json.dumps(found.to_dict())), "estimate")
    assert found.is_monotonic
    assert found.is_bounded
    assert len(found.probes) <= 20  # the memory of so small a model goes up in steps, not in a line
    assert found.batch_size % 4 == 0
    assert found.estimate.batch_size == found.batch_size
    assert estimate(*models.mlp(found.batch_size), device="700MiB").fits
    assert not estimate(*models.mlp(found.batch_size + 4), device="700MiB").fits


def test_a_model_too_large_for_any_batch_is_said():
    found = hiwater.contrib.torch.estimate.largest_batch(models.mlp, device="515MiB")
    assert (found.batch_size, found.estimate, len(found.probes)) == (0, None, 1)


# What goes wrong is said, and nothing is left behind


class Reads(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.how = how

    def forward(self, x):
        x = self.linear(x)
        self.how(x)
        return x


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x.argmax().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.detach().numpy(),
    ],
    ids=["item", "if", "mask", "nonzero", "numpy"],
)
def test_code_that_needs_values_is_named_with_a_way_out(how):
    with pytest.raises(
        StepNeedsValues, match=rf"{os.path.basename(__file__)}:{how.__code__.co_firstlineno} .*; keep it out"
    ):
        hiwater.contrib.torch.estimate(Reads(how), torch.randn(2, 4))


def test_a_torch_that_is_too_old_is_refused_before_it_is_loaded(monkeypatch):
    monkeypatch.setattr("hiwater.contrib.torch.estimate.api.version", lambda _: "2.5.1+cu124")
    with pytest.raises(
        EstimateFailed, match=r"needs torch 2\.6 or newer, and this is 2\.5\.1\+cu124.*another environment"
    ):
        estimate("train.py:build")


def test_other_failures_carry_their_line_and_message():
    with pytest.raises(StepFailed, match=rf"failed at .*{os.path.basename(__file__)}:\d+ with KeyError: 'gone'"):
        hiwater.contrib.torch.estimate(Reads(lambda x: {}["gone"]), torch.randn(2, 4))


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch takes the number of a card")
def test_a_card_by_its_number_in_a_step_is_named_with_a_way_out():
    with pytest.raises(StepFailed, match=rf"{os.path.basename(__file__)}:\d+ gives a device by its number.*\"cuda\""):
        hiwater.contrib.torch.estimate(Reads(lambda x: torch.ones(2, device=0)), torch.randn(2, 4))


def test_a_process_that_dies_is_an_error():
    with pytest.raises(EstimateFailed, match="died with exit code 9"):
        hiwater.contrib.torch.estimate(Reads(lambda x: os._exit(9)), torch.randn(2, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "both"}, "not a mode"),
        ({"steps": 0}, "count from 1"),
        ({"dtype": "int3"}, "not a type"),
        ({"loss": lambda output: 1.0}, "nothing to run backward from"),
        ({"batch_size": 4}, "largest_batch"),
        ({"device": "1MiB"}, "no room"),
    ],
)
def test_wrong_requests_are_refused(options, message):
    with pytest.raises(BadRequest, match=message):
        hiwater.contrib.torch.estimate(nn.Linear(4, 4), torch.randn(2, 4), **options)


def test_the_users_process_is_left_as_it_was():
    before = {home: dict(vars(home)) for home in (torch, torch.cuda, torch.Tensor, F, nn.Module, torch.autograd)}
    net, x, optimizer, criterion = models.mlp()
    hooks = [len(p._post_accumulate_grad_hooks or ()) for p in net.parameters()]
    weights = [p.clone() for p in net.parameters()]
    hiwater.contrib.torch.estimate(net, x, optimizer, criterion)
    assert all(vars(home)[name] is value for home, names in before.items() for name, value in names.items())
    assert all(torch.equal(p, q) and type(p) is nn.Parameter for p, q in zip(net.parameters(), weights, strict=True))
    assert [len(p._post_accumulate_grad_hooks or ()) for p in net.parameters()] == hooks
    assert all(p.grad is None for p in net.parameters())
    assert not optimizer.state
    assert not torch.cuda.is_initialized()


def test_the_package_and_the_function_are_one_name():
    import hiwater.contrib.torch.estimate as package

    assert callable(package)
    assert package.largest_batch == hiwater.contrib.torch.estimate.largest_batch
    assert sys.modules["hiwater.contrib.torch.estimate"] is package
    assert "to spare" in str(package(nn.Linear(4, 4), torch.randn(2, 4), mode="inference"))


def test_modules_of_a_list_are_one_row_in_the_text():
    text = str(estimate(*models.checkpointed(), device="cpu"))
    assert "blocks.*.layers.* (" in text
    assert "blocks.1" not in text


def test_a_copy_of_a_process_whose_kernels_used_threads_does_not_wait_for_them():
    """An estimate of objects runs in a fork, where OpenMP's threads are gone, and fills masks of known content."""
    code = f"""
import sys
sys.path.insert(0, {str(HELPERS)!r})
import torch, estimate_models, hiwater.contrib.torch
torch.set_num_threads(2)
torch.ones(1 << 22).add_(1).sum()
hiwater.contrib.torch.estimate(*estimate_models.masked_attention())
print(torch.get_num_threads())
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
