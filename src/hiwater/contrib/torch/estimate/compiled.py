"""Runs what `torch.compile` makes of a model: dynamo splits it into graphs, inductor plans the buffers of each for the
card, and its programs run here with kernels that do nothing.

Dynamo reads the function's bytecode, as it does for a card: where it cannot follow (`print`, `.item()`, a branch on a
value, `torch._dynamo.graph_break()`) one graph ends, the line runs as it is written, and another graph begins.
AOTAutograd traces each on fake tensors; inductor's own passes choose what is kept for backward, fuse the operators, and
write the program that would run: requests, kernels, releases. All of it is executed but the kernels, so that the
tracker sees each request in its place. A graph that cannot be planned runs as it is written, and is said.

The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from traceback import walk_stack
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from hiwater.contrib.torch.estimate import arrivals, attention, unseen
from hiwater.contrib.torch.estimate.loops import progress
from hiwater.contrib.torch.estimate.tracker import StorageTracker

_CARD = torch.device("cuda:0")
_AS_PLANNED = (  # of `compiled…` in benchmarks/estimate_score
    "without CUDA graphs and tuning; five compiled programs on cards had the estimated allocated peak, to 0.001 %;"
    " four of them reserved up to 5 % more, and one 20 % less"
)
_NO_CARD = "PyTorch is not linked with support for cuda devices"
_lowering: list[None] = []
_KINDS = 1000  # of arguments, each of which is compiled


def install() -> None:
    """Compile for the card of `present_card` from now on."""
    torch.compile = _compile
    nn.Module.compile = lambda self, **options: _compile(self, **options) and None
    torch.cuda._DeviceGuard = lambda _: contextlib.nullcontext()


def _compile(
    function: Any = None, *, fullgraph: bool = False, backend: Any = "inductor", disable: bool = False, **_options: Any
) -> Any:
    """`torch.compile`. A module stays the same object, and gets another forward."""
    if function is None:
        return lambda given: _compile(given, fullgraph=fullgraph, backend=backend, disable=disable)
    if disable:
        return function
    if backend != "inductor":
        unseen.note_compiled(f"estimated as it is written, because only inductor is modelled, and not {backend!r}")
        return function
    if isinstance(function, nn.Module):
        part = function.module if isinstance(function, nn.parallel.DistributedDataParallel) else function
        part.forward = _Compiled(part.forward, fullgraph)
        return function
    return _Compiled(function, fullgraph)


def _place_of_the_user() -> str:
    frames = [frame for frame, _ in walk_stack(sys._getframe(1)) if frame.f_code.co_filename != __file__]
    return f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}"


class _Compiled:
    """A function that dynamo splits when it is first called with arguments of a kind."""

    def __init__(self, function: Callable[..., Any], is_whole: bool) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._is_whole = is_whole
        self._place = _place_of_the_user()
        self._planned = 0  # graphs

    @functools.cached_property
    def _split(self) -> Callable[..., Any]:
        try:
            _settle_dynamo()
        except (AttributeError, ImportError) as error:
            self._note_as_written(f"this torch's dynamo is another than the estimate knows: {error}")
            return self.function
        options = {"nopython": self._is_whole, "dynamic": False, "guard_filter_fn": _without_our_guards}
        split = torch._dynamo.optimize(self._program, **options)
        made: Callable[..., Any] = split(self.function)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        before, self._mode = self._planned, torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        with _without_hooks():
            result = self._split(*args, **kwargs)
        if not self._planned and self._split is not self.function:
            self._note_as_written("dynamo finds no graph in it, as in one whose loop it cannot follow")
        if self._planned > before:
            gc.collect()  # frames of the compiler, which hold the program's tensors
        return result

    def _program(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What runs for a graph of dynamo's: inductor's program or, if it cannot be planned, the graph as it is."""
        self._planned += 1
        try:
            planned = _planned(graph, inputs, self._mode)
        except Exception as error:  # noqa: BLE001 - of any part of torch
            why = f"it cannot be planned: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

            def program(*tensors: Any) -> Any:
                self._note_as_written(why)
                return graph(*tensors)

            return program

        def noted(*tensors: Any) -> Any:
            unseen.note_compiled(_AS_PLANNED)
            results = planned(*tensors)
            arrivals.computed(graph, tensors, results)
            return results

        return noted

    def _note_as_written(self, why: str) -> None:
        unseen.note_compiled(f"estimated as it is written at {self._place}, because {why}")


