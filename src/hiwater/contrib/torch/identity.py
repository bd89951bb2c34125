"""Adds up the storages and compares the sum with the allocator's figure: allocated = named + saved + gradients +
optimizer + held by C++."""

from __future__ import annotations

from collections import Counter

from hiwater.contrib.torch import allocator, storages
from hiwater.contrib.torch.records import Category, DeviceTensors, Identity, StorageEntry, Unowned
from hiwater.contrib.torch.storages import Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hiwater.contrib.torch.allocator import SegmentBlocks
    from hiwater.contrib.torch.collect import Holding
    from hiwater.contrib.torch.watch import StorageWatch

NOT_MEASURED = "not measured"


def devices_of(holdings: Mapping[int, Holding], watch: StorageWatch | None) -> tuple[DeviceTensors, ...]:
    """The devices with their storages and identities. The CPU comes last."""
    by_device: dict[str, dict[int, Holding]] = {}
    for key, holding in holdings.items():
        if holding.place is Place.memory:
            by_device.setdefault(holding.device, {})[key] = holding
    for device in {device for _, device, _, _ in watch.live()} if watch is not None else ():
        by_device.setdefault(device, {})
    return tuple(
        _device(name, by_device[name], watch) for name in sorted(by_device, key=lambda name: (name == "cpu", name))
    )


def _device(device: str, found: Mapping[int, Holding], watch: StorageWatch | None) -> DeviceTensors:
    blocks = allocator.blocks_of(device)
    if blocks is not None:
        return with_blocks(device, found.values(), blocks)
    counted = allocator.allocated_bytes(device)
    if counted is not None:
        return with_counter(device, found.values(), *counted)
    if watch is not None:
        return with_watch(device, found, watch)
    entries = [entry_of(one, storages.rounded(one.nbytes or 0, device)) for one in found.values()]
    sums = _by_category(entries)
    return DeviceTensors(device, tuple(entries), Identity(sums, _rounding(entries), None, None, 0, NOT_MEASURED))


def with_blocks(device: str, found: Iterable[Holding], blocks: SegmentBlocks) -> DeviceTensors:
    """Match storages and blocks. Blocks without a storage are held by C++. A storage without a block is another
    library's memory."""
    entries, used = [], set()
    for one in found:
        block = blocks.at(one.address)
        if block is not None and block.address not in used:
            used.add(block.address)
            entries.append(entry_of(one, block.nbytes, origin=block.origin))
        else:  # a second storage in a block: its memory is counted with the first
            entries.append(entry_of(one, 0, in_allocator=not one.nbytes))
    free = [block for block in blocks.active if block.address not in used]
    unowned = _grouped((block.nbytes, block.origin) for block in free)
    identity = Identity(
        _by_category(entries), _rounding(entries), blocks.nbytes, sum(block.nbytes for block in free),
        _outside(entries), "the allocator's blocks", unowned,
    )  # fmt: skip
    return DeviceTensors(device, tuple(entries), identity)


def with_counter(device: str, found: Iterable[Holding], counted: int, source: str) -> DeviceTensors:
    """Only one counter is known. What C++ holds is the rest: it includes rounding above 512 bytes, and is too small
    by storages of others."""
    entries = [entry_of(one, storages.rounded(one.nbytes or 0, device)) for one in found]
    sums, rounding = _by_category(entries), _rounding(entries)
    unowned = max(0, counted - sum(sums.values()) - rounding)
    return DeviceTensors(device, tuple(entries), Identity(sums, rounding, counted, unowned, 0, source))


def with_watch(device: str, found: Mapping[int, Holding], watch: StorageWatch) -> DeviceTensors:
    """Compare the storages with those that the watch recorded. Older ones, and those of other threads, are outside."""
    made = {key: (nbytes, operation) for key, place, nbytes, operation in watch.live() if place == device}
    entries = [
        entry_of(
            one, storages.rounded(one.nbytes or 0, device), in_allocator=key in made, origin=made.get(key, (0, ""))[1]
        )
        for key, one in found.items()
    ]
    unowned = [made[key] for key in made.keys() - found.keys()]
    held = sum(storages.rounded(nbytes, device) for nbytes, _ in unowned)
    whole = sum(storages.rounded(nbytes, device) for nbytes, _ in made.values())
    identity = Identity(
        _by_category(entries), _rounding(entries), whole, held, _outside(entries),
        "storages that the watch saw made", _grouped(unowned),
    )  # fmt: skip
    return DeviceTensors(device, tuple(entries), identity)


def entry_of(one: Holding, block_bytes: int, in_allocator: bool = True, origin: str = "") -> StorageEntry:
    """The row of a storage."""
    return StorageEntry(
        one.device, one.place, one.nbytes, block_bytes, one.views[0], tuple(one.views[1:]), one.pinned, one.address,
        in_allocator, origin,
    )  # fmt: skip


def _by_category(entries: Sequence[StorageEntry]) -> dict[Category, int]:
    sums = dict.fromkeys(Category, 0)
    for entry in entries:
        if entry.in_allocator:
            sums[entry.category] += entry.nbytes or 0
    return sums


def _rounding(entries: Sequence[StorageEntry]) -> int:
    return sum(entry.block_bytes - (entry.nbytes or 0) for entry in entries if entry.in_allocator)


def _outside(entries: Sequence[StorageEntry]) -> int:
    return sum(entry.nbytes or 0 for entry in entries if not entry.in_allocator)


def _grouped(pairs: Iterable[tuple[int, str]]) -> tuple[Unowned, ...]:
    """Sums of the blocks with the same origin, largest first."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for nbytes, origin in pairs:
        sizes[origin] += nbytes
        counts[origin] += 1
    return tuple(Unowned(nbytes, origin, counts[origin]) for origin, nbytes in sizes.most_common())
