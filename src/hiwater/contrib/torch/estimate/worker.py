"""The process of an estimate: it builds the step with fake tensors, runs it, and writes the result as JSON to a pipe.

It is a new interpreter (`python -m hiwater.contrib.torch.estimate.worker FD < request`), or a fork if live objects were
given. It may change torch, and never uses a card.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any

from hiwater.contrib.torch.estimate import tries
from hiwater.contrib.torch.estimate.hidden import Source
from hiwater.contrib.torch.estimate.processes import ask_fork, send
from hiwater.errors import BadRequest, NotFound, NotRunnable

Maker = Callable[[int | None], tuple[Any, ...]]
_earlier: list[weakref.ref[Any]] = []
"""The tensors from before the first step, which the collector no longer traverses."""


def main(descriptor: int) -> None:
    """Answer the request on stdin. Output of the user's code goes to stderr: stdout is for the caller's data."""
    request = json.load(sys.stdin)
    os.dup2(2, 1)
    send(descriptor, lambda: settled_and_done(lambda: _made_by(request), request))


def settled_and_done(make: Callable[[], Maker], request: Mapping[str, Any]) -> Any:
    """The result of the request. Changes torch in this process, unless the step is measured on a card."""
    from hiwater.contrib.torch.estimate import (
        card_kernels,
        compiled,
        cpu_kernels,
        graphs,
        loops,
        on_card,
        one_device,
        present_card,
        ranks,
        recurrent,
        unseen,
    )
    from hiwater.contrib.torch.estimate.cards import Processors

    if request["task"] == "measure":
        return on_card.measured(make, request)
    one_device.settle()
    if request["is_card"]:
        present_card.install(request)
        graphs.install()
    ranks.install(request["ranks"])
    if request["is_card"]:
        card_kernels.install(tuple(request["capability"]))
        compiled.install()
        recurrent.install(Processors(*request["processors"]))
    else:
        cpu_kernels.install()
        unseen.install()
    loops.install()
    made = make()
    if request["mode"] == "train":
        _earlier.extend(map(weakref.ref, _tensors()))
    gc.freeze()  # torch has many objects, none of which the collector has to traverse again
    if request["task"] == "largest_batch":
        return _largest_batch(made, request)
    size = request["batch_size"]
    if not request["tries"]:
        return estimate_once(made, request, size)
    # Each in a copy of its own, as an estimate leaves its fakes and changes in the user's objects.
    once = functools.partial(estimate_once, made, request)
    found = ask_fork(lambda: once(size))
    return found | {"tries": [tries.tried(name, made, size, once, found) for name in request["tries"]]}


def _largest_batch(make: Maker, request: Mapping[str, Any]) -> dict[str, Any]:
    from hiwater.contrib.torch.estimate.batch import Probe, search

    estimates: dict[int, dict[str, Any]] = {}
    available = request["total_bytes"] - request["context_bytes"]

    def probe(batch_size: int) -> Probe:
        estimates[batch_size] = found = estimate_once(make, request, batch_size)
        return Probe(batch_size, found["needed_bytes"], found["fits"] is not False)

    size, probes, is_bounded = search(probe, available, request["multiple_of"], request["largest"])
    tried = list(map(astuple, probes))
    return {"batch_size": size, "probes": tried, "is_bounded": is_bounded, "estimate": estimates.get(size)}


def estimate_once(
    make: Maker, request: Mapping[str, Any], batch_size: int | None, change: Callable[[Any], None] | None = None
) -> dict[str, Any]:
    """Build the step, change it, run it, and compute its figures: those of an Estimate except the fields of the
    request."""
    from hiwater.contrib.torch.estimate import (
        convolutions,
        cpu_kernels,
        failures,
        figures,
        kernel_buffers,
        loops,
        one_device,
        ranks,
        recurrent,
        steps,
        unseen,
    )
    from hiwater.contrib.torch.estimate.fakes import Fakes
    from hiwater.contrib.torch.estimate.tracker import StorageTracker

    unseen.forget()
    recurrent.forget()
    ranks.forget()
    loops.progress.notes = []
    tracker = StorageTracker()
    tracker.begin(0, "before")
    tracker.hidden = _hidden_on_card(request) if request["is_card"] else [cpu_kernels.hidden]
    tracker.enlarge = kernel_buffers.enlarge if request["is_card"] else None
    with failures.explained(), _fake_mode(), tracker:
        fakes = Fakes()
        with one_device.Numbered():
            made = make(batch_size)
        function, inputs, optimizer, loss = fakes.of(made)
        del made
        one_device.settle_libraries()
        job = steps.Workload(function, inputs, optimizer, loss, request)
        job.modules += [module for module in fakes.modules if module not in job.modules]
        job.optimizers += [one for one in fakes.optimizers if one not in job.optimizers]
        job.captured = fakes.tensors
        if change is not None:
            change(job)
        steps.run(job, tracker, request["is_card"])
        parameters = sum(parameter.numel() for parameter in job.parameters())
        job.notes += _note_on_unowned(job)
    notes = [*job.notes, *loops.progress.notes, *_note_on_reads(tracker), *unseen.splits(), *tracker.contents.notes]
    notes += [*ranks.notes(request["ranks"]), *_notes_on(job, request["is_card"])]
    trace, is_training = tracker.trace, job.is_training
    del job, fakes, function, inputs, optimizer, loss, tracker
    gc.collect()
    found = figures.figures(trace, request["is_card"])
    if request["total_bytes"] is not None:
        available = request["total_bytes"] - request["context_bytes"]
        found |= figures.verdict(trace, found["peak_reserved_bytes"], found["peak_allocated_bytes"], available)
    found |= figures.most(trace, request["is_card"])
    found["low_because"] = unseen.reasons(is_training=is_training)
    has_convolutions = any(each.most and each.category != ranks.BUCKETS for each in trace.storages)
    if has_convolutions:
        found["low_because"] += convolutions.reasons()
    is_doubtful = found["most_reserved_bytes"] is not None and found.get("fits")
    if is_doubtful and not figures.runs_with(trace, available, is_most=True):
        what = "convolutions may need workspaces" if has_convolutions else "DDP may hold its first buckets for longer"
        found["low_because"].append(f"{what}, for which there is no room")
    if found["low_because"] and found.get("fits"):
        # Figures that are too low can only show that the step does not fit.
        found["fits"] = found["fits_only_by_retrying"] = None
    return {**found, "parameters": parameters, "notes": notes, "batch_size": batch_size}


def _hidden_on_card(request: Mapping[str, Any]) -> list[Source]:
    from hiwater.contrib.torch.estimate import convolutions, kernel_buffers, reductions, shard_kernels
    from hiwater.contrib.torch.estimate.cards import Processors
    from hiwater.contrib.torch.estimate.workspaces import Workspaces, copies

    workspaces = Workspaces(tuple(request["capability"]), os.environ)
    processors = Processors(*request["processors"])
    kernels = [functools.partial(each.buffers, processors) for each in (reductions, kernel_buffers, shard_kernels)]
    return [copies, workspaces.made_by, *kernels, functools.partial(convolutions.workspaces, processors)]


@functools.cache
def _fake_mode() -> Any:
    """The only fake mode of this process: tensors of two modes do not mix, and a model may be built once for several
    batches."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def _tensors() -> list[Any]:
    """All that the collector traverses."""
    import torch

    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


