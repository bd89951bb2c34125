"""Why the driver's figure is higher than the sum of the tensors: the terms of a device's memory, with an unaccounted
remainder.

    what the driver counts for this process
      = tensors, as requested, and what the library adds by rounding
      + freed memory that waits for a stream
      + fragments: free parts of segments (or of pages in expandable segments) that are in use
      + cached memory, which empty_cache() returns to the driver, and private pools (CUDA graphs), which it does not
      + memory of other libraries
      + the context: the driver's figure minus the pools, if it was read when the program had just begun to use it
      + unaccounted: the code of kernels, communication buffers, memory allocated outside all libraries, and an
        unknown context

Each term but the last is a figure of the library that has the memory. The terms of torch's pool come from a snapshot of
its blocks or, without one, from its counters: some fall when memory is freed (`allocated`), others when it can be used
again (`active`, `requested`). The last term is the remainder and is always shown. It may be below zero, because the
driver's figure is up to a second older than the others.
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
"""The terms of torch's pool, from the tensors to the outermost."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term in bytes; UNKNOWN where it is not known."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceBreakdown:
    """The terms of a device's memory. The terms up to `unaccounted` add up to `used by this process`, where that is
    known; the terms after it describe the card. `reason` says why a term is not known."""

    device: str
    terms: tuple[Term, ...]
    reason: str

    def __getitem__(self, name: str) -> int:
        """Bytes of a term; raises KeyError for an unknown one."""
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
    """An aligned line for each term that is not 0; sums come after their terms."""
    from hiwater._os.sizes import format_size

    shown = [term for term in terms if term.bytes != 0 or term.name in {USED, UNACCOUNTED}]
    width = max((len(term.name) for term in shown), default=0)
    return [
        f"  {term.name:<{width}}  {'unknown' if is_unknown(term) else format_size(term.bytes):>10}" for term in shown
    ]


def is_unknown(term: Term) -> bool:
    """Whether a term's figure is not known. A sum or remainder is never −1, the value of UNKNOWN."""
    return term.bytes == UNKNOWN


def now() -> list[DeviceBreakdown]:
    """The terms of the memory of each device in use now, with the driver's figures where available (extra `gpu`).

    Reads every segment of torch's pools for the memory of private pools. This takes some milliseconds, or more while
    torch records its history with all frames.
    """
    return [of_device(source, device, reads_pools=True) for source, device in in_use()]


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
    """Build the terms from the figures of each source.

    `flat` are torch's statistics (or {"allocated": …, "reserved": …} of another library), `others` the bytes of other
    libraries on the same card, `state` the sums of a snapshot of torch's blocks, used instead of `flat`,
    `context_bytes` the bytes outside the pools when the program had just begun to use the device, `process` and `card`
    the driver's figures.
    """
    pool = _of_state(state) if state is not None else _of_pool(flat)
    terms = [*pool, *(Term(f"held by {name}", size) for name, size in (others or {}).items())]
    if context_bytes != UNKNOWN:
        terms.append(Term(CONTEXT, context_bytes))
    reasons = [reason] if reason else []
    known = sum(term.bytes for term in terms if not is_unknown(term))
    reasons += [figure.reason for figure in (process, card) if figure is not None and figure.reason]
    if process is None or process.bytes == UNKNOWN:
        terms += [Term(UNACCOUNTED, UNKNOWN), Term(USED, UNKNOWN)]
    else:
        terms += [Term(UNACCOUNTED, _not_unknown(process.bytes - known)), Term(USED, process.bytes)]
    if card is not None:
        terms += _of_card(card, process)
    return DeviceBreakdown(device, tuple(terms), "; ".join(reasons))


def of_device(
    source: Backend, device: Device, *, reads_pools: bool = False, context_bytes: int = UNKNOWN
) -> DeviceBreakdown:
    """The terms of a device's memory now. With `reads_pools`, those of torch's pools come from a snapshot instead of
    its counters."""
    found = card_of(device)
    card = found[0].card(found[1]) if found is not None else None
    process = found[0].process(found[1], has_context=True) if found is not None else None
    reason = "" if found is not None else "the driver's figures are missing: " + _why_no_card()
    try:
        flat = source.statistics(device) if source.name == "torch" else _library_bytes(source, device)
    except Exception as error:  # noqa: BLE001 - a library may raise anything: its memory is then part of the unaccounted
        flat = {}
        refusal = f"{source.name} has no figures for it ({type(error).__name__}: {error})"
        reason = f"{refusal}; {reason}" if reason else refusal
    segments = source.segments(device) if reads_pools else None
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
    """NVML and its device for a library's device. None where the card is not known, or NVML does not work."""
    from hiwater.meters.devices.nvml import Nvml

    nvml = backend("nvml")
    assert isinstance(nvml, Nvml)
    if not nvml.status().works:
        return None
    card = identity.card_of(device, nvml.devices())
    return (nvml, card) if card is not None else None


def _of_state(state: AllocatorState) -> list[Term]:
    """The exact terms of the pool, from its blocks."""
    private = state.private_free_segments_bytes
    sizes = (
        state.requested_bytes, state.rounding_bytes, state.awaiting_free_bytes, state.inactive_split_bytes,
        state.free_segments_bytes - private, private,
    )  # fmt: skip
    return [Term(name, size) for name, size in zip(OF_PROCESS, sizes, strict=True)]


def _of_pool(flat: Mapping[str, int]) -> list[Term]:
    """The terms of the pool, from its counters.

    `allocated` no longer includes freed memory that waits for a stream; `active` and `requested` still do. The rounding
    of such memory is not known, so it is counted as rounding of tensors: their figure is too low by that amount.
    """
    if "reserved" in flat or "allocated" in flat:  # a library with only these two figures
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
        # In the second version of the driver's figures, `used` does not include what the driver reserves for itself.
        terms.append(Term(ELSEWHERE, _not_unknown(card.used_bytes - ours - others)))
    return [*terms, Term(CARD, card.used_bytes)]


def _private(flat: Mapping[str, int]) -> int:
    """An upper bound of free memory in private pools, because the counter includes memory in use. 0 before torch
    2.15, where it is part of `cached`."""
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


def _library_bytes(source: Backend, device: Device) -> dict[str, int]:
    return {quantity: standing.now for quantity, standing in source.standings(device).items()}


def _others(source: Backend, device: Device) -> dict[str, int]:
    """The bytes of other libraries on the same card, where the card is known to be the same."""
    found: dict[str, int] = {}
    for other in allocators():
        if other.name == source.name or not other.status().works:
            continue
        for each in other.devices():
            if identity.is_same(each, device):
                figures = _library_bytes(other, each)
                found[other.name] = figures.get("reserved", figures.get("allocated", 0))
    return found


def _why_no_card() -> str:
    status = backend("nvml").status()
    return "it is not clear which of its cards this is" if status.works else status.reason
