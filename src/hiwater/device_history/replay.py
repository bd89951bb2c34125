"""Turns events into live bytes over time: pairs every allocation with its free, and counts what the history does not
show.

- live: from the allocation until the memory can be used again (free_completed; free_requested if a history has no
  others). The sum is torch's requested_bytes
- before: live at the first event: the history shows the free, or the block at the end, but no allocation
- unseen: a block whose free is not shown, although its address is allocated again: it counts as freed at that event
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiwater.capture.layout import corrupt
from hiwater.capture.paths import Ints
from hiwater.device_history.events import (
    ALLOC,
    BEFORE_STACK,
    FREE_COMPLETED,
    FREE_REQUESTED,
    NO_STACK,
    OOM,
    SEGMENT_GROWS,
    SEGMENT_SHRINKS,
    Blocks,
    DeviceHistory,
)

_LARGEST_BYTES = 2.0**62  # above this, sums of int64 would wrap


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Changes in the order of time, as int64 arrays of one dimension.

    `at_ns` (nanoseconds since the first event), `stack`, `bytes` and `blocks` have an element for each change; bytes
    and blocks are signed. `stack_before`, `bytes_before` and `blocks_before` have an element for each entry of blocks
    that were live before the first event. The `oom_` arrays have an element for each refused request; `oom_place` is
    the index of the change that follows it. `reserved_at_ns` has the times at which the reserved bytes changed.
    `reserved` has one element more: the bytes at first, then those after each change.
    """

    at_ns: Ints
    stack: Ints
    bytes: Ints
    blocks: Ints
    stack_before: Ints
    bytes_before: Ints
    blocks_before: Ints
    oom_place: Ints
    oom_ns: Ints
    oom_bytes: Ints
    oom_stack: Ints
    reserved_at_ns: Ints
    reserved: Ints
    started_us: int
    duration_ns: int
    unseen_frees: int
    unmatched_ends: int

    @property
    def live_before(self) -> int:
        return int(self.bytes_before.sum())


def replay(history: DeviceHistory) -> Replay:
    """Pair allocations with frees. O(n log n) in the number of events."""
    events = history.events
    action, time_us = _array(events.action), _array(events.time_us)
    time_us = np.maximum.accumulate(time_us) if len(time_us) else time_us  # the clocks of threads may differ a little
    started_us = int(time_us[0]) if len(time_us) else 0
    at_ns = (time_us - started_us) * 1000
    size, stack = _array(events.bytes), _array(events.stack)
    if float(size.sum(dtype=np.float64)) + sum(history.live.bytes) + sum(history.live.count) > _LARGEST_BYTES:
        raise corrupt("its sizes are beyond any memory")
    address = np.array(events.address, np.uint64)
    pairs = _Pairs(_with_one_kind_of_frees(action, address, history.live), address, size, stack)
    ends = _ends(pairs, history.live)
    place, change_stack, change, count = _changes(pairs, ends)
    segments = np.flatnonzero((action == SEGMENT_GROWS) | (action == SEGMENT_SHRINKS))
    oom = np.flatnonzero(action == OOM)
    return Replay(
        at_ns=at_ns[place], stack=change_stack, bytes=change, blocks=count,
        stack_before=ends.stack_before, bytes_before=ends.bytes_before,
        blocks_before=ends.blocks_before,
        oom_place=np.searchsorted(place, oom), oom_ns=at_ns[oom], oom_bytes=size[oom], oom_stack=stack[oom],
        reserved_at_ns=at_ns[segments],
        reserved=_reserved(np.where(action == SEGMENT_GROWS, size, -size)[segments], history.reserved_bytes),
        started_us=started_us, duration_ns=max(1, int(at_ns[-1]) if len(at_ns) else 1),
        unseen_frees=len(pairs.freed_unseen), unmatched_ends=ends.unmatched,
    )  # fmt: skip


def _array(values: object) -> Ints:
    return np.array(values, np.int64)


def _with_one_kind_of_frees(action: Ints, address: npt.NDArray[np.uint64], live: Blocks) -> Ints:
    """The actions, with requests to free as completed frees if the history has no completed ones (torch's
    `skip_actions` removes them). A request whose block is still in use at the end is no free: the block waits for
    another stream."""
    if np.any(action == FREE_COMPLETED):
        return action
    waits = np.zeros(len(action), bool)
    held = set(live.address)
    for place in np.flatnonzero((action == ALLOC) | (action == FREE_REQUESTED))[::-1].tolist() if held else ():
        if int(address[place]) in held:
            held.discard(int(address[place]))
            waits[place] = action[place] == FREE_REQUESTED
    return np.where((action == FREE_REQUESTED) & ~waits, FREE_COMPLETED, action)


