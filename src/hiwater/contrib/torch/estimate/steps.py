"""Runs steps of training or inference on fake tensors, as a plain loop does, and passes the phases to the tracker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._guards import TracingContext
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map

from hiwater.contrib.torch.estimate.loops import LoopEnds, progress
from hiwater.contrib.torch.estimate.trace import NOWHERE, CodePlace
from hiwater.contrib.torch.estimate.tracker import StorageTracker
from hiwater.errors import BadRequest

_TYPES = {
    "fp32": torch.float32, "float32": torch.float32, "fp16": torch.float16, "float16": torch.float16,
    "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
}  # fmt: skip

_COUNTERS = ("step", "mu_product")  # of one number each, made on the host unless an optimizer is fused or capturable


class Workload:
    """The functions, inputs and optimizers of an estimate, with fake tensors. `notes` are the assumptions."""

    def __init__(
        self, function: Callable[..., Any], inputs: Any, optimizer: torch.optim.Optimizer | None,
        loss: Callable[..., Any] | None, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.function = function
        self.inputs = inputs
        self.optimizer = optimizer
        self.modules = [function] if isinstance(function, nn.Module) else []
        self.captured: list[torch.Tensor] = []  # in closures, globals and attributes of the functions
        self.optimizers = [optimizer] if optimizer is not None else []
        self.loss = loss
        self.is_training = options["mode"] == "train"
        self.steps = options["steps"]
        self.accumulate = options["accumulate"]
        self.autocast = _type_of(options["autocast"])
        self.device = "cpu"  # of autocast: fakes are on no other
        self.notes: list[str] = []
        self.backward_ran = self.optimizer_ran = False
        # Whether the function runs backward and the optimizer, and so drops gradients where it does.
        self.is_whole_step = False
        self._convert(_type_of(options["dtype"]))

    @property
    def module(self) -> nn.Module | None:
        return self.function if isinstance(self.function, nn.Module) else None

    def parameters(self) -> list[torch.Tensor]:
        """The parameters of modules and optimizers, each once."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        found = [p for module in self.modules for p in module.parameters()] + [p for g in groups for p in g["params"]]
        return list({id(parameter): parameter for parameter in found}.values())

    def named(self, kind: str) -> Iterator[tuple[str, Any]]:
        """`named_parameters`, `named_buffers` or `named_modules` of every module."""
        return (pair for module in self.modules for pair in getattr(module, kind)())

    def call(self) -> Any:
        if isinstance(self.inputs, Mapping):
            return self.function(**self.inputs)
        return self.function(*(self.inputs if isinstance(self.inputs, (tuple, list)) else (self.inputs,)))

    def call_once(self) -> Any:
        """The result of a call, or None if the function has a loop of its own, and enough of it has run."""
        progress.begin(self.steps)
        try:
            return self.call()
        except LoopEnds:
            return None

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _convert(self, dtype: torch.dtype | None) -> None:
        if dtype is None:
            return
        for module in self.modules:
            module.to(dtype)
        self.inputs = tree_map(
            lambda value: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value,
            self.inputs,
        )