@functools.cache
def _settle_dynamo() -> None:
    """Let dynamo take the functions of the estimate for those of torch in whose place they are."""
    from torch._dynamo import config, trace_rules
    from torch._inductor import config as of_inductor
    from torch._inductor.fx_passes import reinplace

    folder = os.path.dirname(__file__)
    trace_rules.add(__package__)  # these are no functions of the user's
    trace_rules.get_mod_inlinelist().add(folder)
    for home in (torch, torch.Tensor, functional):
        for value in list(vars(home).values()):
            if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(folder):
                torch._dynamo.allow_in_graph(value)
    for mode in (FakeTensorMode, StorageTracker):
        mode.ignore_compile_internals = classmethod(lambda _: True)
    torch._dynamo.callback.on_compile_start(lambda _: _note_planning(True))
    torch._dynamo.callback.on_compile_end(lambda _: _note_planning(False))
    # It would copy between the card's fakes, which asks torch for a real card before any mode sees it.
    reinplace._inplace_generalized_scatter.__code__ = (lambda given, *_: given).__code__
    dispatch = _without_card(FakeTensorMode.__torch_dispatch__)
    FakeTensorMode.__torch_dispatch__ = torch._disable_dynamo(dispatch, recursive=True)
    of_inductor.compile_threads = 1  # else processes that load torch wait for kernels to compile, and there are none
    config.optimize_ddp = False
    config.suppress_errors = True  # what fails runs as it is written
    config.recompile_limit = config.accumulated_recompile_limit = _KINDS


def _note_planning(is_planning: bool) -> None:
    attention.is_traced = arrivals.is_planning = is_planning


def _without_card(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """A fake mode's, without a card: dynamo makes nothing there, and inductor's passes run on the host what asks torch
    for a real one."""

    def dispatched(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and arrivals.is_planning and not _lowering:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        try:
            return dispatch(self, function, types, args, kwargs)
        except RuntimeError as error:
            if not _lowering or _NO_CARD not in str(error):
                raise
        with self:
            result = function(*tree_map(_MovedFakes(self, "cpu").of, args), **kwargs)
        return args[0] if function._schema.is_mutable else tree_map(_MovedFakes(self, _CARD).of, result)

    return dispatched


def _without_our_guards(guards: Sequence[Any]) -> list[bool]:
    """Which guards count: what the estimate sets while it compiles is otherwise when the program runs."""
    return [__package__.replace(".", "_dot_") not in guard.name for guard in guards]


@contextlib.contextmanager
def _without_hooks() -> Iterator[None]:
    """Torch without the hooks on all modules, which dynamo would compile, too."""
    home = nn.modules.module
    hooks = [found for name, found in vars(home).items() if name.startswith("_global_") and isinstance(found, dict)]
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, old in zip(hooks, kept, strict=True):
            each.update(old)


def _planned(graph: fx.GraphModule, inputs: Sequence[Any], mode: FakeTensorMode) -> Callable[..., Any]:
    """The program of a graph."""
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    extra = compile_fx.create_compiler_config_extra(fx.GraphModule({}, fx.Graph()))

    def forward(graph: fx.GraphModule, inputs: Any, is_inference: bool) -> Any:
        return compile_fx.compile_fx_forward(
            graph, inputs, num_orig_model_outputs=count, num_example_inputs=len(inputs),
            compiler_config_extra=extra, inner_compile=functools.partial(_lowered, mode), is_inference=is_inference,
        )  # fmt: skip

    def backward(graph: fx.GraphModule, inputs: Any) -> Any:
        inner = functools.partial(_lowered, mode)
        return compile_fx.compile_fx_backward(graph, inputs, compiler_config_extra=extra, inner_compile=inner)

    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device("cpu"))
    graph.recompile()
    eager = config.patch(force_non_lazy_backward_lowering=True)
    count = len(tree_leaves(next(iter(graph.graph.find_nodes(op="output"))).args))
    with _compiling(), mode, eager, V.set_fake_mode(mode), tracing(TracingContext(mode)):
        given = [  # what is made for a program is kept as long as it is
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, requires_grad=one.requires_grad)
            for one in inputs
        ]
        program: Callable[..., Any] = aot_module_simplified(
            graph, given, functools.partial(forward, is_inference=False), backward, compile_fx.partition_fn,
            select_decomp_table(), keep_inference_input_mutations=True,
            inference_compiler=functools.partial(forward, is_inference=True),
        )  # fmt: skip
    return program


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Torch as it is while it compiles for the card, without the modes of the estimate."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import scheduler
    from torch.utils import _triton

    flags, forwards = torch.compiler, progress.forwards
    for name in ("current_device", "get_device_properties"):  # it may have been imported before the card was there
        setattr(CudaInterface, name, staticmethod(getattr(torch.cuda, name)))
    scheduler.has_triton = lambda *_: True
    _triton.triton_hash_with_backend = lambda: ""
    available, torch.cuda.is_available = torch.cuda.is_available, lambda: False  # nothing can be measured on it
    flags._is_compiling_flag = True
    _lowering.append(None)
    try:
        with _disable_current_modes():
            yield
    finally:
        flags._is_compiling_flag = False
        _lowering.pop()
        torch.cuda.is_available, progress.forwards = available, forwards


