"""Finds and names all tensors: through the collector's objects, modules, optimizers, variables and autograd's graph.

At the end of the collection all references are dropped. Data and weak references stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hiwater.contrib.torch import frames, heap, modules, storages, walk
from hiwater.contrib.torch.modules import Held
from hiwater.contrib.torch.records import Category, TensorView
from hiwater.contrib.torch.storages import Place, pieces
from hiwater.contrib.torch.variables import VariableSearch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

_GRAD_FN = heap.torch_attribute("grad_fn")


@dataclass(slots=True)
class Holding:
    """One storage and the tensors that use it, the owner first. `weak` is a weak reference to the storage; None
    without one."""

    device: str
    place: Place
    nbytes: int | None
    pinned: bool
    address: int
    weak: Any
    views: list[TensorView] = field(default_factory=list)


@dataclass(slots=True)
class Collection:
    """Storages by identity, in the order of their owners' categories."""

    holdings: dict[int, Holding] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def collect(models: Mapping[str, Any], optimizers: Sequence[Any] = (), unpack: bool = False) -> Collection:
    """Find all tensors of the process now.

    The keys of `models` are their names; "" means no prefix. `optimizers` are those that the collector may not know.
    `unpack` allows a torch before 2.10 to run hooks, see `hiwater.contrib.torch.walk`.
    """
    with storages.undisturbed():
        gathering = _Gathering(heap.scan())
        try:
            return gathering.everything(models, optimizers, unpack)
        finally:
            gathering.let_go()


class _Gathering:
    """The steps of a collection. It keeps every tensor alive until they end, so that no identity is used again."""

    def __init__(self, found: heap.TorchHeap) -> None:
        self._heap = found
        self._collection = Collection()
        self._registered: dict[int, Any] = {}
        self._search = VariableSearch({id(tensor) for tensor in found.tensors})
        self._names: dict[int, str] = {}
        self._tensors: dict[int, Any] = {}
        self._unnamed = 0

    def everything(self, models: Mapping[str, Any], optimizers: Sequence[Any], unpack: bool) -> Collection:
        self._search.follow(frames.of_program())
        if self._search.wanted:
            self._search.follow(frames.of_other_modules())
        of_modules = self._of_modules(models)
        of_optimizers = self._of_optimizers(optimizers)
        variables = self._of_variables()
        self._tensors = {id(tensor): tensor for tensor in (
            *self._heap.tensors, *self._search.objects.values(), *(held.tensor for held in of_modules)
        )}  # fmt: skip
        gradients = list(modules.gradients_of(self._tensors.values(), self._names))
        for category in (Category.parameter, Category.buffer):
            self._register(held for held in of_modules if held.category is category)
        self._register(gradients)
        self._register(of_optimizers)
        self._register(variables)
        self._register_saved([held.tensor for held in gradients], unpack)
        self._register(self._nameless(tensor) for tensor in self._heap.tensors)
        self._note_limits(unpack)
        return self._collection

    def let_go(self) -> None:
        """Drop every reference. This object itself may live on."""
        self._registered.clear()
        self._tensors.clear()
        self._heap = heap.TorchHeap()
        self._search = VariableSearch(set())

    # What there is, with names

    def _of_modules(self, models: Mapping[str, Any]) -> list[Held]:
        found: list[Held] = []
        given = {id(model) for model in models.values()}
        named = [(model, name, "") for name, model in models.items()]
        numbers = _Numbers()
        for module in modules.roots_of(self._every(self._heap.modules, torch.nn.Module)):
            if id(module) not in given:
                path, place = self._search.modules.get(id(module)) or (numbers.name(module), "")
                named.append((module, path, place))
        for module, path, place in named:
            found += [Held(held.name + place, held.category, held.tensor) for held in modules.of_module(module, path)]
        for held in found:
            self._names.setdefault(id(held.tensor), held.name)
        return found

    def _of_optimizers(self, given: Sequence[Any]) -> list[Held]:
        every = {id(one): one for one in (*given, *self._every(self._heap.optimizers, torch.optim.Optimizer))}
        named = {**{key: names[0] for key, names in self._search.tensors.items()}, **self._names}
        numbers = _Numbers()
        found: list[Held] = []
        for one in every.values():
            found += modules.of_optimizer(one, numbers.name(one), named)
        for held in found:
            self._names.setdefault(id(held.tensor), held.name)
        return found

    def _every(self, by_collector: list[Any], base: type) -> list[Any]:
        """The instances of a class that the collector knows, and those that variables lead to. Either may have more."""
        by_name = [one for one in self._search.holders.values() if issubclass(type(one), base)]
        return list({id(one): one for one in (*by_name, *by_collector)}.values())

    def _of_variables(self) -> list[Held]:
        found = []
        for key, tensor in self._search.objects.items():
            name = self._search.tensors[key][0]
            if self._names.setdefault(key, name) == name:
                found.append(Held(name, Category.variable, tensor))
        return found

    def _nameless(self, tensor: Any) -> Held:
        if id(tensor) in self._registered:
            return Held("", Category.unnamed, tensor)  # has a name, and is passed over
        name = f"{heap.name_of(type(tensor))}{self._unnamed}"
        self._unnamed += 1
        return Held(name, Category.unnamed, tensor)

    # Storages and their tensors

    def _register(self, every: Iterable[Held]) -> None:
        for held in every:
            if id(held.tensor) in self._registered:
                continue
            self._registered[id(held.tensor)] = held.tensor
            names = self._search.tensors.get(id(held.tensor), ())
            aliases = tuple(name for name in names if name != held.name)
            self._add(held, aliases)

    def _add(self, held: Held, aliases: tuple[str, ...]) -> None:
        try:
            found = pieces(held.tensor)
        except Exception as error:  # noqa: BLE001 - a subclass that fails in any way must not end the report
            self._collection.notes.append(f"{held.name} could not be read: {type(error).__name__}")
            return
        for piece in found:
            holding = self._collection.holdings.get(piece.key)
            if holding is None:
                holding = self._collection.holdings[piece.key] = _holding(piece)
            holding.views.append(_view(held, piece, aliases, len(self._registered)))

    def _register_saved(self, gradients: Sequence[Any], unpack: bool) -> None:
        roots = [_GRAD_FN(tensor) for tensor in (*self._tensors.values(), *gradients)]
        hooks: dict[int, tuple[str, Any]] = {}
        for saved in walk.saved_tensors([*roots, *self._heap.nodes], unpack, hooks):
            packed = ", packed by a hook" if saved.packed else ""
            name = f"{saved.node}.{saved.slot} (node {saved.number}{packed})"
            self._register([Held(name, Category.saved, saved.tensor)])
        behind = VariableSearch(set())
        behind.follow([frames.Namespace("", " (for unpacking)", list(hooks.values()))])
        self._register(Held(behind.tensors[key][0], Category.saved, tensor) for key, tensor in behind.objects.items())

    def _note_limits(self, unpack: bool) -> None:
        notes = self._collection.notes
        if self._heap.hidden:
            notes.append(
                f"gc.freeze() hides {self._heap.hidden:,} objects: tensors among them show only where something leads"
                " to them"
            )
        if not self._search.complete:
            notes.append("the search for names ended early: some tensors have none")
        if not walk.sees_without_unpacking() and not unpack:
            notes.append(
                f"what autograd saved is not in this report: this torch ({torch.__version__}) shows it only by running"
                " hooks, 2.10 and later without (unpack=True allows it)"
            )