def _type_of(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    if str(name).removeprefix("torch.") not in _TYPES:
        raise BadRequest(f"{name!r} is not a type for a step", f"choose one of {', '.join(_TYPES)}")
    return _TYPES[str(name).removeprefix("torch.")]


def run(job: Workload, tracker: StorageTracker, is_card: bool) -> None:
    """Track what exists before the first step, then run the steps of the job and track every storage of each phase."""
    tracker.drivers = frozenset({_train.__code__, _infer.__code__})
    with _noticed(job), _watched(job, tracker):
        _track_existing(job, tracker, is_card)
        tracker.is_recording = True
        if job.is_training:
            _train(job, tracker, is_card)
        else:
            _infer(job, tracker)
        tracker.is_recording = False


def run_really(job: Workload, device: str) -> None:
    """The same steps on real tensors, without the tracker and its hooks on modules and parameters."""
    job.device = device
    with _noticed(job):
        if job.is_training:
            _train(job, _Nobody(), False)
        else:
            _infer(job, _Nobody())


class _Nobody:
    """Stands for the tracker where nothing is tracked."""

    def begin(self, step: int, phase: str) -> None: ...

    def track(self, tensor: torch.Tensor, category: str = "", place: CodePlace | None = None) -> None: ...


def _track_existing(job: Workload, tracker: StorageTracker, is_card: bool) -> None:
    for tensor, category, place in _existing(job):
        if category != "inputs" or not any(tracker.trace.storages[n].category for n in tracker.number_of(tensor)):
            tracker.track(tensor, category, place)
    for optimizer in job.optimizers:
        _track_optimizer_state(job, optimizer, tracker, is_card)


def _existing(job: Workload) -> Iterator[tuple[torch.Tensor, str, CodePlace]]:
    names = {id(parameter): name for name, parameter in job.named("named_parameters")}
    for parameter in job.parameters():
        place = NOWHERE._replace(module=names.get(id(parameter), "").rpartition(".")[0])
        yield parameter, "parameters", place
        if parameter.grad is not None:
            yield parameter.grad, "gradients", place
    for name, buffer in job.named("named_buffers"):
        yield buffer, "buffers", NOWHERE._replace(module=name.rpartition(".")[0])
    for tensor in (*_tensors(job.inputs), *job.captured):
        yield tensor, "inputs", NOWHERE


def _train(job: Workload, tracker: StorageTracker | _Nobody, is_card: bool) -> None:
    output = loss = None
    for module in job.modules:
        module.train()
    for step in range(1, job.steps + 1):
        tracker.begin(step, "forward")
        job.optimizer_ran = False
        if not job.is_whole_step:
            _forget_gradients(job)
        for _ in range(job.accumulate):
            tracker.begin(step, "forward")
            job.backward_ran = False
            # As in a plain loop, the output and loss of the last turn live until this turn assigns their names.
            with torch.autocast(job.device, job.autocast) if job.autocast else nullcontext():
                output = job.call_once()
                job.is_whole_step = job.backward_ran and (job.optimizer_ran or job.optimizer is None)
                loss = None if job.backward_ran else _loss(job, output)
            if loss is not None:
                loss.backward()
        if job.optimizer is not None and not job.optimizer_ran:
            job.optimizer.step()
        for optimizer in job.optimizers:
            _track_optimizer_state(job, optimizer, tracker, is_card)
        if progress.is_enough:
            break
    del output, loss


def _infer(job: Workload, tracker: StorageTracker | _Nobody) -> None:
    output = None
    for module in job.modules:
        module.eval()
    for step in range(1, job.steps + 1):
        tracker.begin(step, "forward")
        with torch.no_grad(), torch.autocast(job.device, job.autocast) if job.autocast else nullcontext():
            output = job.call_once()
    del output


def _forget_gradients(job: Workload) -> None:
    for parameter in job.parameters():
        parameter.grad = None


def _loss(job: Workload, output: Any) -> torch.Tensor | None:
    """The loss for backward; None if the function ran backward itself. Raises BadRequest."""
    if job.loss is not None:
        loss: Any = job.loss(output, job.inputs) if _takes_two(job.loss) else job.loss(output)
    elif isinstance(output, torch.Tensor) and output.dim() == 0:
        loss = output
    else:
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is None:
            tensors = [value for value in _tensors(output) if value.is_floating_point() and value.requires_grad]
            job.note("no loss was given: the sum of the outputs stands for it, and a real one needs more")
            loss = sum(tensor.sum() for tensor in tensors) if tensors else None
    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        raise BadRequest(
            f"there is nothing to run backward from: the loss is {_described(loss)}",
            "return a tensor that requires a gradient, give a loss, or ask for inference",
        )
    return loss


def _takes_two(function: Callable[..., Any]) -> bool:
    if isinstance(function, nn.Module):
        function = function.forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) == 2


def _described(value: object) -> str:
    if value is None:
        return "missing, as no output requires a gradient"
    return "a tensor without a gradient" if isinstance(value, torch.Tensor) else type(value).__name__


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, Mapping, type)):
        value = [value, *vars(value).values()]
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


# --- hooks for the tracker -------------------------------------------------------------------------------------------


@contextmanager
def _noticed(job: Workload) -> Iterator[None]:
    """A context that notices if the function runs backward or an optimizer itself."""

    def optimizer_begins(*_: Any) -> None:
        job.optimizer_ran = True

    def noticed(function: Callable[..., Any]) -> Callable[..., Any]:
        def in_backward(*arguments: Any, **options: Any) -> Any:
            job.backward_ran = True
            return function(*arguments, **options)

        return in_backward

    hook = register_optimizer_step_pre_hook(optimizer_begins)
    try:
        with _autograd_as(noticed):
            yield
    finally:
        hook.remove()


