"""Programs as their authors write them: they ask for the card, log what they compute, and have loops of their own."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from torch import _dynamo, nn  # noqa: E402, F401 - optimizers load the first, and every forked process would again
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402
from hiwater.errors import StepNeedsValues  # noqa: E402

HERE = os.path.basename(__file__)
WIDTH = 64
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]


def built(build, **options):
    """The estimate of what is built with fake tensors, as of a function that the command line names."""
    options = {"device": "A100 80GB", "largest": 1, **options}
    return hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), **options).estimate


class Rows(Dataset):
    """Made one by one, of values that a fake tensor could not give."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        return torch.from_numpy(torch.rand(WIDTH).numpy()), place % 2


def training(rows, epochs=1, **options):
    """A model, its optimizer, and a function that trains it as scripts do."""
    net = models.Mlp(WIDTH, 2).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    loader = DataLoader(rows, batch_size=8, shuffle=True, **options)
    passes = []

    def step(x):
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def train():
        best, total = float("inf"), 0.0
        for _ in range(epochs):
            passes.append(0)
            for x, _ in loader:
                passes[-1] += 1
                loss = step(x.to("cuda"))
                total += loss.item()
                print(f"{loss:.3f}", total, loss.detach().cpu().numpy() + 1)
                if loss < best:
                    best = loss.item()
                if not torch.isfinite(loss):
                    raise RuntimeError("no number")
            with torch.no_grad():
                right = sum((net(x.cuda()).argmax(1) == y.cuda()).sum().item() for x, y in loader)
            assert right > 0
        return passes

    return net, optimizer, step, train


def test_a_loop_over_a_loader_needs_what_its_step_does():
    def loop():
        return training(Rows(24), num_workers=2, pin_memory=True)[3], ()

    def alone():
        _, _, step, _ = training(Rows(24))
        return step, torch.rand(8, WIDTH, device="cuda")

    whole, one = built(loop), built(alone)
    for name in ("parameters", "gradients", "optimizer state"):
        assert whole.category(name) == one.category(name) > 0
    labels = 512  # beside the inputs
    assert one.peak_allocated_bytes <= whole.peak_allocated_bytes <= one.peak_allocated_bytes + 8 * labels
    assert whole.at_peak["reached_by"]["file"].endswith((HERE, "estimate_models.py"))
    assert [HERE in note and "0.5 stands for each" in note for note in whole.notes].count(True) == 1


@pytest.mark.parametrize("rows", [Rows(800), TensorDataset(torch.rand(800, WIDTH), torch.zeros(800))])
def test_of_a_long_loop_a_few_steps_run(rows):
    seen = []

    def loop():
        train = training(rows, epochs=1000)[3]

        def watched():
            try:
                train()
            finally:
                seen.append(train.__closure__)
                passes = next(cell.cell_contents for cell in train.__closure__ if isinstance(cell.cell_contents, list))
                assert passes == [3, 3, 0], "two epochs of the three steps that an estimate runs"

        return watched, ()

    found = built(loop)
    assert any("own loop" in note for note in found.notes)
    assert len(found.steps) == 2, "what was before, and the only call"


def test_gradients_are_accumulated_over_more_batches_than_steps():
    def loop():
        net = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.Adam(net.parameters())

        def train():
            for number, (x, _) in enumerate(DataLoader(Rows(80), batch_size=2)):
                (net(x.cuda()).sum() / 5).backward()
                if number % 5 == 4:
                    optimizer.step()
                    optimizer.zero_grad()

        return train, ()

    assert built(loop).category("optimizer state") >= 2 * 4 * (WIDTH + 1) * WIDTH


def test_an_endless_loop_without_a_loader_ends():
    def loop():
        _, _, step, _ = training(Rows(8))

        def train():
            while True:
                step(torch.rand(8, WIDTH, device="cuda"))

        return train, ()

    assert built(loop).category("optimizer state") > 0


def test_a_program_finds_the_card_that_was_asked_for():
    def build():
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (8, 0)
        assert "A100" in torch.cuda.get_device_name(0)
        assert torch.cuda.get_device_properties(0).total_memory > 79 * 2**30
        device = "cuda" if torch.cuda.is_available() else "cpu"
        net = nn.Linear(WIDTH, WIDTH).to(0)
        optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=device == "cuda")

        def step(x):
            with torch.autocast(device, enabled=device == "cuda", dtype=torch.bfloat16):
                out = net(torch.tensor(1.0, device=device) * x.to(0))
            assert out.dtype is torch.bfloat16
            out.float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, torch.rand(8, WIDTH)

    assert built(build).category("parameters") > 0


