"""Why memory was refused, and what follows from the figures: fragmentation, a true shortage, a limit, or somebody else on the card.

fragmentation   torch holds free memory of its own that would do, in pieces none of which is large enough
shortage        not even all free memory together would do
Advice is given only where a figure stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.sizes import format_size as size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hiwater.history.state import AllocatorState

_ROUNDING = 512  # of torch's caching allocator
_LARGE = 1 << 20  # requests above come from segments that are multiples of 2 MiB
_WORTH_TELLING = 0.02  # of what was asked for, or of the card


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when memory is refused, in bytes; None: not known. `state` is torch's allocator on that device; `driver_free_bytes` what
    the driver had left; `others_bytes` what other processes hold of the card; `saved_bytes` what autograd keeps for backward,
    `optimizer_bytes` and `gradient_bytes` likewise. `expandable` says whether expandable segments are on, None where unknown."""

    requested_bytes: int | None
    state: AllocatorState | None = None
    driver_free_bytes: int | None = None
    total_bytes: int | None = None
    allowed_bytes: int | None = None
    others_bytes: int | None = None
    saved_bytes: int | None = None
    optimizer_bytes: int | None = None
    gradient_bytes: int | None = None
    is_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is "fragmentation", "shortage", "limit" or "unknown"; `why` says it with figures; `advice` follows from them."""

    kind: str
    why: str
    advice: tuple[str, ...]


def judge(facts: Facts) -> Verdict:
    """The verdict on a refusal. Needs no torch."""
    wanted = facts.requested_bytes
    if wanted is None:
        return Verdict("unknown", "the message does not say how much was asked for", tuple(_advice(facts, "unknown")))
    if facts.is_cpu:
        return Verdict(
            "shortage",
            f"{size(wanted)} of RAM were asked for and refused by the system",
            tuple(_advice(facts, "shortage")),
        )
    state = facts.state
    if state is None:
        return Verdict(
            "unknown", "the allocator's state is not known: it tells no segments", tuple(_advice(facts, "unknown"))
        )
    wanted = max(_ROUNDING, -(-wanted // _ROUNDING) * _ROUNDING)
    own_free = state.free_bytes - state.private_free_bytes
    driver_free = facts.driver_free_bytes or 0
    kind = _kind(facts, wanted, own_free, driver_free)
    why = _why(kind, facts, state, own_free)
    return Verdict(kind, why, tuple(_advice(facts, kind)))


def _kind(facts: Facts, wanted: int, own_free: int, driver_free: int) -> str:
    state = facts.state
    assert state is not None
    if own_free + driver_free >= wanted:
        return "fragmentation" if own_free > 0 else "limit"
    if facts.allowed_bytes is not None and facts.total_bytes is not None and facts.allowed_bytes < facts.total_bytes:
        return "limit"
    return "shortage"


def _why(kind: str, facts: Facts, state: AllocatorState, own_free: int) -> str:
    asked = size(facts.requested_bytes or 0)
    driver = "" if facts.driver_free_bytes is None else f", the driver had {size(facts.driver_free_bytes)} left"
    held = f"torch held {size(own_free)} free, {size(state.largest_free_bytes)} in its largest block{driver}"
    if kind == "fragmentation":
        return f"{asked} were asked for: {held}. Together that is enough, but not in one piece"
    if kind == "limit":
        allowed = f" (the process may have {size(facts.allowed_bytes)})" if facts.allowed_bytes is not None else ""
        return f"{asked} were asked for: {held}. A limit stood in the way{allowed}"
    return f"{asked} were asked for: {held}. All of it together is not enough"


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
    if kind == "limit":
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