def _move(graph: fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Any]) -> list[Any]:
    """Move a graph and the values in it to the card, and return its inputs there.

    No operator runs on the card's fakes: some index, which asks torch for a real card."""
    from torch._inductor.compile_fx import fake_tensor_prop

    card = _MovedFakes(mode, _CARD)
    with torch.no_grad():
        fake_tensor_prop(graph, inputs, True)
    _set_devices(graph, _CARD)
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map(card.of, node.meta["val"])
    return [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]


def _set_devices(graph: fx.GraphModule, device: torch.device) -> None:
    def changed(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        node.args, node.kwargs = fx.node.map_aggregate(node.args, changed), fx.node.map_aggregate(node.kwargs, changed)


class _MovedFakes:
    """Fakes on another device. Those that share a storage do so there."""

    def __init__(self, mode: FakeTensorMode, device: Any) -> None:
        self._mode = mode
        self._device = torch.device(device)
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        with no_dispatch():
            if storage._cdata not in self._storages:
                made = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
                self._storages[storage._cdata] = made.untyped_storage()
            meta = torch.empty(0, dtype=value.dtype, device="meta")
            meta.set_(self._storages[storage._cdata], value.storage_offset(), value.shape, value.stride())
        return FakeTensor(self._mode, meta, self._device)


def _lowered(
    mode: FakeTensorMode, graph: fx.GraphModule, inputs: Sequence[Any], is_backward: bool = False,
    is_inference: bool = False, **_options: Any,
) -> Callable[[list[Any]], Any]:  # fmt: skip
    """The program that inductor writes for a graph."""
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    compile_fx.view_to_reshape(graph)
    on_card = _move(graph, mode, inputs)
    compile_fx._recursive_record_original_output_strides(graph)
    with DebugContext(), V.set_fake_mode(mode), compile_fx.maybe_disable_comprehensive_padding(on_card):
        compile_fx._recursive_post_grad_passes(graph, is_inference=is_inference)
        lowering = GraphLowering(graph, example_inputs=on_card, is_backward=is_backward, is_inference=is_inference)
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*on_card)
            _report_strides(lowering)
            source = lowering.codegen()[0].value
    program = _runnable(source, lowering.constants)
    with mode, torch.no_grad():
        program(list(inputs))  # here, where an error is one of the compiler
    return program


def _report_strides(lowering: Any) -> None:
    """Tell AOTAutograd how the results lie."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        for result in lowering.graph_outputs:
            is_tensor = hasattr(result, "layout") or hasattr(result, "get_stride")
            context.output_strides.append(tuple(map(int, result.get_stride())) if is_tensor else None)


class _ProgramNames(dict[str, Any]):
    """The names of a program. Its kernels do nothing, nor do its checks of shapes."""

    def __missing__(self, name: str) -> Any:
        if name.startswith(("triton_", "multi_kernel_")):
            return SimpleNamespace(run=_nothing)
        if name.startswith("assert_"):
            return _nothing
        raise KeyError(name)


def _nothing(*_arguments: Any, **_options: Any) -> None: ...


def _runnable(source: str, constants: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """The function that a program is, from its text."""
    from torch._inductor.select_algorithm import extern_kernels

    names = _ProgramNames(
        {
            "torch": torch, "device": torch.device, "aten": torch.ops.aten, "inductor_ops": torch.ops.inductor,
            "math": math, "inf": math.inf, "nan": math.nan, "extern_kernels": extern_kernels,
            "empty_strided_cuda": _empty, "empty_strided_cpu": _empty, "reinterpret_tensor": _part,
            "get_raw_stream": _nothing, **constants,
        }
    )  # fmt: skip
    for kernel in attention.KERNELS:  # the card's have working memory, which these show
        source = source.replace(f"torch.ops.aten.{kernel.operator}_backward.default", f"{kernel.operator}_backward")
        names[f"{kernel.operator}_backward"] = kernel.called_backward
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    call = next(node for node in functions if node.name == "call")
    # With the name of this file, its lines are none of the user's.
    exec(compile(ast.Module([call], []), __file__, "exec"), names)  # noqa: S102 - written by torch
    program = functools.partial(names["call"], None)
    program._boxed_call = True  # type: ignore[attr-defined]  # it releases its arguments itself
    return program


def _empty(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


def _part(tensor: torch.Tensor, shape: Any, stride: Any, offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
