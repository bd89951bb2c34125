"""Callbacks of Lightning and of transformers' Trainer in real trainings on the CPU; with a simulated allocator, what
they say of a GPU."""

import importlib
import re

import pytest

from cuda_double import installed
from hiwater.contrib.torch.trainers.phases import Phases
from hiwater.scopes.manager import SCOPE_MANAGER

torch = pytest.importorskip("torch")
MIB = 1 << 20
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries


@pytest.fixture(autouse=True)
def no_scope_is_left_open():
    before = SCOPE_MANAGER.open_scopes
    yield
    assert SCOPE_MANAGER.open_scopes == before


@pytest.fixture
def cuda(monkeypatch):
    with installed() as double:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the libraries would go on to the real one
        yield double


def test_the_numbers_of_a_phase_inside_another(cuda):
    cuda.initialise()
    phases = Phases()
    phases.begin("fit")
    kept = cuda[0].malloc(3 * MIB)
    phases.begin("validation")
    cuda[0].free(cuda[0].malloc(5 * MIB))
    cuda[0].stats.scalars["num_alloc_retries"] += 2
    inside = phases.end("validation")
    cuda[0].free(kept)
    cuda[0].malloc(MIB)
    whole = phases.end("fit")
    chosen = ("cuda_0_peak_mib", "cuda_0_kept_mib", "cuda_0_margin_mib", "cuda_0_alloc_retries")
    assert [inside[name] for name in chosen] == [8, 0, 80 * 1024 - 20, 2]
    assert [whole[name] for name in chosen] == [8, 1, 80 * 1024 - 22, 2]
    assert inside["ram_peak_mib"] > 1 and abs(inside["ram_kept_mib"]) < 50
    assert [name for name, _ in phases.ended] == ["validation", "fit"] and phases.end("fit") == {}


def test_a_phase_that_nobody_ended_is_dropped():
    phases = Phases()
    phases.begin("fit")
    phases.begin("fit")
    assert phases.end("fit") and len(phases.ended) == 1


# --- Lightning --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def lightning(request):
    found = pytest.importorskip(request.param)
    ours = importlib.import_module(f"hiwater.contrib.torch.trainers.{request.param.partition('.')[0]}")
    return found, ours.MemoryCallback


class Logged:
    """What a logger was told, by name."""

    def __init__(self, library):
        logged = self.numbers = {}

        class Logger(library.pytorch.loggers.Logger if hasattr(library, "pytorch") else library.loggers.Logger):
            name, version = "ours", 0

            def log_hyperparams(self, *_, **__):
                pass

            def log_metrics(self, metrics, step=None):
                logged.update(metrics)

        self.logger = Logger()


def step_on(cuda):
    """What a training step does on the device, which the first one initialises: libraries would look for a real one
    before."""

    def step():
        cuda.initialise()
        cuda[0].free(cuda[0].malloc(6 * MIB))

    return step


def model_of(library, on_step=lambda: None):
    class Model(library.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, _index):
            on_step()
            return self.layer(batch).sum()

        def validation_step(self, batch, _index):
            self.held = torch.ones(8 * MIB)  # 32 MiB
            return self.layer(batch).sum()

        test_step = predict_step = validation_step

        def on_validation_epoch_end(self):
            self.held = None

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Model()


def trainer_of(library, callback, logger, tmp_path):
    return library.Trainer(
        max_epochs=2, accelerator="cpu", logger=logger, callbacks=[callback], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path, num_sanity_val_steps=1,
    )  # fmt: skip


