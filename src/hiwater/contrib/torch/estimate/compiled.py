"""Runs what `torch.compile` makes of a model: inductor plans the buffers for the card, and its program runs here with
kernels that do nothing.

AOTAutograd traces the function on fake tensors; inductor's own passes choose what is kept for backward, fuse the
operators, and write the program that would run: requests, kernels, releases. All of it is executed but the kernels, so
that the tracker sees each request in its place. Dynamo, which reads bytecode, is left out: the function is taken for
one graph. What cannot be traced or planned runs as it is written, and is said.

The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from hiwater.contrib.torch.estimate import attention, unseen
from hiwater.contrib.torch.estimate.fakes import Fakes
from hiwater.contrib.torch.estimate.loops import progress
from hiwater.contrib.torch.estimate.one_device import Importing

_CARD = torch.device("cuda:0")
_TENSOR = object()  # in the place of one
_ONE_GRAPH = (  # of `compiled…` in benchmarks/estimate_score
    "taken for one graph, without CUDA graphs and tuning; of five compiled programs on cards four had the estimated"
    " peak, and one, which dynamo splits, 6 % less"
)
_PLAIN = (int, float, bool, str, type(None))


def install() -> None:
    """Compile for the card of `present_card` from now on."""
    torch.compile = _compile
    nn.Module.compile = lambda self, **options: _compile(self, **options) and None
    torch.cuda._DeviceGuard = lambda _: contextlib.nullcontext()


def _compile(function: Any = None, *, backend: Any = "inductor", disable: bool = False, **_options: Any) -> Any:
    """`torch.compile`. A module stays the same object, and gets another forward."""
    if function is None:
        return lambda given: _compile(given, backend=backend, disable=disable)
    if disable:
        return function
    if backend != "inductor":
        unseen.note_compiled(f"estimated as it is written, because only inductor is modelled, and not {backend!r}")
        return function
    if isinstance(function, nn.Module):
        function.forward = _Compiled(function.forward)
        return function
    return _Compiled(function)


def _place_of_the_user() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"


class _Compiled:
    """A function that is compiled when it is first called with arguments of a kind."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._place = _place_of_the_user()
        self._programs: dict[Any, tuple[Callable[..., Any] | None, str]] = {}  # and how it is estimated

    @functools.cached_property
    def _modules(self) -> list[nn.Module]:
        reached = Fakes()
        reached.of(self.function)
        return reached.modules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.function(*args, **kwargs)
        call = _Call(self.function, self._modules, args, kwargs)
        tensors = call.tensors
        if call.kind not in self._programs:
            self._programs[call.kind] = self._program(call)
        program, how = self._programs[call.kind]
        unseen.note_compiled(how)
        return self.function(*args, **kwargs) if program is None else program(*tensors)

    def _program(self, call: _Call) -> tuple[Callable[..., Any] | None, str]:
        try:
            return _planned(call), _ONE_GRAPH
        except Exception as error:  # noqa: BLE001 - of any part of torch, or of the user's code
            why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            return None, f"estimated as it is written at {self._place}, because it cannot be planned: {why}"


