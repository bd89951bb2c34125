"""Watches the storages that torch's operations make: the independent measure of the identity on the CPU, with the
operations."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hiwater.contrib.torch.storages import Place, is_resizable, is_tensor, pieces, undisturbed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PRUNE_AT_LEAST = 1024
_FROM_DATA = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default})


class StorageWatch(TorchDispatchMode):  # type: ignore[misc] # torch is not followed by the type checker
    """Records each storage that an operation of this thread makes inside the block, by weak reference, and the
    operation's name.

    Start it before the model is built: older storages are not counted. It sees forward and backward on the CPU, where
    backward runs in the calling thread. It makes each operation some 30 µs slower, and keeps nothing alive.

        with hiwater.contrib.torch.StorageWatch() as watch:
            model = build()
            loss = model(batch).sum()
            MemReporter(model, watch=watch).report()
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[Any, str]] = {}
        self._prune_at = _PRUNE_AT_LEAST

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and note the storages of its result that were not in its arguments."""
        given = {piece.key for piece in _pieces_in((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        # torch.tensor() and similar functions make a storage unseen, and pass it here first.
        is_from_data = func in _FROM_DATA
        for piece in _pieces_in(result):
            if piece.handle is None or piece.place is not Place.memory:
                continue
            # Borrowed memory cannot be resized.
            if piece.key not in given or (is_from_data and is_resizable(piece.handle)):
                self._note(piece.key, piece.handle, str(func))
        return result

    def live(self) -> Iterator[tuple[int, str, int, str]]:
        """(key, device, bytes now, operation) of each storage that was made inside the block and is not freed."""
        for key, (weak, operation) in list(self._made.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is not None:
                yield key, str(storage.device), storage.nbytes(), operation

    def _note(self, key: int, storage: Any, operation: str) -> None:
        known = self._made.get(key)
        if known is not None and not known[0].expired():
            return
        self._made[key] = (StorageWeakRef(storage), operation)
        if len(self._made) >= self._prune_at:
            self._made = {one: made for one, made in self._made.items() if not made[0].expired()}
            self._prune_at = max(_PRUNE_AT_LEAST, 2 * len(self._made))


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _pieces_in(values: Any) -> Iterator[Any]:
    """The storages of all tensors in a result or in arguments."""
    for one in _pytree.tree_leaves(values):
        if not is_tensor(one):
            continue
        if type(one) in _PLAIN and one.layout == torch.strided and not one.is_nested and not one.is_quantized:
            yield from pieces(one)  # runs no operation, so there is nothing to be undisturbed by
            continue
        with undisturbed():
            found = pieces(one)
        yield from found
