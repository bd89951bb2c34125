"""`Trainer(callbacks=[hiwater.contrib.torch.trainers.huggingface.MemoryCallback()])`, or `watch(trainer)` to have
the numbers in its loggers, too."""

from __future__ import annotations

import weakref

from transformers import TrainerCallback

from hiwater.contrib.torch.trainers.phases import Phases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BETWEEN = "between phases"
_END_OF_TRAINING = "train_runtime"  # one of the last numbers that train() logs


class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not looked into: it is not installed everywhere
    """Adds `train_memory_NAME`, `eval_memory_NAME` and `test_memory_NAME` to the results of `train()`, `evaluate()` and
    `predict()`, and to the trainer's `log_history`. The names are in `hiwater.contrib.torch.trainers.phases`.

    An evaluation within training is a phase of its own. The Trainer has no hook for the start of other evaluations:
    `evaluate()` and `predict()` are measured from the end of the phase before, or from the creation of the trainer.
    Each rank measures itself; the numbers of the first one are logged.
    """

    def __init__(self) -> None:
        self.phases = Phases()
        weakref.finalize(self, self.phases.drop_all)  # a scope is open, also while the trainer does nothing
        self.trainer: Any = None
        """A function that also logs the numbers, so that TensorBoard and others show them; set by `watch()`."""

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - Trainer's signature, here and below
        self.phases.begin(_BETWEEN)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        self.phases.drop_all()
        self.phases.begin("train")

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        self._expect_evaluation(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        self._expect_evaluation(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:  # noqa: ARG002
        self._end("eval" if self.phases.is_open("eval") else _BETWEEN, "eval", state, metrics)

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:  # noqa: ARG002
        self._end(_BETWEEN, "test", state, metrics)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:  # noqa: ARG002
        if logs is not None and _END_OF_TRAINING in logs and self.phases.is_open("train"):
            self._end("train", "train", state, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        if self.phases.is_open("train"):
            self._end("train", "train", state, None)

    def _expect_evaluation(self, control: Any) -> None:
        """Begin the phase of an evaluation, if the trainer evaluates right after this hook."""
        if control.should_evaluate and not self.phases.is_open("eval"):
            self.phases.begin("eval")

    def _end(self, phase: str, called: str, state: Any, metrics: dict[str, float] | None) -> None:
        found = {f"{called}_memory_{name}": value for name, value in self.phases.end(phase, called).items()}
        if not self.phases.is_open("train"):
            self.phases.begin(_BETWEEN)
        if not found:
            return
        if metrics is not None:
            metrics.update(found)
        if self.trainer is not None:
            self.trainer.log(dict(found))
        elif state.is_world_process_zero:
            state.log_history.append({**found, "step": state.global_step})


def watch(trainer: Any) -> MemoryCallback:
    """Add a MemoryCallback to a trainer whose numbers go through `trainer.log()`, and so to all its loggers; return
    it."""
    callback = MemoryCallback()
    callback.trainer = trainer
    trainer.add_callback(callback)
    callback.phases.begin(_BETWEEN)
    return callback