def _note_on_unowned(job: Any) -> list[str]:
    """What a backward gave gradients to, although it belongs to no module, optimizer or input that is known."""
    if not job.is_training:
        return []
    known = {id(tensor) for tensor in (*job.parameters(), *job.captured)}
    alive = [*_tensors(), *(one for each in _earlier if (one := each()) is not None)]
    copies = [one for one in alive if getattr(one, "fake_mode", None) not in (None, _fake_mode())]  # of a compiler
    known |= set(map(id, copies))
    tensors = [one for one in alive if id(one) not in known]
    unowned = [one for one in tensors if one.is_leaf and one.requires_grad and one.grad is not None]
    size = sum(one.untyped_storage().nbytes() for one in unowned)
    if not size:
        return []
    note = (
        f"backward reaches {size:,} bytes of tensors of no module or optimizer in sight, which may be counted late:"
        " return their module"
    )
    return [note]


def _note_on_reads(tracker: Any) -> list[str]:
    from hiwater.contrib.torch.estimate import unseen
    from hiwater.contrib.torch.estimate.contents import NUMBER

    if not tracker.reads:
        return []
    return [f"computed numbers are read at {unseen.listed(tracker.reads)}: {NUMBER} stands for each, 1 for a count"]


def _notes_on(job: Any, is_card: bool) -> list[str]:
    from torch import nn

    parts = [part for _, part in job.named("named_modules")]
    notes = []
    if (
        not job.is_training
        and is_card
        and any(isinstance(part, (nn.TransformerEncoderLayer, nn.MultiheadAttention)) for part in parts)
    ):
        notes.append("torch's fused inference path for encoder layers is off here: with it the step may need less")
    if not job.is_training and any(isinstance(part, nn.TransformerEncoder) for part in parts):
        notes.append(
            "with a padding mask torch may leave padded positions out, which is not done here: with it the step needs"
            " less"
        )
    return notes


