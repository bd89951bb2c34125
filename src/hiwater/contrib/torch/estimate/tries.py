"""Changes that may lower a step's peak. Each is made to the step, which then runs: no figure of it is a guess."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hiwater.contrib.torch.estimate.processes import ask_fork
from hiwater.errors import BadRequest, HiwaterError

if TYPE_CHECKING:
    from torch import nn

    from hiwater.contrib.torch.estimate.result import EstimateTry
    from hiwater.contrib.torch.estimate.steps import Workload


class _Made(NamedTuple):
    """What was changed in a step, and what that costs."""

    change: str
    price: str


def checked(names: str | Sequence[str]) -> list[str]:
    """The names of changes in a list, or with commas between. "all" is each of them. Raises BadRequest."""
    given = filter(None, names.split(",")) if isinstance(names, str) else names
    found = [each for name in given for each in (CHANGES if name == "all" else (name,))]
    for part in (part for name in found for part in name.split("+")):
        if part not in CHANGES:
            raise BadRequest(f"{part!r} is not a change to try", f"choose from {', '.join(CHANGES)}, or all")
    return found


def tried(
    name: str, make: Callable[[int | None], Any], batch_size: int | None,
    estimate: Callable[[int | None, Callable[[Workload], None]], dict[str, Any]], before: dict[str, Any],
) -> EstimateTry:  # fmt: skip
    """The figures of the step with the changes of this name, compared with those of `before`; or why there are none."""

    def work() -> EstimateTry:
        parts, size, made = name.split("+"), batch_size, list[_Made]()
        if BATCH in parts:
            size, half = _half(make, batch_size)
            made.append(half)
        found = estimate(size, lambda job: made.extend(_OF_STEP[part](job) for part in parts if part != BATCH))
        return {
            "name": name,
            "change": ", ".join(each.change for each in made),
            "price": "; ".join(each.price for each in made),
            "peak_allocated_bytes": found["peak_allocated_bytes"],
            "peak_reserved_bytes": found["peak_reserved_bytes"],
            "difference_bytes": found["peak_allocated_bytes"] - before["peak_allocated_bytes"],
            "fits": found.get("fits"),
            "problem": None,
        }

    try:
        result: EstimateTry = ask_fork(work)
    except HiwaterError as error:  # of this change only
        result = {
            "name": name, "change": "", "price": "", "peak_allocated_bytes": None, "peak_reserved_bytes": None,
            "difference_bytes": None, "fits": None, "problem": "; ".join(filter(None, (error.problem, error.remedy))),
        }  # fmt: skip
    return result


# --- the changes ------------------------------------------------------------------------------------------------------


def _half(make: Callable[[int | None], Any], batch_size: int | None) -> tuple[int, _Made]:
    """Half of the batch: of the one asked for, or of the function's default."""
    if batch_size is None:
        parameter = inspect.signature(make).parameters.get("batch_size")
        batch_size = parameter.default if parameter is not None and isinstance(parameter.default, int) else None
    if batch_size is None:
        raise BadRequest(
            "the batch is not known", "name a function whose argument batch_size has a default, or give a batch"
        )
    if batch_size < 2:
        raise BadRequest("a batch of 1 has no half", "")
    half = batch_size // 2
    return half, _Made(f"batch of {half} instead of {batch_size}", "more steps, or gradients accumulated over them")


def _checkpointing(job: Workload) -> _Made:
    """By the model's own switch, as transformers has it, or around each block in its lists of modules."""
    _for_training(job)
    price = "runs the forward of what is checkpointed twice"
    owners = [part for module in job.modules for part in module.modules() if hasattr(part, _SWITCH)]
    if any(getattr(owner, "is_gradient_checkpointing", False) for owner in owners):
        raise BadRequest("checkpointing is on already", "")
    if owners and getattr(owners[0], "supports_gradient_checkpointing", True):
        getattr(owners[0], _SWITCH)({"use_reentrant": False})  # the outermost, which tells its parts
        return _Made(f"{type(owners[0]).__name__}.{_SWITCH}()", price)
    blocks = list({id(block): block for module in job.modules for block in _blocks(module)}.values())
    if not blocks:
        raise BadRequest(
            "no nn.Sequential or nn.ModuleList is in sight, so hiwater does not know the model's blocks",
            "call torch.utils.checkpoint.checkpoint around them in forward",
        )
    return _Made(_checkpoint_around(blocks), price + _of_statistics(blocks))


def _blocks(module: nn.Module, is_listed: bool = False) -> Iterator[nn.Module]:
    """The members of the outermost lists. A member that is a list of modules of one class, as a stage is, is no block,
    but has them."""
    from torch import nn

    is_stage = isinstance(module, nn.Sequential) and len({type(part) for part in module.children()}) == 1
    if is_listed and not is_stage and not isinstance(module, nn.ModuleList):
        yield module
        return
    for part in module.children():
        yield from _blocks(part, isinstance(module, (nn.Sequential, nn.ModuleList)))


def _checkpoint_around(blocks: list[nn.Module]) -> str:
    from torch.utils.checkpoint import checkpoint

    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    counts = Counter(type(block).__name__ for block in blocks)
    return "checkpoint() around " + ", ".join(f"{count} {name}" for name, count in counts.items())


def _of_statistics(blocks: list[nn.Module]) -> str:
    from torch.nn.modules.batchnorm import _BatchNorm

    has_statistics = any(isinstance(part, _BatchNorm) for block in blocks for part in block.modules())
    return "; BatchNorm updates its running statistics twice" if has_statistics else ""


def _bf16(job: Workload) -> _Made:
    import torch

    if job.autocast is not None:
        raise BadRequest(f"autocast is on already, in {job.autocast}", "")
    if all(parameter.dtype is torch.bfloat16 for parameter in job.parameters()):
        raise BadRequest("all parameters are in bfloat16 already", "")
    job.autocast = torch.bfloat16
    return _Made(
        "torch.autocast in bfloat16",
        "matrix products are less precise; parameters and optimizer state stay as they are",
    )


def _optimizer(job: Workload) -> _Made:
    """Without temporaries of the size of all parameters: fused where a card has such a kernel, otherwise by a loop."""
    from torch.optim import SGD, Adam, AdamW

    _for_training(job)
    changed = []
    for optimizer in job.optimizers:
        groups, options = optimizer.param_groups, optimizer.defaults
        if "foreach" not in options or all(g.get("fused") or g["foreach"] is False for g in groups):
            continue
        is_fused = isinstance(optimizer, (Adam, AdamW, SGD)) and "fused" in options and not options["differentiable"]
        option = {"fused": is_fused, "foreach": False} if "fused" in options else {"foreach": False}
        for group in (*groups, options):
            group.update(option)
        changed.append(f"{type(optimizer).__name__}({'fused=True' if is_fused else 'foreach=False'})")
    if not changed:
        raise BadRequest(
            "no optimizer in sight works on all parameters at once",
            "return it from the function",
        )
    is_slow = any("foreach" in each for each in changed)
    return _Made(", ".join(changed), "launches kernels for each parameter, which is slower" if is_slow else "none")


def _for_training(job: Workload) -> None:
    if not job.is_training:
        raise BadRequest("this changes nothing in inference", "")


_SWITCH = "gradient_checkpointing_enable"
_OF_STEP = {"checkpointing": _checkpointing, "bf16": _bf16, "optimizer": _optimizer}
BATCH = "batch"  # changed before the step is built
CHANGES = (*_OF_STEP, BATCH)
