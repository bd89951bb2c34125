"""`hiwater.contrib.torch.estimate()` and `largest_batch()`: they run the estimate in another process, and return its
result."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from hiwater._os.sizes import parse_size
from hiwater.contrib.torch.estimate.batch import Probe, Search, is_monotonic
from hiwater.contrib.torch.estimate.cards import Card, find_card
from hiwater.contrib.torch.estimate.processes import ask_fork, ask_interpreter
from hiwater.contrib.torch.estimate.result import CONTEXT_BYTES, EstimateData
from hiwater.contrib.torch.estimate.tries import checked
from hiwater.errors import BadRequest, EstimateFailed, ExtraMissing

DEFAULT_DEVICE = "NVIDIA H200 141GB"
_Maker = Callable[[int | None], tuple[Any, ...]]
_MODES = ("train", "inference")
_OLDEST_TORCH = (2, 6)


class Estimate(EstimateData):
    """An estimate that prints itself as text."""

    __slots__ = ()

    def __str__(self) -> str:
        from hiwater.contrib.torch.estimate import rendering

        stream = io.StringIO()
        rendering.write(self, stream)
        return stream.getvalue()


class _Estimator:
    """The function `estimate`, with the search as an attribute."""

    def __call__(
        self, target: Any, inputs: Any = None, optimizer: Any = None, loss: Callable[..., Any] | None = None, *,
        device: str | int | Card = DEFAULT_DEVICE, mode: str = "train", dtype: Any = None, autocast: Any = None,
        steps: int = 3, accumulate: int = 1, batch_size: int | None = None, context: str | int = CONTEXT_BYTES,
        tries: Sequence[str] = (), ranks: int | None = None,
    ) -> Estimate:  # fmt: skip
        """Estimate the memory that `steps` steps need on a card. No card is needed: tensors have sizes, but no values.

        `target` is a module, a function of the inputs (which may run backward and the optimizer itself), or the name of
        a function, `script.py:build` or `package.module:build`. The named function returns (module, inputs[,
        optimizer][, loss]) and may take `batch_size`. `inputs` is a tensor, a tuple (arguments) or a dict (keywords).
        `loss` is a function of the output, or of output and inputs. Without it, the loss is a scalar output, its
        `.loss`, or the sum of the outputs.

        `device` is a card, its name, a size, or "cpu": without rounding, without a model of an allocator, and with the
        CPU's operators. `dtype` converts module and inputs. `autocast` wraps forward and loss ("bf16", "fp16"). Each
        step of the optimizer follows `accumulate` backward passes. `context` is the memory that the driver uses for the
        process. `tries` are names of changes (in `hiwater.contrib.torch.estimate.CHANGES`), several joined by "+": the
        step runs once more with each, and `Estimate.tries` has the figures. `ranks` is the number of processes that
        train together, as torchrun's `--nproc-per-node`: the figures are those of the first.

        The estimate runs in a process of its own: a new interpreter for a name, a fork for objects. Raises a
        HiwaterError: StepNeedsValues for code that reads values, StepFailed for another error in the step, BadRequest,
        UsageError, ExtraMissing without torch, EstimateFailed.
        """
        request = _request("estimate", device, mode, dtype, autocast, steps, accumulate, context, ranks) | {
            "batch_size": batch_size,
            "tries": checked(tries),
        }
        if isinstance(target, str):
            answer = ask_interpreter(target, request)
        elif batch_size is not None:
            raise BadRequest(
                "batch_size is for a function that is named, or for largest_batch", "make inputs of that size"
            )
        else:
            answer = _ask_copy(lambda: lambda _: (target, inputs, optimizer, loss), request)
        return _made(answer, target, request)

    def largest_batch(
        self, build: str | Callable[..., Any], *, device: str | int | Card = DEFAULT_DEVICE, mode: str = "train",
        dtype: Any = None, autocast: Any = None, steps: int = 3, accumulate: int = 1,
        context: str | int = CONTEXT_BYTES, multiple_of: int = 1, largest: int = 2**20, ranks: int | None = None,
    ) -> Search:  # fmt: skip
        """Find the largest batch whose steps fit: a multiple of `multiple_of`, at most `largest`.

        `build(batch_size=n)`, or the function with that name, returns (module, inputs[, optimizer][, loss]). Options
        and errors are as in `estimate()`.
        """
        request = _request("largest_batch", device, mode, dtype, autocast, steps, accumulate, context, ranks)
        if request["total_bytes"] is None:
            raise BadRequest("a search needs a card or a size to fit", "give device, such as 80GiB")
        if multiple_of < 1 or largest < multiple_of:
            raise BadRequest(
                f"no multiple of {multiple_of} is between 1 and {largest}", "give positive numbers, largest no smaller"
            )
        request |= {"multiple_of": multiple_of, "largest": largest, "batch_size": None}
        answer = (
            ask_interpreter(build, request) if isinstance(build, str) else _ask_copy(lambda: _calling(build), request)
        )
        probes = [Probe(*probe) for probe in answer["probes"]]
        found = _made(answer["estimate"], build, request) if answer["estimate"] is not None else None
        return Search(answer["batch_size"], probes, is_monotonic(probes), answer["is_bounded"], found)


def measured_and_estimated(target: str, batch_size: int | None, **options: Any) -> tuple[dict[str, Any], Estimate]:
    """Run the step on the card of this machine: a document of one row, as benchmarks/estimate_score has them, and the
    estimate for this card. Raises EstimateFailed without a card."""
    request = _request("measure", **{"device": DEFAULT_DEVICE, "context": 0, **options}) | {"batch_size": batch_size}
    answer = ask_interpreter(target, request)
    about = answer["about"]
    card = Card(
        about["card"], about["total_bytes"], "this machine", tuple(about["capability"]), about["multiprocessors"]
    )
    found = estimate(target, batch_size=batch_size, **{**options, "device": card})
    estimated = {"estimated_allocated": found.peak_allocated_bytes, "estimated_reserved": found.peak_reserved_bytes}
    return {"about": about, "rows": {target.rpartition(":")[2]: answer["row"] | estimated}}, found


estimate = _Estimator()
largest_batch = estimate.largest_batch


def _check_torch() -> None:
    """Look for torch without loading it."""
    if find_spec("torch") is None:
        raise ExtraMissing(
            "an estimate needs torch, which is not installed", "pip install 'hiwater[torch]'; its CPU build will do"
        )
    try:
        found = version("torch")
    except PackageNotFoundError:  # it is used from where it was built
        return
    if tuple(map(int, found.split(".")[:2])) < _OLDEST_TORCH:
        raise EstimateFailed(
            f"an estimate needs torch {'.'.join(map(str, _OLDEST_TORCH))} or newer, and this is {found}",
            "install a newer one in another environment; its CPU build will do",
        )


def _request(
    task: str, device: str | int | Card, mode: str, dtype: Any, autocast: Any, steps: int, accumulate: int,
    context: str | int, ranks: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    _check_torch()
    if mode not in _MODES:
        raise BadRequest(f"{mode!r} is not a mode", f"choose {' or '.join(_MODES)}")
    if steps < 1 or accumulate < 1 or (ranks is not None and ranks < 1):
        raise BadRequest("steps, accumulate and ranks count from 1", "give positive numbers")
    card = _card(device) if device != "cpu" else None
    context_bytes = context if isinstance(context, int) else parse_size(context)
    if card is not None and card.total_bytes <= context_bytes:
        raise BadRequest(
            f"{card.name} has no room with a context of {context_bytes} bytes",
            "give a larger device or a smaller context",
        )
    return {
        "task": task, "is_card": card is not None, "device": card.name if card else "cpu",
        "total_bytes": card.total_bytes if card else None, "context_bytes": context_bytes if card else 0,
        "capability": card.capability if card else None, "processors": card.processors if card else None, "mode": mode,
        "steps": steps, "accumulate": accumulate, "dtype": None if dtype is None else str(dtype),
        "autocast": None if autocast is None else str(autocast), "ranks": ranks,
    }  # fmt: skip


def _card(device: str | int | Card) -> Card:
    if isinstance(device, Card):
        return device
    return Card(f"{device} bytes", device) if isinstance(device, int) else find_card(device)


def _made(answer: dict[str, Any], target: Any, request: dict[str, Any]) -> Estimate:
    from importlib.metadata import version

    name = target if isinstance(target, str) else getattr(target, "__qualname__", type(target).__name__)
    shared = {key: request[key] for key in ("mode", "device", "total_bytes", "context_bytes")}
    return Estimate(target=name, torch_version=version("torch"), **shared, **answer)


def _calling(build: Callable[..., Any]) -> _Maker:
    from hiwater.contrib.torch.estimate.worker import made_by_calling

    return made_by_calling(build)


def _ask_copy(make: Callable[[], _Maker], request: dict[str, Any]) -> Any:
    def work() -> Any:
        from hiwater.contrib.torch.estimate import worker

        return worker.settled_and_done(make, request)

    return ask_fork(work)