@pytest.mark.parametrize(
    ("read", "fits"),
    [
        (lambda x, mask: x[mask].shape[0] == 12, True),
        (lambda x, mask: mask.nonzero().shape == (12, 2), True),
        (lambda x, mask: len(torch.linspace(0, 1, 5)[1:].tolist()) == 4, True),
        (lambda x, mask: [round(one.item(), 2) for one in torch.linspace(0, 1, 3)] == [0.0, 0.5, 1.0], True),
        (lambda x, mask: x[x > 0], False),
        (lambda x, mask: int(x.argmax()), False),
        (lambda x, mask: bool((x > 0).any()), False),
    ],
    ids=["mask", "nonzero", "tolist", "linspace", "computed mask", "computed position", "computed truth"],
)
def test_sizes_follow_from_known_content_only(read, fits):
    def build():
        def step(x):
            mask = torch.arange(4, device="cuda") < torch.full((4, 1), 3, device="cuda")
            assert read(x, mask)
            return (x * 2).sum()

        return step, torch.rand(4, 4, 8, requires_grad=True)

    if fits:
        assert built(build).peak_allocated_bytes > 0
        return
    with pytest.raises(StepNeedsValues, match=rf"{HERE}:\d+ "):
        built(build)


def test_unknown_content_is_not_that_of_a_later_tensor():
    def step(x):
        for _ in range(50):
            spoilt = torch.ones(4, dtype=torch.long)
            spoilt[0] = (x[0] > 0).long()
            del spoilt
            assert (torch.ones(4, dtype=torch.long) == 1).all()
        return x.sum()

    found = hiwater.contrib.torch.estimate(step, torch.ones(4, requires_grad=True), steps=1)
    assert found.peak_allocated_bytes > 0


def test_a_model_from_before_the_estimate_comes_to_the_card_once():
    net = nn.Linear(1024, 1024, bias=False)

    def build():
        return net.cuda(), torch.rand(8, 1024)

    assert built(build, mode="inference").steps[0]["peak_allocated_bytes"] < 1.1 * 4 * 1024 * 1024


def test_weights_come_from_a_file(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(nn.Linear(WIDTH, WIDTH).state_dict(), path)

    def build(loads):
        net = nn.Linear(WIDTH, WIDTH)
        if loads:
            net.load_state_dict(torch.load(path, map_location="cuda"))
        return net.cuda(), torch.rand(8, WIDTH, device="cuda")

    loaded, made = (built(lambda loads=loads: build(loads), mode="inference") for loads in (True, False))
    assert loaded.peak_allocated_bytes == made.peak_allocated_bytes
    assert loaded.category("parameters") == made.category("parameters") > 0


def test_no_file_is_written_in_place_of_weights(tmp_path):
    path = tmp_path / "weights.pt"
    path.write_text("kept")

    def build():
        net = nn.Linear(WIDTH, WIDTH).cuda()

        def step(x):
            net(x).sum().backward()
            torch.save(net.state_dict(), path)

        return step, torch.rand(8, WIDTH)

    built(build)
    assert path.read_text() == "kept"


# --- libraries that train ---------------------------------------------------------------------------------------------


def test_lightnings_fit_is_led_by_the_training_step(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = models.Mlp(WIDTH, 2)

        def training_step(self, batch, _index):
            return torch.cat([self.net(batch[0])] * 40).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    def build():
        model, data = Model(), DataLoader(Rows(24), batch_size=512)
        trainer = lightning.Trainer(max_epochs=3, accelerator="gpu", devices=1, logger=False, default_root_dir=tmp_path)
        return trainer.fit, (model, data)

    peak = built(build).at_peak
    assert (peak["called_by"] or peak["reached_by"])["function"].endswith("training_step")


def test_accelerates_loop_runs():
    accelerate = pytest.importorskip("accelerate")

    def build():
        accelerator = accelerate.Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
        net = nn.Linear(WIDTH, WIDTH)
        given = net, torch.optim.AdamW(net.parameters()), DataLoader(Rows(64), batch_size=8)
        net, optimizer, loader = accelerator.prepare(*given)

        def train():
            for x, _ in loader:
                with accelerator.accumulate(net):
                    loss = net(x).sum()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                accelerator.print(accelerator.gather(loss.detach()).mean().item())

        return train, ()

    assert built(build).category("optimizer state") >= 2 * 4 * (WIDTH + 1) * WIDTH


def test_the_trainer_of_transformers_trains(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Sentences(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, place):
            ids = torch.randint(100, (16,))
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(place % 2)}

    def build():
        shape = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": WIDTH}
        net = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=100, **shape))
        options = transformers.TrainingArguments(
            str(tmp_path), bf16=True, logging_steps=1, report_to=[], save_strategy="no", gradient_accumulation_steps=2
        )
        return transformers.Trainer(net, options, train_dataset=Sentences()).train, ()

    found = built(build)
    assert found.category("optimizer state") >= 2 * found.category("parameters") > 0