@contextmanager
def _autograd_as(changed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    backward, gradient = torch.autograd.backward, torch.autograd.grad
    torch.autograd.backward, torch.autograd.grad = (
        _unless_traced(each, changed(each)) for each in (backward, gradient)
    )
    try:
        yield
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, gradient


def _unless_traced(function: Callable[..., Any], changed: Callable[..., Any]) -> Callable[..., Any]:
    """The changed function, but for a compiler that traces backward by it: that is none of the program's."""

    def called(*arguments: Any, **options: Any) -> Any:
        return (function if TracingContext.try_get() else changed)(*arguments, **options)

    return called


@contextmanager
def _watched(job: Workload, tracker: StorageTracker) -> Iterator[None]:
    """A context with hooks for the start and end of modules, for backward, gradients and optimizers, whatever code
    calls them."""
    names = {id(part): name for name, part in job.named("named_modules")}
    own_name = type(job.module).__name__ if job.module else ""
    hooks = nn.modules.module
    taken = [
        hooks.register_module_forward_pre_hook(
            lambda part, _: _enter(tracker, names.get(id(part)) or own_name or type(part).__name__)
        ),
        hooks.register_module_forward_hook(lambda *_: _leave(tracker), always_call=True),
        register_optimizer_step_pre_hook(lambda o, *_: _optimizer_begins(o, job, tracker)),
        register_optimizer_step_post_hook(lambda *_: _change_phase(tracker, "after")),
    ]
    taken += [
        parameter.register_post_accumulate_grad_hook(lambda leaf: _track_gradient(leaf, tracker))
        for parameter in job.parameters()
        if parameter.requires_grad
    ]
    try:
        with _autograd_as(lambda function: _as_phase(function, tracker)):
            yield
    finally:
        for hook in taken:
            hook.remove()


def _enter(tracker: StorageTracker, name: str) -> None:
    progress.forwards += 1
    if tracker.phase == "after" and not tracker.modules:
        _change_phase(tracker, "forward")
    tracker.modules.append(name)


def _leave(tracker: StorageTracker) -> None:
    if tracker.modules:
        tracker.modules.pop()


def _as_phase(function: Callable[..., Any], tracker: StorageTracker) -> Callable[..., Any]:
    def in_backward(*arguments: Any, **options: Any) -> Any:
        progress.backwards += 1
        step, before = tracker.trace.phase_starts[-1].step, tracker.phase
        if before != "backward":  # a nested backward, as of a checkpoint, is part of the outer one
            _call_activations(tracker)
        tracker.begin(step, "backward")
        try:
            return function(*arguments, **options)
        finally:
            tracker.begin(step, before if before == "backward" else "after")

    return in_backward


def _call_activations(tracker: StorageTracker) -> None:
    """Call the forward's storages that exist at the start of backward activations: they are kept for backward, or by
    a variable."""
    for number in tracker.alive():
        storage = tracker.trace.storages[number]
        if storage.phase == "forward" and not storage.category:
            storage.category = "activations"


def _track_gradient(parameter: torch.Tensor, tracker: StorageTracker) -> None:
    if parameter.grad is not None and tracker.is_recording:
        tracker.track(parameter.grad, "gradients")


def _optimizer_begins(optimizer: torch.optim.Optimizer, job: Workload, tracker: StorageTracker) -> None:
    if all(optimizer is not known for known in job.optimizers):
        job.optimizers.append(optimizer)
    progress.step(optimizer)
    _change_phase(tracker, "optimizer")


def _change_phase(tracker: StorageTracker, phase: str) -> None:
    tracker.begin(tracker.trace.phase_starts[-1].step, phase)


def _track_optimizer_state(
    job: Workload, optimizer: torch.optim.Optimizer, tracker: StorageTracker | _Nobody, is_card: bool
) -> None:
    """Track the optimizer's state under the module's name. Its step counters usually stay on the host, even with a
    card."""
    modules = {id(parameter): name.rpartition(".")[0] for name, parameter in job.named("named_parameters")}
    for group in optimizer.param_groups:
        counts_on_host = is_card and not group.get("fused") and not group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            place = NOWHERE._replace(module=modules.get(id(parameter), ""))
            for name, value in state.items():
                for tensor in _tensors(value):
                    is_host = counts_on_host and name in _COUNTERS
                    tracker.track(tensor, "host" if is_host else "optimizer state", place)
