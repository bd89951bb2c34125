"""Native LSTM, GRU and RNN as cuDNN runs them, with its reserve and workspace, and weights in one flat buffer.

Which requests are made, and in which order, is that of `_cudnn_rnn`, `_cudnn_rnn_backward_input` and
`_cudnn_rnn_backward_weight` in `aten/src/ATen/native/cudnn/RNN.cpp`. What cuDNN itself asks for is not documented:
the formulas of `Network` are those that the requests to cuDNN 9.19 on an H100 obey.
The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hiwater.contrib.torch.estimate import arrivals, unseen
from hiwater.contrib.torch.estimate.cards import Processors

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_STREAM_BYTES = 8 * 2**20  # of the workspace for each layer and direction
_CHUNK = 256  # steps whose gates exist at once, with one direction
_GENERATOR_BYTES = 24  # of a thread, for dropout
_ALIGNMENT = 32


class _Terms(NamedTuple):
    """How often a workspace has room for a number of each step, and of each layer's state, with one direction and with
    two. Steps of a backward: with one layer, and with several."""

    forward_steps: tuple[int, int] | None
    forward_states: tuple[int, int]
    backward_steps: tuple[tuple[int, int], tuple[int, int]]
    backward_states: tuple[int, int]


# Up to this hidden size, weights stay in the multiprocessors, except in bfloat16. Then more steps exist at once.
_STAYS = {"lstm": 128, "gru": 128, "rnn": 384}
_STAYING = {
    "lstm": _Terms((21, 30), (8, 18), ((15, 16), (18, 20)), (12, 26)),
    "gru": _Terms((16, 24), (4, 10), ((17, 18), (20, 22)), (6, 14)),
    "rnn": _Terms((6, 12), (4, 10), ((12, 13), (15, 17)), (6, 14)),
}
_OTHERS = {
    "lstm": _Terms(None, (10, 24), ((3, 2), (6, 8)), (11, 26)),
    "gru": _Terms(None, (5, 14), ((3, 2), (6, 8)), (5, 14)),
    "rnn": _Terms(None, (3, 10), ((3, 2), (6, 8)), (5, 14)),
}

_state_of_dropout: list[torch.Tensor] = []


class Network(NamedTuple):
    """The sizes of a call. All figures of its methods are bytes."""

    kind: str
    inputs: int
    hidden: int
    layers: int
    directions: int
    batch: int
    length: int
    dtype: torch.dtype
    dropout: float

    @property
    def gates(self) -> int:
        return _GATES[self.kind]

    @property
    def steps(self) -> int:
        """Of one number for each step, row and hidden unit."""
        return self.batch * self.length * self.hidden * int(self.dtype.itemsize)

    def weights(self, *, with_bias: bool = True) -> int:
        """Of the flat buffer, which has room for biases in any case."""
        rows = self.gates * self.hidden * self.directions
        columns = self.inputs + (self.layers - 1) * self.directions * self.hidden + self.layers * self.hidden
        return rows * (columns + (2 * self.layers if with_bias else 0)) * int(self.dtype.itemsize)

    def reserve(self) -> int:
        """What backward needs: gates (and cells) of each layer, outputs between layers, masks of dropout."""
        kept = {"lstm": 5, "gru": 6}.get(self.kind, 1) * self.layers + self.layers - 1
        mask = self.batch * self.length * self.hidden * self.directions**2 // 8 if self.dropout else 0
        return kept * self.directions * self.steps + (self.layers - 1) * _aligned(mask) + 256

    def workspace(self, *, is_training: bool) -> int:
        """For weights without biases, inputs, gates and states. That of training is the larger one of both passes."""
        fixed = _STREAM_BYTES * self.layers * self.directions + self.weights(with_bias=False) + 256
        forward = self._of_forward() + (self.steps if self.dropout and is_training and self.directions == 1 else 0)
        return fixed + (max(forward, self._of_backward()) if is_training else forward)

    @property
    def _terms(self) -> _Terms:
        kind = self.kind.partition("_")[0]
        stays = self.hidden <= _STAYS[kind] and self.dtype != torch.bfloat16
        return (_STAYING if stays else _OTHERS)[kind]

    @property
    def _state(self) -> int:
        return self.batch * self.hidden * int(self.dtype.itemsize)

    @property
    def _inputs(self) -> int:
        return self.batch * self.length * self.inputs * int(self.dtype.itemsize)

    def _of_forward(self) -> int:
        terms = self._terms
        if terms.forward_steps is not None:
            gates = terms.forward_steps[self.directions - 1] * self.steps
        elif self.directions == 1:
            gates = self.steps + self.gates * self._state * min(self.length, _CHUNK)
        else:
            gates = (2 * (self.gates + 1) + 4) * self.steps
        states = terms.forward_states[self.directions - 1] * self.layers * self._state
        return self._inputs + gates + states + _aligned(8 * self.batch)

    def _of_backward(self) -> int:
        terms = self._terms
        count = terms.backward_steps[self.directions - 1][self.layers > 1] * self.length
        if self.layers > 1 and self.directions == 1 and terms.forward_steps is None:
            count += self._steps_between_layers()
        count += terms.backward_states[self.directions - 1] * self.layers
        return 2 * self._inputs + self.directions**2 * max(self._inputs, self.steps) + count * self._state

    def _steps_between_layers(self) -> int:
        """Those that one layer is ahead of the next: seen, and the only term that is not met in all cases."""
        if self.batch >= 16 and self.length < 128:
            return min(self.length, 16)
        ahead = 8 if self.batch >= 16 else 16 if self.batch > 1 else 32
        return min(self.length, (self.layers + 1) * ahead)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def install(processors: Processors) -> None:
    """Run these networks as on a card with so many multiprocessors."""
    nn.RNNBase.flatten_parameters, nn.RNNBase._apply = _flatten, _apply
    threads = processors.multiprocessors * processors.threads
    for kind in _GATES:
        setattr(torch._VF, kind, functools.partial(_run, kind, getattr(torch._VF, kind), threads))


def forget() -> None:
    """Forget what the process had on the card before the next estimate."""
    _state_of_dropout.clear()


_moved = nn.RNNBase._apply


def _apply(self: nn.RNNBase, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """On the host, torch leaves each weight a memory of its own: they come to the card one by one, and are parts of
    one buffer afterwards."""
    if not arrivals.are_noted(self._flat_weights):
        with torch.no_grad():
            for each in self._flat_weights:
                if isinstance(each, torch.Tensor):
                    each.data = each.clone()
    return _moved(self, function, recurse)


def _flatten(self: nn.RNNBase) -> None:
    """Let the weights be parts of one buffer, as cuDNN wants them. It takes none in bfloat16 (`is_acceptable` of
    torch.backends.cudnn)."""
    weights = self._flat_weights
    kinds = {each.dtype if isinstance(each, torch.Tensor) else None for each in weights}
    if len(kinds) != 1 or not kinds <= {torch.float16, torch.float32, torch.float64}:
        return
    with torch.no_grad():
        room = 0 if self.bias else 2 * self.num_layers * (1 + self.bidirectional) * weights[0].shape[0]
        buffer = weights[0].new_empty(sum(each.numel() for each in weights) + room)
        if arrivals.are_noted(weights):
            arrivals.note(buffer)
        for each, part in zip(weights, _parts(buffer, weights), strict=True):
            each.data = part


def _parts(buffer: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = buffer[: sum(each.numel() for each in weights)].split([each.numel() for each in weights])
    return [part.view_as(each) for part, each in zip(parts, weights, strict=True)]


def _run(
    kind: str, original: Callable[..., Any], threads: int, inputs: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """`torch._VF.lstm` and its like."""
    if not isinstance(rest[1], (list, tuple)):
        unseen.note(f"{_shown(kind)} of packed sequences")
        result: tuple[torch.Tensor, ...] = original(inputs, *rest)
        return result
    given, weights, has_bias, layers, dropout, training, is_both_ways, is_batch_first = rest
    states = list(given) if isinstance(given, (list, tuple)) else [given]
    if torch.is_autocast_cpu_enabled():
        dtype = torch.get_autocast_cpu_dtype()
        inputs, *states = (each.to(dtype) for each in (inputs, *states))
        weights = [each.to(dtype) for each in weights]
    if is_batch_first:
        inputs = inputs.transpose(0, 1)
    length, batch, width = inputs.shape
    network = Network(
        kind, width, weights[1].shape[0] // _GATES[kind], layers, 1 + is_both_ways, batch, length, inputs.dtype,
        dropout if training and layers > 1 else 0.0,
    )  # fmt: skip
    if states[0].shape[-1] != network.hidden or _is_persistent(network):
        unseen.note(f"{_shown(kind)} with a projection, or of a single layer in float16")
    if dropout and training and not _state_of_dropout:
        _state_of_dropout.append(_bytes(inputs, threads * _GENERATOR_BYTES))
    output, *last = _Recurrent.apply(network, training, has_bias, len(states), inputs, *states, *weights)
    return (output.transpose(0, 1) if is_batch_first else output, *last)


def _shown(kind: str) -> str:
    return kind.partition("_")[0].upper()


def _is_persistent(network: Network) -> bool:
    """Whether torch asks for cuDNN's persistent algorithm, whose workspace is larger: `use_persist_common_heuristics`
    and `use_persist_device_heuristics`."""
    is_alone = network.layers == network.directions == 1 and network.kind != "gru"
    is_even = network.hidden % 128 == network.inputs % 128 == network.batch % 8 == 0
    is_small = 128 < network.hidden <= 1024 and network.batch <= 128  # up to 128 the workspace is the same
    return bool(network.dtype == torch.float16 and is_alone and is_even and is_small)


class _Recurrent(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped where types are checked
    """Allocates like cuDNN's kernels and what torch does around them."""

    @staticmethod
    def forward(
        ctx: Any, network: Network, training: bool, has_bias: bool, count: int,
        inputs: torch.Tensor, *others: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        states, weights = others[:count], others[count:]
        laid_out = inputs.contiguous()
        output = inputs.new_empty(*inputs.shape[:-1], network.directions * states[0].shape[-1])
        last = tuple(torch.empty_like(each) for each in states)
        is_flat = len({each.untyped_storage()._cdata for each in weights}) == 1
        flat = weights[0] if is_flat else _bytes(inputs, network.weights())
        workspace = _bytes(inputs, network.workspace(is_training=training))
        reserve = _bytes(inputs, network.reserve()) if training else None
        del workspace, laid_out
        ctx.network, ctx.has_bias, ctx.count = network, has_bias, count
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*states, inputs, *weights, output, reserve, flat)
        return (output, *last)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]  # the same
    def backward(ctx: Any, gradient: torch.Tensor | None, *last: torch.Tensor | None) -> tuple[Any, ...]:
        network: Network = ctx.network
        *saved, output, _, _ = ctx.saved_tensors
        states, inputs, weights = saved[: ctx.count], saved[ctx.count], saved[ctx.count + 1 :]
        of_output = torch.zeros_like(output) if gradient is None else gradient
        of_last = [torch.zeros_like(old) if new is None else new for old, new in zip(states, last, strict=True)]
        laid_out, of_output = inputs.contiguous(), of_output.contiguous()
        of_inputs = torch.empty_like(laid_out)
        of_states = [torch.empty_like(each) for each in states]
        workspace = _bytes(inputs, network.workspace(is_training=True))
        del workspace, of_output, laid_out
        of_weights: list[Any] = [None] * len(weights)
        if any(ctx.needs_input_grad[5 + ctx.count :]):
            laid_out = inputs.contiguous()
            flat = weights[0].new_zeros(network.weights() // network.dtype.itemsize)
            workspace = _bytes(inputs, network.workspace(is_training=True))
            of_weights = _parts(flat, weights)
            if not ctx.has_bias:  # they would be a part of a buffer that has room for biases
                of_weights = [each.clone() for each in of_weights]
            del workspace, laid_out
        del of_last
        return (None, None, None, None, of_inputs, *of_states, *of_weights)


def _bytes(like: torch.Tensor, size: int) -> torch.Tensor:
    return like.new_empty(size, dtype=torch.uint8)
