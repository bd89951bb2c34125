"""Why the driver says more than the tensors: what a device's memory consists of, term by term, with what nobody accounts for.

    what the driver counts for this process
      = tensors, as requested, and what the library rounds up
      + freed, and waiting for a stream to be done with it
      + fragments, which stay with segments (of expandable ones, with pages) that are in use
      + cached, which empty_cache() gives back, and private pools (CUDA graphs), which it does not
      + what other libraries hold
      + the context, where the driver was asked when the device had just come into use: what was there beside the pools then
      + unaccounted: the kernels' code, communication buffers, memory taken past all of them, and the context where it is not known

Each term but the last is a figure of whoever holds it. torch's pool is told from a snapshot of its blocks, or, where that is not taken, from its
counters, of which some fall when memory is freed (`allocated`) and others when it can be used again (`active`, `requested`). The last is what is left over, and is always shown; it may be below zero, since
the driver's figure is up to a second older than the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from hiwater.allocator_state import of_segments
from hiwater.meters.devices import allocators, backend, identity, in_use
from hiwater.meters.devices.base import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hiwater.allocator_state import AllocatorState
    from hiwater.meters.devices.base import Backend, Device
    from hiwater.meters.devices.nvml import CardMemory, Nvml, ProcessOnCard

USED, UNACCOUNTED, CONTEXT = "used by this process", "unaccounted", "context, at first sight"
OTHERS, DRIVER, ELSEWHERE, CARD = "other processes", "the driver's own", "unnamed processes", "used on the card"
OF_PROCESS = (
    "tensors, requested", "rounding", "waiting for a stream", "fragments", "cached", "private pools",
)  # fmt: skip
"""The terms of torch's pool, in the order of how near they are to a tensor."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term in bytes; UNKNOWN where it is not known."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceBreakdown:
    """What the memory of a device consists of. The terms up to `unaccounted` add up to `used by this process`, where that is known; those
    after it are the card's. `reason` says why something is not known."""

    device: str
    terms: tuple[Term, ...]
    reason: str

    def __getitem__(self, name: str) -> int:
        """Bytes of a term; raises KeyError for one that is not there."""
        for term in self.terms:
            if term.name == name:
                return term.bytes
        raise KeyError(name)

    def to_dict(self) -> dict[str, object]:
        """Return all of it as plain values; unknown terms are None."""
        terms = {term.name: None if is_unknown(term) else term.bytes for term in self.terms}
        return {"device": self.device, "terms": terms, "reason": self.reason}

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.device}: where its memory is", *text_rows(self.terms), *([self.reason] if self.reason else [])]
        )


def text_rows(terms: tuple[Term, ...]) -> list[str]:
    """A line for each term that is not 0, aligned; sums come after what they add up."""
    from hiwater._os.sizes import format_size

    shown = [term for term in terms if term.bytes != 0 or term.name in {USED, UNACCOUNTED}]
    width = max((len(term.name) for term in shown), default=0)
    return [
        f"  {term.name:<{width}}  {'unknown' if is_unknown(term) else format_size(term.bytes):>10}" for term in shown
    ]


def is_unknown(term: Term) -> bool:
    """Whether a term's figure is not known; a sum or a remainder of −1 byte cannot be."""
    return term.bytes == UNKNOWN


def now() -> list[DeviceBreakdown]:
    """What the memory of each device in use consists of now, with the driver's figures where they can be had (extra `gpu`).

    Looks at every segment of torch's pools for what private ones hold: some milliseconds, or more while its history is recorded with all frames.
    """
    return [of_device(source, device, looks_into_pools=True) for source, device in in_use()]


def reconcile(
    device: str,
    flat: Mapping[str, int],
    *,
    others: Mapping[str, int] | None = None,
    state: AllocatorState | None = None,
    context_bytes: int = UNKNOWN,
    process: ProcessOnCard | None = None,
    card: CardMemory | None = None,
    reason: str = "",
) -> DeviceBreakdown:
    """Put the terms together from what each source says.

    `flat` are torch's statistics (or {"allocated": …, "reserved": …} of another library), `others` the bytes that other libraries
    hold on the same card, `state` what a snapshot of torch's blocks tells, in place of `flat`, `context_bytes` what was used beside the pools when the device
    had just come into use, `process` and `card` the driver's.
    """
    pool = _of_state(state) if state is not None else _of_pool(flat)
    terms = [*pool, *(Term(f"held by {name}", held) for name, held in (others or {}).items())]
    if context_bytes != UNKNOWN:
        terms.append(Term(CONTEXT, context_bytes))
    reasons = [reason] if reason else []
    known = sum(term.bytes for term in terms if not is_unknown(term))
    reasons += [told.reason for told in (process, card) if told is not None and told.reason]
    if process is None or process.bytes == UNKNOWN:
        terms += [Term(UNACCOUNTED, UNKNOWN), Term(USED, UNKNOWN)]
    else:
        terms += [Term(UNACCOUNTED, _not_unknown(process.bytes - known)), Term(USED, process.bytes)]
    if card is not None:
        terms += _of_card(card, process)
    return DeviceBreakdown(device, tuple(terms), "; ".join(reasons))


