"""Why memory was refused, and what follows from the figures: fragmentation, a true shortage, a limit, or somebody else on the card.

fragmentation   torch holds free memory of its own that would do, together with what it might still take, but not in one piece that the
                request can have
limit           the driver had enough left, and a limit that was set kept torch from taking it
shortage        not even all free memory together would do
Advice is given only where a figure stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiwater._os.sizes import format_size as size
from hiwater.contrib.torch.oom_message import request_of_segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hiwater.allocator_state import AllocatorState

_SMALL = 1 << 20  # requests up to this have segments of their own kind
_AS_ROUNDED = 1.01  # the message has two digits after the point
_WORTH_TELLING = 0.02  # of what was asked for, or of the card


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when memory is refused, in bytes; None: not known. `requested_bytes` is what torch tried to allocate, which for its own
    allocator of CUDA memory is a segment, and `rounded_bytes` the request's own size, rounded up, as a history tells it. `state` is torch's allocator on that device after the exception; `reserved_bytes` what it had
    taken from the driver, `unallocated_bytes` what of that was free at the refusal; `driver_free_bytes` what the driver had left then,
    `allowed_bytes` how much torch may take in all; `others_bytes` what other processes hold of the card; `saved_bytes` what autograd keeps
    for backward, `optimizer_bytes` and `gradient_bytes` likewise."""

    requested_bytes: int | None
    state: AllocatorState | None = None
    driver_free_bytes: int | None = None
    total_bytes: int | None = None
    allowed_bytes: int | None = None
    reserved_bytes: int | None = None
    unallocated_bytes: int | None = None
    others_bytes: int | None = None
    saved_bytes: int | None = None
    optimizer_bytes: int | None = None
    gradient_bytes: int | None = None
    is_cpu: bool = False
    rounded_bytes: int | None = None

    @property
    def request(self) -> tuple[int, int]:
        """The least and the most bytes that were asked for."""
        if self.rounded_bytes is not None:
            return self.rounded_bytes, self.rounded_bytes
        return request_of_segment(self.requested_bytes or 0)

    @property
    def own_free_bytes(self) -> int:
        """What torch held free at the refusal in the pool that everybody uses. The program may have let go of more since."""
        if self.state is None:
            return 0
        free = self.state.free_bytes - self.state.private_free_bytes
        return free if self.unallocated_bytes is None else min(free, self.unallocated_bytes)

    @property
    def limit_room_bytes(self) -> int | None:
        """What a limit that was set let torch still take; None where there is none."""
        if self.allowed_bytes is None or (self.total_bytes is not None and self.allowed_bytes >= self.total_bytes):
            return None
        reserved = self.state.reserved_bytes if self.state is not None else self.reserved_bytes or 0
        return max(0, self.allowed_bytes - reserved)

    @property
    def room_bytes(self) -> int:
        """What torch might still have taken from the driver."""
        driver_free, limit_room = self.driver_free_bytes or 0, self.limit_room_bytes
        return driver_free if limit_room is None else min(driver_free, limit_room)


@dataclass(frozen=True, slots=True)
class RefusalVerdict:
    """`kind` is "fragmentation", "shortage", "limit" or "unknown"; `why` says it with figures; `advice` follows from them."""

    kind: str
    why: str
    advice: tuple[str, ...]


def judge(facts: Facts) -> RefusalVerdict:
    """The verdict on a refusal. Needs no torch."""
    wanted = facts.requested_bytes
    if wanted is None:
        return RefusalVerdict(
            "unknown", "the message does not say how much was asked for", tuple(_advice(facts, "unknown"))
        )
    if facts.is_cpu:
        return RefusalVerdict(
            "shortage",
            f"{size(wanted)} of RAM were asked for and refused by the system",
            tuple(_advice(facts, "shortage")),
        )
    if facts.state is None and facts.driver_free_bytes is None:
        return RefusalVerdict(
            "unknown", "the allocator's state is not known: it tells no segments", tuple(_advice(facts, "unknown"))
        )
    kind = _kind(facts, wanted)
    return RefusalVerdict(kind, _why(kind, facts, wanted), tuple(_advice(facts, kind)))


def _kind(facts: Facts, wanted: int) -> str:
    own_free, room = facts.own_free_bytes, facts.room_bytes
    least, most = facts.request
    if room >= wanted:
        return "unknown"
    if own_free >= most or (own_free and own_free + room >= wanted):
        return "fragmentation"
    if own_free + (facts.driver_free_bytes or 0) >= wanted:
        return "limit"
    return "shortage" if own_free < least else "unknown"


def _why(kind: str, facts: Facts, wanted: int) -> str:
    found = f"{_asked(facts, wanted)}: {_held(facts)}"
    if kind == "fragmentation":
        return f"{found}. Together that is enough, but not in one piece that this request can have"
    if kind == "limit":
        return f"{found}. A limit stood in the way"
    if kind == "unknown" and facts.room_bytes < wanted:
        return f"{found}. Whether that was enough depends on the request, whose own size only a history tells"
    if kind == "unknown":
        return f"{found}. That would have done: memory came free in the meantime, or something stood in the way that torch does not tell"
    return f"{found}. All of it together is not enough"


