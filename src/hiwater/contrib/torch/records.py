"""What a report of tensors says, as data: no tensor, storage or module is held by any of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from hiwater.contrib.torch.storages import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Category(StrEnum):
    """Who holds a storage. In this order: a storage that several hold belongs to the first, and the others are listed with it."""

    parameter = "parameter"
    buffer = "buffer"
    gradient = "gradient"
    optimizer = "optimizer"
    variable = "variable"  # reached from a variable, a module's plain attribute or a container
    saved = "saved"  # by autograd, for backward
    unnamed = "unnamed"  # a Python object that nothing looked at leads to


NAMED = (Category.parameter, Category.buffer, Category.variable, Category.unnamed)  # one term of the identity


@dataclass(frozen=True, slots=True)
class TensorView:
    """One tensor that looks at a storage. `shape` is None where it cannot be told; `part` is which storage of the tensor's it is
    (`values` of a sparse one), "" for a plain tensor; `is_view` says that it sees less than the storage, or is a view of another
    tensor; `aliases` are further names of the same object, `number` is the order in which tensors were found."""

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
    """One storage: `nbytes` as torch sees it (None: not to be had), `block_bytes` what the device's allocator gave for it.

    `owner` is the first that holds it, `others` who else does. `address` is 0 where there is no memory. `in_allocator` is False for
    memory that the device's allocator does not know: another library's, or shared from another process. `origin` is the operation or
    the line that made it, where a watch or the allocator's history knows.
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
    """Memory that no tensor found looks at. `origin` is the operation or the innermost line that made it, "" where unknown."""

    nbytes: int
    origin: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """allocated = named + saved + gradients + optimizer + held by C++ + rounding, in bytes.

    `allocated_bytes` is an independent measure, named by `source`; None where there is none, and then `unowned_bytes` is None too.
    `by_category` counts each storage of the allocator once, with its owner. `rounding_bytes` is what the allocator gave beyond what
    was asked for. `outside_bytes` are storages that the measure does not cover; they are no part of the sum.
    `residual_bytes` is what a sum that does not close leaves: printed, never hidden.
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
    """All that was found on one device, largest first within the order of categories."""

    device: str
    storages: tuple[StorageEntry, ...]
    identity: Identity


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What was found, device by device. `without_memory` are meta, fake and opaque tensors, which have no bytes to count. `notes`
    say what limits the figures."""

    devices: tuple[DeviceTensors, ...]
    without_memory: tuple[StorageEntry, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def device(self, name: str) -> DeviceTensors | None:
        """The part about the device of this name (`cpu`, `cuda:0`), None where nothing was found on it."""
        return next((one for one in self.devices if one.device == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, texts and numbers, ready for JSON; sizes are in bytes."""
        plain = asdict(self)
        for one, source in zip(plain["devices"], self.devices, strict=True):
            one["identity"]["named_bytes"] = source.identity.named_bytes
            one["identity"]["residual_bytes"] = source.identity.residual_bytes
        return plain