class _Pairs:
    """Allocations and frees by address. Events are given by their index. `freed_by` of a block that is never freed
    is the number of events."""

    def __init__(self, action: Ints, address: npt.NDArray[np.uint64], size: Ints, stack: Ints) -> None:
        relevant = np.flatnonzero((action == ALLOC) | (action == FREE_COMPLETED))
        order = relevant[np.lexsort((relevant, address[relevant]))]
        is_alloc = action[order] == ALLOC
        follows = np.zeros(len(order), bool)  # an event at the same address as the one before it
        follows[1:] = address[order[1:]] == address[order[:-1]]
        ended = np.zeros(len(order), bool)  # by the next event at its address
        ended[:-1] = follows[1:]
        after_alloc = np.zeros(len(order), bool)
        after_alloc[1:] = is_alloc[:-1]
        after_alloc &= follows
        self.size, self.stack, self.address = size, stack, address
        self.allocs = order[is_alloc]
        next_event = np.append(order[1:], 0)
        self.freed_by = np.where(ended, next_event, len(action))[is_alloc]
        self.freed_unseen = order[is_alloc & after_alloc]
        # A free without an allocation: the first event of an address frees a block from before; a later one repeats a
        # free.
        self.frees_before = order[~is_alloc & ~follows]
        self.events = len(action)


@dataclass(slots=True)
class _Ends:
    """The blocks from before the first event: those that an event frees (`freed_by`), and those that are live
    throughout."""

    stack_before: Ints
    bytes_before: Ints
    blocks_before: Ints
    freed_by: Ints
    unmatched: int


def _ends(pairs: _Pairs, live: Blocks) -> _Ends:
    """Match the blocks in use at the end with the allocations that the history never frees."""
    address, size, stack = np.array(live.address, np.uint64), _array(live.bytes), _array(live.stack)
    if pairs.events:
        stack[stack == NO_STACK] = BEFORE_STACK  # those that the history allocates are removed below
    open_allocs = np.sort(pairs.address[pairs.allocs[pairs.freed_by == pairs.events]])
    at = np.searchsorted(open_allocs, address)
    known = np.zeros(len(address), bool)
    inside = at < len(open_allocs)
    known[inside] = open_allocs[at[inside]] == address[inside]
    frees = pairs.frees_before
    return _Ends(
        stack_before=np.concatenate([np.full(len(frees), BEFORE_STACK), stack[~known]]),
        bytes_before=np.concatenate([pairs.size[frees], size[~known]]),
        blocks_before=np.concatenate([np.ones(len(frees), np.int64), _array(live.count)[~known]]),
        freed_by=np.concatenate([frees, np.full(int((~known).sum()), pairs.events)]),
        unmatched=len(open_allocs) - int(known.sum()) if len(address) else 0,
    )


def _changes(pairs: _Pairs, ends: _Ends) -> tuple[Ints, Ints, Ints, Ints]:
    """(event, stack, bytes, blocks) of every change after the start, in the order of events. At one event, frees
    come first."""
    size, stack = pairs.size[pairs.allocs], pairs.stack[pairs.allocs]
    freed, gone = pairs.freed_by < pairs.events, ends.freed_by < pairs.events
    place = np.concatenate([pairs.allocs, pairs.freed_by[freed], ends.freed_by[gone]])
    stacks = np.concatenate([stack, stack[freed], ends.stack_before[gone]])
    change = np.concatenate([size, -size[freed], -ends.bytes_before[gone]])
    count = np.concatenate([np.ones(len(size), np.int64), np.full(int(freed.sum()) + int(gone.sum()), -1)])
    order = np.lexsort((count, place))
    return place[order], stacks[order], change[order], count[order]


def _reserved(changes: Ints, at_end: int | None) -> Ints:
    """Reserved bytes at first and after each change: counted back from `at_end`, or, if that is None, up from the
    smallest possible start."""
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(changes)])
    before = at_end - int(running[-1]) if at_end is not None else 0
    return np.asarray(running + max(before, -int(running.min())))
