"""`Courtesy`: returns the memory of tensors for a while, and restores it later."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from hiwater._os.sizes import format_size
from hiwater.contrib.torch import allocator, swap
from hiwater.contrib.torch.collect import Holding, collect
from hiwater.contrib.torch.reporter import device_name
from hiwater.contrib.torch.storages import Place, is_tensor, pieces, undisturbed
from hiwater.errors import CourtesyFailed, MemoryYielded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Self

    from hiwater.contrib.torch.swap import Moved


@dataclass(frozen=True, slots=True)
class Kept:
    """A storage that stayed on its device, and why."""

    name: str
    device: str
    nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Freed:
    """The memory that one device gave back. `moved_bytes` were copied to RAM. The counters are torch's; None for
    devices without them, such as the CPU.

    They do not include the context and the allocations of other libraries (NCCL, cuDNN). These stay.
    """

    device: str
    moved_bytes: int
    storages: int
    allocated_before_bytes: int | None = None
    allocated_after_bytes: int | None = None
    reserved_before_bytes: int | None = None
    reserved_after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Yielded:
    """The result of `yield_memory()`."""

    devices: tuple[Freed, ...]
    kept: tuple[Kept, ...]

    @property
    def moved_bytes(self) -> int:
        return sum(one.moved_bytes for one in self.devices)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "moved_bytes": self.moved_bytes}

    def __str__(self) -> str:
        return "\n".join(_words(self))


class Courtesy:
    """Lends the memory of all tensors of one or more devices to other processes.

    Between `yield_memory()` and `restore()` no tensor of these devices may be used: they have no memory. In a `with`
    block, an operation of this thread on one of them raises MemoryYielded; outside one, torch may crash. Other threads
    must not use torch. Code that knows addresses (CUDA graphs, other libraries through DLPack) must not run. Storages
    in private pools stay.

    `device` is a name, a number, a torch.device or several of them; None means all devices but the CPU.
    """

    def __init__(self, device: Any = None) -> None:
        """Raises BadRequest if `device` names none."""
        several = device if isinstance(device, (list, tuple, set)) else [device]
        self._devices = None if device is None else {device_name(one) for one in several}
        self._moved: list[Moved] = []
        self._refusal: _Refusal | None = None

    @property
    def loc_map(self) -> dict[str, str]:
        """The names of the tensors that were moved, and their devices. Keeps no tensor alive."""
        return {moved.name: moved.device for moved in self._moved}

    def yield_memory(self) -> Yielded:
        """Move the memory of all tensors to RAM, and report what that freed. A second call moves the tensors made
        since.

        Raises CourtesyFailed if there is no room in RAM; then nothing is moved.
        """
        with swap.alone():
            ours = {moved.copy.untyped_storage()._cdata for moved in self._moved}
            every = collect({}).holdings
            found = [one for key, one in every.items() if key not in ours and self._wants(one)]
            devices = sorted({one.device for one in found} | (self._devices or set()))
            _check_room(found)
            before = {device: swap.in_use(device) for device in devices}
            for device in devices:
                swap.wait_for(device)
            kept, moved = self._move_out(found)
            for device in devices:
                swap.release_caches(device)
            return Yielded(tuple(_freed(device, moved, before[device]) for device in devices), tuple(kept))

    def restore(self) -> int:
        """Move everything back, and return the number of bytes. Tensors that the program dropped meanwhile are dropped.

        Raises CourtesyFailed if the device has no room. Some tensors may be back then; a later call tries the rest
        again.
        """
        restored, devices = 0, {moved.device for moved in self._moved}
        with swap.alone():
            while self._moved:
                moved = self._moved[-1]
                try:
                    restored += moved.nbytes if swap.move_back(moved) else 0
                except RuntimeError as error:  # torch.OutOfMemoryError is one
                    left = sum(one.nbytes for one in self._moved)
                    problem = str(error).partition("\n")[0]
                    raise CourtesyFailed(
                        f"{format_size(left)} could not go back to {moved.device} ({problem})",
                        "free memory there and call restore() again",
                    ) from error
                self._moved.pop()
            for device in devices:
                swap.wait_for(device)
        return restored

    def __enter__(self) -> Self:
        self.yield_memory()
        try:
            self._refusal = _Refusal({moved.key for moved in self._moved})
            self._refusal.__enter__()
        except BaseException:  # __exit__() will not run
            self.restore()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._refusal is not None:
            self._refusal.__exit__(*error)
            self._refusal = None
        self.restore()

    def _wants(self, holding: Holding) -> bool:
        if holding.place is not Place.memory or holding.weak is None or not holding.nbytes:
            return False
        return holding.device != "cpu" if self._devices is None else holding.device in self._devices

    def _move_out(self, found: Iterable[Holding]) -> tuple[list[Kept], list[Moved]]:
        """Move the storages. Returns those that stay and those that moved. If an exception (also Ctrl-C) ends this,
        all are moved back."""
        before = len(self._moved)
        try:
            kept = list(self._moving(found))
        except (RuntimeError, MemoryError) as error:
            self.restore()
            problem = str(error).partition("\n")[0]
            raise CourtesyFailed(
                f"no room for a copy in RAM ({problem})", "everything is back in place; free RAM first"
            ) from error
        except BaseException:
            self.restore()
            raise
        return kept, self._moved[before:]

    def _moving(self, found: Iterable[Holding]) -> Iterator[Kept]:
        """Move the storages one by one, and yield those that stay."""
        blocks: dict[str, Any] = {}
        for one in found:
            storage = torch.UntypedStorage._new_with_weak_ptr(one.weak.cdata)
            if storage is None or storage.nbytes() == 0:
                continue
            if one.device not in blocks:
                blocks[one.device] = allocator.blocks_of(one.device)
            block = blocks[one.device].at(one.address) if blocks[one.device] is not None else None
            reason = swap.obstacle(one, block, storage)
            if not reason:
                self._moved.append(swap.copied(one, storage, block.stream if block is not None else 0))
                if swap.let_go(storage):
                    continue
                self._moved.pop()
                reason = swap.BORROWED
            yield Kept(one.views[0].name, one.device, storage.nbytes(), reason)


class _Refusal(TorchDispatchMode):  # type: ignore[misc] # torch is not followed by the type checker
    """Stops an operation on a tensor without memory before it reads address 0."""

    def __init__(self, away: set[int]) -> None:
        super().__init__()
        self._away = away

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises MemoryYielded."""
        with undisturbed():
            touched = [piece for one in _pytree.tree_leaves((args, kwargs)) if is_tensor(one) for piece in pieces(one)]
        if any(piece.key in self._away and piece.nbytes == 0 for piece in touched):
            raise MemoryYielded(
                f"{func} needs a tensor whose memory is lent", "use it after the `with Courtesy()` block"
            )
        return func(*args, **(kwargs or {}))