def of_device(
    source: Backend, device: Device, *, looks_into_pools: bool = False, context_bytes: int = UNKNOWN
) -> DeviceBreakdown:
    """What a device's memory consists of now. `looks_into_pools` takes what torch's pools hold from a snapshot and not from its counters."""
    found = card_of(device)
    card = found[0].card(found[1]) if found is not None else None
    process = found[0].process(found[1], has_context=True) if found is not None else None
    reason = "" if found is not None else "the driver's figures are missing: " + _why_no_card()
    try:
        flat = source.statistics(device) if source.name == "torch" else _held(source, device)
    except Exception as error:  # noqa: BLE001 - a library has errors of its own: what it holds is then among the unaccounted
        flat = {}
        refusal = f"{source.name} tells nothing of it ({type(error).__name__}: {error})"
        reason = f"{refusal}; {reason}" if reason else refusal
    segments = source.segments(device) if looks_into_pools else None
    others = _others(source, device)
    return reconcile(
        device.name,
        flat,
        others=others,
        state=of_segments(segments) if segments is not None else None,
        context_bytes=context_bytes,
        process=process,
        card=card,
        reason=reason,
    )


def card_of(device: Device) -> tuple[Nvml, Device] | None:
    """The driver's side of a library's device. None where it is not known, or the driver cannot be asked."""
    from hiwater.meters.devices.nvml import Nvml

    nvml = backend("nvml")
    assert isinstance(nvml, Nvml)
    if not nvml.status().works:
        return None
    card = identity.card_of(device, nvml.devices())
    return (nvml, card) if card is not None else None


def _of_state(state: AllocatorState) -> list[Term]:
    """The pool's terms from its blocks: exact."""
    private = state.private_free_segments_bytes
    sizes = (
        state.requested_bytes, state.rounding_bytes, state.awaiting_free_bytes, state.inactive_split_bytes,
        state.free_segments_bytes - private, private,
    )  # fmt: skip
    return [Term(name, size) for name, size in zip(OF_PROCESS, sizes, strict=True)]


def _of_pool(flat: Mapping[str, int]) -> list[Term]:
    """The pool's terms from its counters.

    Freed memory that waits for a stream has left `allocated` already, and not yet `active` and `requested`. Its rounding is counted with
    that of the others, as nothing tells it: the tensors are then too low by as much.
    """
    if "reserved" in flat or "allocated" in flat:  # a library that tells no more
        allocated = flat.get("allocated", 0)
        return [Term("arrays", allocated), Term("cached", max(0, flat.get("reserved", allocated) - allocated))]
    allocated, reserved = _now(flat, "allocated_bytes"), _now(flat, "reserved_bytes")
    active, split = max(allocated, _now(flat, "active_bytes")), _now(flat, "inactive_split_bytes")
    requested = _now(flat, "requested_bytes") or active  # an allocator that does not count it says 0
    rounding = min(allocated, max(0, active - requested))
    free = reserved - active - split
    private = min(max(0, free), _private(flat))
    sizes = (allocated - rounding, rounding, active - allocated, split, free - private, private)
    return [Term(name, size) for name, size in zip(OF_PROCESS, sizes, strict=True)]


def _of_card(card: CardMemory, process: ProcessOnCard | None) -> list[Term]:
    ours = process.bytes if process is not None else UNKNOWN
    others = process.others_bytes if process is not None else UNKNOWN
    terms = [Term(OTHERS, others), Term(DRIVER, card.reserved_bytes)]
    if UNKNOWN not in {ours, others, card.used_bytes}:
        # With the second version of the driver's figure, `used` leaves out what it reserves for itself.
        terms.append(Term(ELSEWHERE, _not_unknown(card.used_bytes - ours - others)))
    return [*terms, Term(CARD, card.used_bytes)]


def _private(flat: Mapping[str, int]) -> int:
    """The most that private pools may hold free (torch 2.15 and later; 0 before, where it is among the cached): the counter has what is in use, too."""
    return sum(
        value
        for name, value in flat.items()
        if name.startswith("reserved_bytes_by_private_pools.") and name.endswith(".all.current")
    )


def _now(flat: Mapping[str, int], name: str) -> int:
    return max(0, flat.get(f"{name}.all.current", 0))


def _not_unknown(value: int) -> int:
    """A remainder of −1 byte would read as unknown."""
    return 0 if value == UNKNOWN else value


def _held(source: Backend, device: Device) -> dict[str, int]:
    return {quantity: standing.now for quantity, standing in source.standings(device).items()}


def _others(source: Backend, device: Device) -> dict[str, int]:
    """What other libraries hold on the same card, as far as one can tell that it is the same."""
    found: dict[str, int] = {}
    for other in allocators():
        if (
            other.name in {source.name, "rmm"} or not other.status().works
        ):  # RMM's memory is counted by those that take it from there
            continue
        for each in other.devices():
            if identity.is_same(each, device):
                held = _held(other, each)
                # TensorFlow may have several devices on one card.
                found[other.name] = found.get(other.name, 0) + held.get("reserved", held.get("allocated", 0))
    return found


def _why_no_card() -> str:
    status = backend("nvml").status()
    return "it is not clear which of its cards this is" if status.works else status.reason
