"""The common part of both Lightning callbacks: phases begin and end with Lightning's hooks, and their numbers go to
its loggers."""

from __future__ import annotations

from hiwater.contrib.torch.trainers.phases import Phases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class MemoryHooks:
    """Logs `memory/PHASE/NAME` for the phases fit, train_epoch, validation, test and predict. The names are in
    `hiwater.contrib.torch.trainers.phases`.

    Validation within a fit is a phase of its own; the sanity check before it is not a phase. `phases.ended` has all
    usages. Each rank measures itself; Lightning's loggers write the numbers of rank 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phases = Phases()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's signature, here and below
        self.phases.begin("fit")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end(trainer, "fit")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self.phases.begin("train_epoch")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end(trainer, "train_epoch")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        if not trainer.sanity_checking:
            self.phases.begin("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end(trainer, "validation")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self.phases.begin("test")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end(trainer, "test")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self.phases.begin("predict")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._end(trainer, "predict")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self.phases.drop_all()

    def _end(self, trainer: Any, phase: str) -> None:
        numbers = {f"memory/{phase}/{name}": value for name, value in self.phases.end(phase).items()}
        if numbers:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)
