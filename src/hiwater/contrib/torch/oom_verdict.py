"""Why memory was refused, and what to do. Each piece of advice is based on a figure.

- fragmentation: torch's free memory and what it may still reserve are enough together, but not in one piece that the
  request can use
- limit: the driver had enough memory, but a limit that was set kept torch from reserving it
- shortage: all free memory together is not enough
"""

from __future__ import annotations

from dataclasses import dataclass

from hiwater._os.sizes import format_size as size
from hiwater.contrib.torch.estimate.allocator import SMALL_SIZE
from hiwater.contrib.torch.oom_message import request_of_segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hiwater.allocator_state import AllocatorState

_AS_ROUNDED = 1.01  # the message has two digits after the point
_WORTH_TELLING = 0.02  # of what was asked for, or of the card
_FULL = 0.02  # of the card left: then it counts as full, however much was asked for


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when memory is refused, in bytes; None: unknown.

    `requested_bytes` is what torch tried to allocate: for its allocator of CUDA memory, a segment. `rounded_bytes` is
    the size of the request itself, rounded up, from a history. `state` is torch's allocator on that device after the
    exception. `reserved_bytes` is what it had reserved, and `unallocated_bytes` the free part of that at the refusal.
    `driver_free_bytes` is what the driver had left, and `allowed_bytes` the most that torch may reserve. `others_bytes`
    is used by other processes on the card. `saved_bytes`, `optimizer_bytes` and `gradient_bytes` are the tensors saved
    for backward, of optimizers, and of gradients.
    """

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
        """The least and the most bytes that the program can have requested."""
        if self.rounded_bytes is not None:
            return self.rounded_bytes, self.rounded_bytes
        return request_of_segment(self.requested_bytes or 0)

    @property
    def free_bytes(self) -> int:
        """The free bytes of torch's common pool at the refusal. The program may have released more since."""
        if self.state is None:
            return 0
        free = self.state.free_bytes - self.state.private_free_bytes
        return free if self.unallocated_bytes is None else min(free, self.unallocated_bytes)

    @property
    def limit_room_bytes(self) -> int | None:
        """The bytes that torch could still reserve under the limit that was set; None without a limit."""
        if self.allowed_bytes is None or (self.total_bytes is not None and self.allowed_bytes >= self.total_bytes):
            return None
        reserved = self.state.reserved_bytes if self.state is not None else self.reserved_bytes or 0
        return max(0, self.allowed_bytes - reserved)

    @property
    def room_bytes(self) -> int:
        """The bytes that torch could still reserve from the driver."""
        driver_free, limit_room = self.driver_free_bytes or 0, self.limit_room_bytes
        return driver_free if limit_room is None else min(driver_free, limit_room)


@dataclass(frozen=True, slots=True)
class RefusalVerdict:
    """`kind` is "fragmentation", "shortage", "limit" or "unknown". `why` explains it with figures, and `advice` says
    what to do."""

    kind: str
    why: str
    advice: tuple[str, ...]


def judge(facts: Facts) -> RefusalVerdict:
    """The verdict on a refusal. Needs no torch."""
    wanted = facts.requested_bytes
    if wanted is None:
        return _judge_without_size(facts)
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


def _judge_without_size(facts: Facts) -> RefusalVerdict:
    """The verdict on an error that does not say how much was asked for: one of CUDA itself or of its libraries."""
    why, card, left = "the message does not say how much was asked for", facts.total_bytes, facts.driver_free_bytes
    if left is None and card is not None and facts.state is not None:
        left = card - facts.state.reserved_bytes  # at most: the driver does not answer any more
    if left is None or card is None:
        return RefusalVerdict("unknown", why, tuple(_advice(facts, "unknown")))
    is_full = left + facts.free_bytes < _FULL * card
    most = "at most " if facts.driver_free_bytes is None else ""
    why = f"{why}: torch held {size(facts.free_bytes)} free, the driver had {most}{size(left)} left of {size(card)}"
    if is_full:
        return RefusalVerdict("shortage", f"{why}. The card is full", tuple(_advice(facts, "shortage")))
    return RefusalVerdict("unknown", why, tuple(_advice(facts, "unknown")))


def _kind(facts: Facts, wanted: int) -> str:
    free, room = facts.free_bytes, facts.room_bytes
    least, most = facts.request
    if room >= wanted:
        return "unknown"
    if free >= most or (free and free + room >= wanted):
        return "fragmentation"
    if free + (facts.driver_free_bytes or 0) >= wanted:
        return "limit"
    return "shortage" if free < least else "unknown"


def _why(kind: str, facts: Facts, wanted: int) -> str:
    found = f"{_request_text(facts, wanted)}: {_free_text(facts)}"
    if kind == "fragmentation":
        return f"{found}. Together that is enough, but not in one piece that this request can have"
    if kind == "limit":
        return f"{found}. A limit stood in the way"
    if kind == "unknown" and facts.room_bytes < wanted:
        return f"{found}. Whether that was enough depends on the request, whose own size only a history tells"
    if kind == "unknown":
        return (
            f"{found}. That would have done: memory came free in the meantime, or something stood in the way that torch"
            " does not tell"
        )
    return f"{found}. All of it together is not enough"