def test_lightning_logs_each_phase(lightning, tmp_path, cuda):
    library, callback_of = lightning
    logged, callback = Logged(library), callback_of()
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    trainer = trainer_of(library, callback, logged.logger, tmp_path)
    model = model_of(library, on_step=step_on(cuda))
    trainer.fit(model, data, data)
    names = [name for name, _ in callback.phases.ended]
    assert names == ["validation", "train_epoch", "validation", "train_epoch", "fit"]
    fit, epoch = (
        {k: v for k, v in logged.numbers.items() if k.startswith(f"memory/{p}/")} for p in ("fit", "train_epoch")
    )
    assert {name.rpartition("/")[2] for name in fit} == {
        "ram_peak_mib", "ram_kept_mib", "cuda_0_peak_mib", "cuda_0_kept_mib", "cuda_0_margin_mib",
        "cuda_0_alloc_retries",
    }  # fmt: skip
    assert fit["memory/fit/cuda_0_peak_mib"] == epoch["memory/train_epoch/cuda_0_peak_mib"] == 6
    assert logged.numbers["memory/validation/cuda_0_peak_mib"] == 0
    first = callback.phases.ended[0][1].resident
    assert first.peak_above_start_bytes > 20 * MIB and first.kept_bytes < 20 * MIB
    trainer.test(model, data, verbose=False)
    trainer.predict(model, data)
    assert {"memory/test/ram_peak_mib", "memory/predict/ram_peak_mib"} <= set(logged.numbers)


def test_lightning_that_fails_leaves_nothing_open(lightning, tmp_path):
    library, callback_of = lightning
    logged, callback = Logged(library), callback_of()

    def fail():
        raise LookupError("here")

    trainer = trainer_of(library, callback, logged.logger, tmp_path)
    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    with pytest.raises(LookupError):
        trainer.fit(model_of(library, fail), data)
    assert callback.phases.ended == []


# --- transformers -----------------------------------------------------------------------------------------------------


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.ones(4) * index, "labels": torch.tensor(1.0)}


class Net(torch.nn.Module):
    def __init__(self, on_step=lambda: None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self._on_step = on_step

    def forward(self, x, labels=None):
        if self.training:
            self._on_step()
        else:
            torch.ones(8 * MIB)
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


@pytest.fixture
def huggingface(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    ours = importlib.import_module("hiwater.contrib.torch.trainers.huggingface")

    def make(net, callbacks):
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path, num_train_epochs=2, per_device_train_batch_size=4, eval_strategy="epoch", report_to=[],
            use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        return transformers.Trainer(net, arguments, train_dataset=Items(), eval_dataset=Items(), callbacks=callbacks)

    return make, ours


def test_transformers_returns_and_logs_each_phase(huggingface, capsys, cuda):
    make, ours = huggingface
    callback = ours.MemoryCallback()
    trainer = make(Net(step_on(cuda)), [callback])
    metrics = trainer.train().metrics
    assert metrics["train_memory_cuda_0_peak_mib"] == 6 and metrics["train_memory_ram_peak_mib"] > 1
    names = [name for name, _ in callback.phases.ended]
    assert names == ["eval", "eval", "train"]
    inside = callback.phases.ended[0][1]
    assert inside.resident.peak_above_start_bytes > 20 * MIB and inside.gpu[0].peak_bytes == 0
    found = trainer.evaluate()
    assert found["eval_memory_cuda_0_peak_mib"] == 0 and found["eval_memory_ram_peak_mib"] > 1
    predicted = trainer.predict(Items()).metrics
    assert predicted["test_memory_ram_kept_mib"] is not None
    history = {key for entry in trainer.state.log_history for key in entry}
    assert {"train_memory_ram_peak_mib", "eval_memory_cuda_0_margin_mib", "test_memory_ram_peak_mib"} <= history
    del trainer
    callback.phases.drop_all()


def test_watch_logs_through_the_trainer(huggingface, capsys):
    make, ours = huggingface
    transformers = pytest.importorskip("transformers")
    heard = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            heard.extend(logs)

    trainer = make(Net(), [Reporter()])
    callback = ours.watch(trainer)
    trainer.train()
    assert heard.count("train_memory_ram_peak_mib") == 1 and heard.count("eval_memory_ram_peak_mib") == 2
    trainer.evaluate()
    assert heard.count("eval_memory_ram_peak_mib") == 3
    assert not any(re.match("(train|eval)_memory_cuda", name) for name in heard)
    callback.phases.drop_all()