class _Numbers:
    """Names for objects that no variable leads to: `Linear`, `Linear#2`."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def name(self, item: Any) -> str:
        kind = heap.name_of(type(item))
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return kind if self._seen[kind] == 1 else f"{kind}#{self._seen[kind]}"


def _holding(piece: storages.Piece) -> Holding:
    weak = StorageWeakRef(piece.handle) if piece.handle is not None else None
    address = 0 if piece.device == "cpu" else storages.address_of(piece)
    return Holding(piece.device, piece.place, piece.nbytes, storages.is_pinned(piece), address, weak)


def _view(held: Held, piece: storages.Piece, aliases: tuple[str, ...], number: int) -> TensorView:
    kind = heap.name_of(type(held.tensor))
    tensor = piece.tensor
    try:
        shape = tuple(size if type(size) is int else str(size) for size in tensor.shape)
        known = [size for size in shape if type(size) is int]
        numel = torch.Size(known).numel() if len(known) == len(shape) else 0
    except Exception:  # noqa: BLE001 - lazy parameters and nested tensors have no shape, and subclasses may refuse it
        shape, numel = None, 0
    narrow = piece.nbytes is not None and shape is not None and numel * tensor.element_size() < piece.nbytes
    is_view = narrow or tensor._base is not None
    dtype = str(tensor.dtype).removeprefix("torch.")
    name = held.name if held.name.isprintable() else held.name.encode("unicode_escape").decode()
    return TensorView(name, held.category, kind, shape, dtype, numel, piece.part, is_view, aliases, number)