def _request_text(facts: Facts, wanted: int) -> str:
    """The request, in words. torch gives only the size of the segment for it."""
    least, most = facts.request
    if least == most == wanted:
        return f"{size(wanted)} were asked for"
    if least == most:
        return f"{size(least)} were asked for (rounded up), and a segment of {size(wanted)} was wanted for it"
    request = f"of up to {size(most)}" if least == 1 else f"above {size(least - 1)} and up to {size(most)}"
    return f"a segment of {size(wanted)} was wanted, as for any request {request}"


def _free_text(facts: Facts) -> str:
    parts = []
    if facts.state is not None:
        parts.append(f"torch held {size(facts.free_bytes)} free{_largest(facts)}")
    if facts.driver_free_bytes is not None:
        parts.append(f"the driver had {size(facts.driver_free_bytes)} left")
    if facts.limit_room_bytes is not None:
        parts.append(
            f"of the {size(facts.allowed_bytes or 0)} that the process may have {size(facts.limit_room_bytes)} were"
            " left"
        )
    return ", ".join(parts)


def _largest(facts: Facts) -> str:
    """The largest free block for requests of this kind, if the state is that of the refusal. A block can be used
    only by the stream of its segment, so one that was large enough belonged to another stream."""
    state, free = facts.state, facts.free_bytes
    if state is None or not free or state.free_bytes - state.private_free_bytes > free * _AS_ROUNDED:
        return ""
    least, most = facts.request
    kind = "small" if most <= SMALL_SIZE else "large"
    largest = min(state.largest_free_bytes(kind), free)
    text = f", {size(largest)} in the largest block for {kind} requests"
    if largest < least:
        return text
    return f"{text}, which is of another stream" if largest >= most else f"{text}, which only its own stream can use"


def _advice(facts: Facts, kind: str) -> Iterator[str]:
    state, wanted = facts.state, facts.requested_bytes or 0
    if kind == "fragmentation" and state is not None:
        if not state.expandable_segments:
            yield (
                f"{size(state.inactive_split_bytes)} lie free between blocks in use:"
                " PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF) lets"
                " segments grow instead of leaving such gaps"
            )
        if state.inactive_split_bytes < state.free_segments_bytes:
            yield _of_free_segments(state)
    limit_room = facts.limit_room_bytes
    if kind == "limit" or (
        kind == "fragmentation" and limit_room is not None and limit_room < wanted <= (facts.driver_free_bytes or 0)
    ):
        yield (
            "raise the limit that was set (torch.cuda.set_per_process_memory_fraction, per_process_memory_fraction), or"
            " ask for less"
        )
    if facts.requested_bytes is None and state is not None:
        yield (
            "CUDA or one of its libraries was refused, and they do not wait until torch gives memory back: leave them"
            " some, by torch.cuda.set_per_process_memory_fraction(0.95) or smaller tensors"
        )
        if state.free_segments_bytes:
            yield _of_free_segments(state)
    yield from _of_others(facts, wanted)
    if kind in ("shortage", "unknown"):
        yield from _of_tensors(facts, wanted)


def _of_free_segments(state: AllocatorState) -> str:
    return (
        f"{size(state.free_segments_bytes)} are whole free segments: torch.cuda.empty_cache() gives them back before a"
        " request of another size"
    )


def _of_others(facts: Facts, wanted: int) -> Iterator[str]:
    state = facts.state
    if state is not None and state.private_free_bytes > _WORTH_TELLING * wanted and state.private_free_bytes:
        yield (
            f"{size(state.private_free_bytes)} lie free in private pools (CUDA graphs, MemPool), which others may not"
            " use: let go of graphs that are done"
        )
    if state is not None and state.awaiting_free_bytes >= max(1, _WORTH_TELLING * wanted):
        yield (
            f"{size(state.awaiting_free_bytes)} were freed and wait for another stream: synchronise it, or use"
            " record_stream() less"
        )
    card = facts.total_bytes or 0
    if facts.others_bytes is not None and facts.others_bytes > max(_WORTH_TELLING * card, 0):
        yield f"other processes hold {size(facts.others_bytes)} of this card: `nvidia-smi` names them"


def _of_tensors(facts: Facts, wanted: int) -> Iterator[str]:
    used = facts.state.allocated_bytes if facts.state is not None else 0
    if facts.saved_bytes and facts.saved_bytes > 0.25 * used:
        yield (
            f"{size(facts.saved_bytes)} are kept by autograd for backward, and grow with the batch: a smaller batch,"
            " gradient accumulation or checkpointing (torch.utils.checkpoint) lowers them"
        )
    if facts.gradient_bytes and facts.gradient_bytes >= wanted:
        yield (
            f"{size(facts.gradient_bytes)} are gradients: zero_grad(set_to_none=True) before the next forward lets go"
            " of them"
        )
    if facts.optimizer_bytes and facts.optimizer_bytes >= wanted:
        yield (
            f"{size(facts.optimizer_bytes)} are optimizer state: one with less state, or in 8 bits, or sharded,"
            " would do"
        )
    if wanted and used and wanted > used:
        yield f"the refused request alone is larger than all that was in use ({size(used)}): look at its shape first"