class _Call(nn.Module):  # type: ignore[misc]  # torch is untyped where types are checked
    """A call of a function with what it reaches: parameters and buffers of modules are arguments, too, as dynamo makes
    them."""

    def __init__(self, function: Callable[..., Any], modules: list[nn.Module], args: Any, kwargs: Any) -> None:
        super().__init__()
        self.function = function
        parts = [part for module in modules for part in module.modules()]
        homes = [home for part in parts for home in (part._parameters, part._buffers)]
        self._owned = [(home, name, tensor) for home in homes for name, tensor in home.items() if tensor is not None]
        self._leaves, self._spec = tree_flatten((args, kwargs))
        given = (*(tensor for *_, tensor in self._owned), *self._leaves)
        self.tensors = list({id(one): one for one in given if isinstance(one, torch.Tensor)}.values())
        self._results: tuple[list[Any], TreeSpec] | None = None
        self.kind = (
            tuple((one.shape, one.stride(), one.dtype, one.requires_grad) for one in self.tensors),
            tuple(one if isinstance(one, _PLAIN) else type(one) for one in self._leaves),
            tuple(part.training for part in parts),
            torch.is_grad_enabled(), torch.is_autocast_cpu_enabled() and torch.get_autocast_dtype("cpu"),
        )  # fmt: skip

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Call the function with these in the place of its own; return the tensors of its result."""
        new = dict(zip(map(id, self.tensors), tensors, strict=True))
        args, kwargs = tree_unflatten([new.get(id(one), one) for one in self._leaves], self._spec)
        try:
            for home, name, tensor in self._owned:
                home[name] = new[id(tensor)]
            with Importing():
                leaves, spec = tree_flatten(self.function(*args, **kwargs))
        finally:
            for home, name, tensor in self._owned:
                home[name] = tensor
        if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
            raise TypeError("it returns other things than tensors")
        self._results = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def forget(self) -> None:
        """Release what was given: its program stays."""
        self.tensors, self._owned, self._leaves = [], [], []

    def count_of_results(self) -> int:
        """The number of tensors in the result."""
        return self._results[0].count(_TENSOR) if self._results else 0

    def result(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the function returns, with these tensors in it."""
        assert self._results is not None, "it was traced"
        leaves, spec = self._results
        rest = iter(tensors)
        return tree_unflatten([next(rest) if leaf is _TENSOR else leaf for leaf in leaves], spec)


def _planned(call: _Call) -> Callable[..., Any]:
    """The program of a call."""
    from torch._functorch import config
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    mode = call.tensors[0].fake_mode
    extra = compile_fx.create_compiler_config_extra(fx.GraphModule({}, fx.Graph()))

    def forward(graph: fx.GraphModule, inputs: Any, is_inference: bool) -> Any:
        return compile_fx.compile_fx_forward(
            graph, inputs, num_orig_model_outputs=call.count_of_results(), num_example_inputs=len(inputs),
            compiler_config_extra=extra, inner_compile=functools.partial(_lowered, mode), is_inference=is_inference,
        )  # fmt: skip

    def backward(graph: fx.GraphModule, inputs: Any) -> Any:
        inner = functools.partial(_lowered, mode)
        return compile_fx.compile_fx_backward(graph, inputs, compiler_config_extra=extra, inner_compile=inner)

    eager = config.patch(force_non_lazy_backward_lowering=True)
    with _compiling(), mode, eager, V.set_fake_mode(mode), tracing(TracingContext(mode)):
        given = [  # what is made for a program is kept as long as it is
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, requires_grad=one.requires_grad)
            for one in call.tensors
        ]
        program = aot_module_simplified(
            call, given, functools.partial(forward, is_inference=False), backward, compile_fx.partition_fn,
            select_decomp_table(), keep_inference_input_mutations=True,
            inference_compiler=functools.partial(forward, is_inference=True),
        )  # fmt: skip
    call.forget()
    return lambda *tensors: call.result(program(*tensors))


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
    flags._is_compiling_flag = attention.is_traced = True
    try:
        with _disable_current_modes():
            yield
    finally:
        flags._is_compiling_flag = attention.is_traced = False
        torch.cuda.is_available, progress.forwards = available, forwards


def _move(graph: fx.GraphModule, mode: FakeTensorMode, inputs: Sequence[Any]) -> list[Any]:
    """Move a graph and the values in it to the card, and return its inputs there.

    No operator runs on the card's fakes: some index, which asks torch for a real card."""
    from torch._inductor.compile_fx import fake_tensor_prop

    card = _CardFakes(mode)
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


class _CardFakes:
    """Fakes on the card. Those that share a storage on the host do so there."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
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
        return FakeTensor(self._mode, meta, _CARD)


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
    call = next(
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "call"
    )
    # With the name of this file, its lines are none of the user's.
    exec(compile(ast.Module([call], []), __file__, "exec"), names)  # noqa: S102 - written by torch
    program = functools.partial(names["call"], None)
    program._boxed_call = True  # type: ignore[attr-defined]  # it releases its arguments itself
    return program


def _empty(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)


def _part(tensor: torch.Tensor, shape: Any, stride: Any, offset: int) -> torch.Tensor:
    return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