# --- the function that the command line names -------------------------------------------------------------------------


def _made_by(request: Mapping[str, Any]) -> Maker:
    """The function that the request names, wrapped: it takes a batch size and returns all four parts."""
    from hiwater.contrib.torch.estimate import failures, one_device

    with failures.explained(is_import=True), one_device.Importing(), one_device.Numbered():
        home = _loaded(request["kind"], request["path"])
    thing: Any = home
    for part in request["function"].split("."):
        if not hasattr(thing, part):
            raise NotFound(f"{request['path']!r} has no {request['function']!r}", f"name one of {_choices(home)}")
        thing = getattr(thing, part)
    if not callable(thing):
        raise NotRunnable(
            f"{request['function']!r} in {request['path']!r} is a {type(thing).__name__} and cannot be called",
            "give a function that returns (module, inputs)",
        )
    return made_by_calling(thing)


def _loaded(kind: str, path: str) -> Any:
    import importlib
    import importlib.util

    if kind == "module":
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
                raise NotFound(f"there is no module {path!r}", "give a module that python -m would find") from error
            raise
    if not os.path.isfile(path):
        raise NotFound(f"there is no file {path!r}", "give the path of a script, as script.py:function")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise NotRunnable(f"{path!r} is not a Python file", "give the path of a script that ends in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def _choices(home: Any) -> str:
    own = getattr(home, "__name__", "")
    names = [name for name, value in vars(home).items() if callable(value) and getattr(value, "__module__", "") == own]
    return ", ".join(names) or "the functions that it defines"


def made_by_calling(build: Callable[..., Any]) -> Maker:
    """A function that calls `build`, with `batch_size` if one is given, and checks the result."""

    @functools.wraps(build)  # its signature
    def make(batch_size: int | None) -> tuple[Any, ...]:
        if batch_size is None:
            return _four_parts(build(), build)
        if not _takes_batch_size(build):
            raise BadRequest(
                f"{_name(build)} takes no batch_size", "give it an argument named batch_size, which the inputs follow"
            )
        return _four_parts(build(batch_size=batch_size), build)

    return make


def _takes_batch_size(build: Callable[..., Any]) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        parameters = inspect.signature(build).parameters
        return "batch_size" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return False


def _four_parts(made: Any, build: Callable[..., Any]) -> tuple[Any, ...]:
    from torch.optim import Optimizer

    if not isinstance(made, (tuple, list)) or not 2 <= len(made) <= 4 or not callable(made[0]):
        returned = f"{len(made)} parts" if isinstance(made, (tuple, list)) else f"a {type(made).__name__}"
        raise BadRequest(
            f"{_name(build)} returns {returned}",
            "return (module, inputs), (module, inputs, optimizer) or (module, inputs, optimizer, loss)",
        )
    function, inputs, *rest = made
    optimizer = next((part for part in rest if isinstance(part, Optimizer)), None)
    others = [part for part in rest if part is not None and part is not optimizer]
    if len(others) > 1 or not all(callable(part) for part in others):
        raise BadRequest(
            f"{_name(build)} returns a {type(others[-1]).__name__} where an optimizer or a loss was expected",
            "return a torch.optim.Optimizer and a function of the output",
        )
    return function, inputs, optimizer, others[0] if others else None


def _name(function: Any) -> str:
    return f"{getattr(function, '__qualname__', type(function).__name__)}()"


if __name__ == "__main__":
    main(int(sys.argv[1]))