def _check_room(found: Iterable[Holding]) -> None:
    """Raises CourtesyFailed if the copies do not fit into RAM. Tensors of the CPU need no more RAM."""
    needed, spare = sum(one.nbytes or 0 for one in found if one.device != "cpu"), swap.ram_to_spare()
    if spare is not None and needed > spare:
        raise CourtesyFailed(
            f"the copies need {format_size(needed)} of RAM, but only {format_size(max(0, spare))} is free",
            "free RAM first, or lend one device at a time; nothing was moved",
        )


def _freed(device: str, moved: Iterable[Moved], before: tuple[int, int] | None) -> Freed:
    sizes = [one.nbytes for one in moved if one.device == device]
    after = swap.in_use(device)
    if before is None or after is None:
        return Freed(device, sum(sizes), len(sizes))
    return Freed(device, sum(sizes), len(sizes), before[0], after[0], before[1], after[1])


def _words(yielded: Yielded) -> Iterator[str]:
    for one in yielded.devices:
        yield f"{one.device}: {format_size(one.moved_bytes)} in {one.storages:,} storages moved to RAM"
        if one.reserved_before_bytes is not None and one.reserved_after_bytes is not None:
            yield (
                f"  reserved by torch {format_size(one.reserved_before_bytes)} before,"
                f" {format_size(one.reserved_after_bytes)} now, of which {format_size(one.allocated_after_bytes or 0)}"
                " allocated; the context stays"
            )
    if not yielded.devices:
        yield "nothing to give back: no tensor is on these devices"
    for kept in yielded.kept:
        yield f"  stays on {kept.device}: {kept.name}, {format_size(kept.nbytes)}: {kept.reason}"