def _asked(facts: Facts, wanted: int) -> str:
    """What was asked for: torch tells the size of the segment that it wanted to take for it."""
    least, most = facts.request
    if least == most == wanted:
        return f"{size(wanted)} were asked for"
    if least == most:
        return f"{size(least)} were asked for (rounded up), and a segment of {size(wanted)} was wanted for it"
    request = f"of up to {size(most)}" if least == 1 else f"above {size(least - 1)} and up to {size(most)}"
    return f"a segment of {size(wanted)} was wanted, as for any request {request}"


def _held(facts: Facts) -> str:
    told = []
    if facts.state is not None:
        told.append(f"torch held {size(facts.own_free_bytes)} free{_largest(facts)}")
    if facts.driver_free_bytes is not None:
        told.append(f"the driver had {size(facts.driver_free_bytes)} left")
    if facts.limit_room_bytes is not None:
        told.append(
            f"of the {size(facts.allowed_bytes or 0)} that the process may have {size(facts.limit_room_bytes)} were left"
        )
    return ", ".join(told)


def _largest(facts: Facts) -> str:
    """The largest free block for requests of this kind, as long as it is what it was at the refusal. A block is handed out to the stream
    alone that its segment is for, so one that would have done was another's."""
    state, own_free = facts.state, facts.own_free_bytes
    if state is None or not own_free or state.free_bytes - state.private_free_bytes > own_free * _AS_ROUNDED:
        return ""
    least, most = facts.request
    kind = "small" if most <= _SMALL else "large"
    largest = min(state.largest_free_bytes(kind), own_free)
    told = f", {size(largest)} in the largest block for {kind} requests"
    if largest < least:
        return told
    return f"{told}, which is another stream's" if largest >= most else f"{told}, which its own stream's alone can have"


def _advice(facts: Facts, kind: str) -> Iterator[str]:
    state, wanted = facts.state, facts.requested_bytes or 0
    if kind == "fragmentation" and state is not None:
        if not state.expandable_segments:
            yield (
                f"{size(state.inactive_split_bytes)} lie free between blocks in use: PYTORCH_ALLOC_CONF=expandable_segments:True "
                "(before torch 2.9: PYTORCH_CUDA_ALLOC_CONF) lets segments grow instead of leaving such gaps"
            )
        if state.inactive_split_bytes < state.free_segments_bytes:
            yield f"{size(state.free_segments_bytes)} are whole free segments: torch.cuda.empty_cache() gives them back before a request of another size"
    limit_room = facts.limit_room_bytes
    if kind == "limit" or (
        kind == "fragmentation" and limit_room is not None and limit_room < wanted <= (facts.driver_free_bytes or 0)
    ):
        yield "raise the limit that was set (torch.cuda.set_per_process_memory_fraction, per_process_memory_fraction), or ask for less"
    yield from _of_others(facts, wanted)
    if kind in ("shortage", "unknown"):
        yield from _of_tensors(facts, wanted)


def _of_others(facts: Facts, wanted: int) -> Iterator[str]:
    state = facts.state
    if state is not None and state.private_free_bytes > _WORTH_TELLING * wanted and state.private_free_bytes:
        yield f"{size(state.private_free_bytes)} lie free in private pools (CUDA graphs, MemPool), which others may not use: let go of graphs that are done"
    if state is not None and state.awaiting_free_bytes >= max(1, _WORTH_TELLING * wanted):
        yield f"{size(state.awaiting_free_bytes)} were freed and wait for another stream: synchronise it, or use record_stream() less"
    card = facts.total_bytes or 0
    if facts.others_bytes is not None and facts.others_bytes > max(_WORTH_TELLING * card, 0):
        yield f"other processes hold {size(facts.others_bytes)} of this card: `nvidia-smi` names them"


def _of_tensors(facts: Facts, wanted: int) -> Iterator[str]:
    used = facts.state.allocated_bytes if facts.state is not None else 0
    if facts.saved_bytes and facts.saved_bytes > 0.25 * used:
        yield (
            f"{size(facts.saved_bytes)} are kept by autograd for backward, and grow with the batch: a smaller batch, gradient "
            "accumulation or checkpointing (torch.utils.checkpoint) lowers them"
        )
    if facts.gradient_bytes and facts.gradient_bytes >= wanted:
        yield f"{size(facts.gradient_bytes)} are gradients: zero_grad(set_to_none=True) before the next forward lets go of them"
    if facts.optimizer_bytes and facts.optimizer_bytes >= wanted:
        yield f"{size(facts.optimizer_bytes)} are optimizer state: one with less state, or in 8 bits, or sharded, would do"
    if wanted and used and wanted > used:
        yield f"the refused request alone is larger than all that was in use ({size(used)}): look at its shape first"
