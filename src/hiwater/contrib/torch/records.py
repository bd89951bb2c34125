"""A report of tensors as data. It keeps no tensor, storage or module alive."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from hiwater.contrib.torch.storages import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class Category(StrEnum):
    """The kind of holder. A storage with several holders belongs to the first kind in this order, and lists the
    others."""

    parameter = "parameter"
    buffer = "buffer"
    gradient = "gradient"
    optimizer = "optimizer"
    variable = "variable"  # reached from a variable, a module's plain attribute or a container
    saved = "saved"  # by autograd, for backward
    unnamed = "unnamed"  # a Python object that no searched variable leads to


NAMED = (Category.parameter, Category.buffer, Category.variable, Category.unnamed)  # one term of the identity


@dataclass(frozen=True, slots=True)
class TensorView:
    """One tensor that uses a storage.

    `shape` is None if it is unknown. `part` names the storage of a tensor with several (`values` of a sparse one); it
    is "" for a plain tensor. `is_view` says that the tensor uses a part of the storage, or is a view of another tensor.
    `aliases` are further names of the same object. `number` is the order in which the tensors were found.
    """

    name: str
    category: Category
    kind: str
    shape: tuple[int | str, ...] | None
    dtype: str
    numel: int
    part: str = ""
    is_view: bool = False
    aliases: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class StorageEntry:
    """One storage: `nbytes` is its size by torch (None: unknown), `block_bytes` the size of its block in the device's
    allocator.

    `owner` is its first tensor, `others` are the rest. `address` is 0 if it has no memory. `in_allocator` is False for
    memory that the device's allocator does not know: of another library, or shared by another process. `origin` is the
    operation or the line that made it, if a watch or the allocator's history knows it.
    """

    device: str
    place: Place
    nbytes: int | None
    block_bytes: int
    owner: TensorView
    others: tuple[TensorView, ...]
    pinned: bool = False
    address: int = 0
    in_allocator: bool = True
    origin: str = ""

    @property
    def category(self) -> Category:
        return self.owner.category


@dataclass(frozen=True, slots=True)
class Unowned:
    """Memory that no tensor of the report uses. `origin` is the operation or the innermost line that made it; "" if
    unknown."""

    nbytes: int
    origin: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """allocated = named + saved + gradients + optimizer + held by C++ + rounding, in bytes.

    `allocated_bytes` is an independent measure; `source` names it. If there is none, it and `unowned_bytes` are None.
    `by_category` counts each storage of the allocator once, in the category of its owner. `rounding_bytes` is what the
    allocator gave in addition to the request. `outside_bytes` are storages that the measure does not cover, and are not
    part of the sum. `residual_bytes` is the difference if the sum does not match; it is always printed.
    """

    by_category: dict[Category, int]
    rounding_bytes: int
    allocated_bytes: int | None
    unowned_bytes: int | None
    outside_bytes: int
    source: str
    unowned: tuple[Unowned, ...] = ()

    @property
    def named_bytes(self) -> int:
        return sum(self.by_category[category] for category in NAMED)

    @property
    def found_bytes(self) -> int:
        return sum(self.by_category.values())

    @property
    def residual_bytes(self) -> int:
        if self.allocated_bytes is None or self.unowned_bytes is None:
            return 0
        return self.allocated_bytes - self.found_bytes - self.rounding_bytes - self.unowned_bytes


@dataclass(frozen=True, slots=True)
class DeviceTensors:
    """The storages of one device by category, the largest first."""

    device: str
    storages: tuple[StorageEntry, ...]
    identity: Identity

    def by_category(self) -> Iterator[tuple[Category, list[StorageEntry]]]:
        """The categories that there are, each with its storages, the largest first."""
        for category in Category:
            entries = [entry for entry in self.storages if entry.category is category]
            if entries:
                yield category, sorted(entries, key=lambda entry: -(entry.nbytes or 0))


@dataclass(frozen=True, slots=True)
class TensorReport:
    """The storages of all devices. `without_memory` are those of meta, fake and opaque tensors, which have no bytes
    to count. `notes` are sentences on the limits of the figures."""

    devices: tuple[DeviceTensors, ...]
    without_memory: tuple[StorageEntry, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def device(self, name: str) -> DeviceTensors | None:
        """The part of the device of this name (`cpu`, `cuda:0`); None if it has no tensors."""
        return next((one for one in self.devices if one.device == name), None)

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers for JSON. Sizes are in bytes."""
        plain = asdict(self)
        for one, source in zip(plain["devices"], self.devices, strict=True):
            one["identity"]["named_bytes"] = source.identity.named_bytes
            one["identity"]["residual_bytes"] = source.identity.residual_bytes
        return plain
