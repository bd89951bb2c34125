"""The report of refused memory: the request, the allocator, stacks, tensors and the verdict, as data, text and files.

It is made in the program that failed. A part that cannot be made is left out, with a note.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hiwater._os import ownership
from hiwater._os.replacing import replacing
from hiwater._os.sizes import format_size as size
from hiwater.allocator_state import AllocatorState, of_segments, requested_of
from hiwater.contrib.devices.torch import segments_of
from hiwater.contrib.torch import oom_message, oom_verdict
from hiwater.contrib.torch.oom_message import Observed, Refusal
from hiwater.contrib.torch.oom_verdict import Facts, RefusalVerdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

SCHEMA = "hiwater.oom/1"
_MOST_STACKS, _MOST_TENSORS, _MOST_FRAMES, _MOST_STREAMS = 30, 40, 40, 4
_TORCH_FOLDER = os.sep + "torch" + os.sep
_COMMAND = ("<string>", ownership.OWN)  # the text of `-c`, as torch calls it


@dataclass(frozen=True, slots=True)
class OomReport:
    """A refused request and what is known about it. `stacks` and `tensors` are plain data, largest first. The
    allocator's state is that after the exception, so memory that the program released meanwhile is missing."""

    refusal: Refusal
    device: str
    state: AllocatorState | None
    driver_free_bytes: int | None
    others_bytes: int | None
    stacks: list[dict[str, Any]]
    tensors: list[dict[str, Any]]
    categories: dict[str, int]
    verdict: RefusalVerdict
    pid: int = field(default_factory=os.getpid)
    at_unix_ns: int = field(default_factory=time.time_ns)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as data for JSON. Sizes are in bytes."""
        return {"schema": SCHEMA, **asdict(self)}

    def __str__(self) -> str:
        """The report as text."""
        return "\n".join(_lines(self)) + "\n"

    def write(self, stem: str) -> tuple[str, str]:
        """Write `STEM.json` and `STEM.txt`, and return their names. Raises OSError."""
        names = f"{stem}.json", f"{stem}.txt"
        for name, text in zip(names, (json.dumps(self.to_dict(), indent=1), str(self)), strict=True):
            with replacing(Path(name), is_private=True) as stream:
                stream.write(text)
        return names


def make(
    error: BaseException,
    observed: Observed | None = None,
    model: Any = None,
    history: Mapping[str, Any] | None = None,
) -> OomReport:
    """The report on `error`. `history` is torch's snapshot with its events, if there is one. Parts that fail do not
    raise: they are in `notes`."""
    refusal, notes = oom_message.parse(str(error)), list[str]()
    none: tuple[list[dict[str, Any]], dict[str, int]] = ([], {})
    device = "cpu" if refusal.is_cpu else f"cuda:{_current() if refusal.device is None else refusal.device}"
    segments = _tried(lambda: _segments(device, history), notes, "the allocator's state")
    state = _tried(lambda: of_segments(segments), notes, "the allocator's state") if segments else None
    tensors, categories = _tried(lambda: _tensors(device, model, error, notes), notes, "the tensors") or none
    driver_free = observed.driver_free_bytes if observed is not None else refusal.free_bytes
    total = refusal.total_bytes
    if driver_free is None and device != "cpu":  # an error of CUDA's own: it names no sizes
        total = _tried(lambda: _card_bytes(device), notes, "the card's memory")
        driver_free = _tried(lambda: _free_bytes(device), notes, "the driver's free memory")
    others = sum(refusal.other_processes.values()) or None
    if others is None and device != "cpu":
        others = _tried(lambda: _others(device), notes, "what other processes hold")
    wanted = observed.requested_bytes if observed is not None else refusal.requested_bytes
    facts = Facts(
        requested_bytes=wanted,
        rounded_bytes=_tried(lambda: _rounded(history, device, wanted), notes, "the request's own size"), state=state,
        driver_free_bytes=driver_free, total_bytes=total, allowed_bytes=refusal.allowed_bytes,
        reserved_bytes=refusal.reserved_bytes or refusal.allocated_bytes, unallocated_bytes=refusal.unallocated_bytes,
        others_bytes=others, saved_bytes=categories.get("saved"), optimizer_bytes=categories.get("optimizer"),
        gradient_bytes=categories.get("gradient"), is_cpu=refusal.is_cpu,
    )  # fmt: skip
    return OomReport(
        refusal, device, state, driver_free, others,
        _tried(lambda: by_stack(segments or ()), notes, "the stacks") or [], tensors, categories,
        oom_verdict.judge(facts), notes=notes,
    )  # fmt: skip


def by_stack(segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The stacks of the blocks in use, largest first; frames root first. Without a history there is one entry,
    without frames."""
    held: dict[tuple[tuple[str, int, str], ...], list[Any]] = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                frames = block.get("frames") or ()
                places = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames)
                entry = held.setdefault(places, [0, 0, frames])
                entry[0] += requested_of(block)
                entry[1] += 1
    ordered = sorted(held.values(), key=lambda entry: -entry[0])[:_MOST_STACKS]
    return [
        {
            "bytes": count, "blocks": blocks,
            "frames": [
                {"function": frame["name"], "file": frame["filename"], "line": frame["line"]}
                for frame in frames[:_MOST_FRAMES][::-1]
            ],
        }
        for count, blocks, frames in ordered
    ]  # fmt: skip


def _tried(call: Any, notes: list[str], what: str) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - memory has just been refused: anything may fail now
        notes.append(f"{what} could not be read ({type(error).__name__}: {error})")
        return None


def _current() -> int:
    torch = sys.modules["torch"]
    return int(torch.cuda.current_device()) if torch.cuda.is_initialized() else 0


def _segments(device: str, history: Mapping[str, Any] | None) -> list[Mapping[str, Any]] | None:
    torch = sys.modules["torch"]
    if device == "cpu" or not torch.cuda.is_initialized():
        return None
    if history is None:
        return list(segments_of(torch.cuda, _number(device)))
    return [one for one in history["segments"] if one.get("device", 0) == _number(device)]


def _rounded(history: Mapping[str, Any] | None, device: str, wanted: int | None) -> int | None:
    """The size of the refused request, rounded up to that of a block, from the last refusal in the history, if the
    size can be this one's."""
    traces = history.get("device_traces", ()) if history is not None and device != "cpu" else ()
    if wanted is None or _number(device) >= len(traces):
        return None
    refused = next((event for event in reversed(traces[_number(device)]) if event["action"] == "oom"), None)
    least, most = oom_message.request_of_segment(wanted)
    return refused["size"] if refused is not None and least <= refused["size"] <= most else None


def _number(device: str) -> int:
    return int(device.partition(":")[2])


def _card_bytes(device: str) -> int | None:
    torch = sys.modules["torch"]
    return torch.cuda.get_device_properties(_number(device)).total_memory if torch.cuda.is_initialized() else None


def _free_bytes(device: str) -> int | None:
    """The bytes that the driver has left now. Raises the driver's error again if that lasts."""
    torch = sys.modules["torch"]
    return int(torch.cuda.mem_get_info(_number(device))[0]) if torch.cuda.is_initialized() else None


def _others(device: str) -> int | None:
    """The bytes of other processes on the card, if NVML is available and knows them."""
    from hiwater.meters.devices import UNKNOWN, backend, reconcile

    ours = next((each for each in backend("torch").devices() if each.name == device), None)
    found = reconcile.card_of(ours) if ours is not None else None
    held = found[0].process(found[1], has_context=True).others_bytes if found is not None else UNKNOWN
    return held if held != UNKNOWN else None


def _tensors(
    device: str, model: Any, error: BaseException, notes: list[str]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The tensors on the device by name, and their bytes by category. Limits of the search are added to `notes`."""
    from hiwater.contrib.torch.reporter import MemReporter

    report = MemReporter(model).data(device)
    notes += report.notes
    found = report.device(device)
    if found is None:
        return [], {}
    names = _names_in(error)
    ordered = sorted(found.storages, key=lambda entry: -(entry.block_bytes or entry.nbytes or 0))[:_MOST_TENSORS]
    listed = [
        {
            "name": names.get(_key(entry.address, entry.owner.shape, entry.owner.dtype), entry.owner.name)
            if entry.category in ("unnamed", "saved") else entry.owner.name,
            "bytes": entry.block_bytes or entry.nbytes or 0, "category": str(entry.category),
            "dtype": entry.owner.dtype,
            "shape": None if entry.owner.shape is None else [str(one) for one in entry.owner.shape],
            "origin": entry.origin,
        }
        for entry in ordered
    ]  # fmt: skip
    return listed, {str(category): count for category, count in found.identity.by_category.items() if count}


def _key(address: int, shape: Any, dtype: str) -> object:
    """The identity of a tensor: the address of its storage; on the CPU, where the reporter has no addresses, shape
    and type."""
    return address or (None if shape is None else tuple(shape), dtype)


def _names_in(error: BaseException) -> dict[object, str]:
    """The names of tensors in variables of the functions in the exception's traceback."""
    from hiwater.contrib.torch.frames import variables_of

    torch, names = sys.modules["torch"], dict[object, str]()
    place = error.__traceback__
    while place is not None:
        for name, value in variables_of(place.tb_frame):
            if issubclass(type(value), torch.Tensor):
                try:
                    address = value.untyped_storage().data_ptr() if value.device.type != "cpu" else 0
                    key = _key(address, value.shape, str(value.dtype).removeprefix("torch."))
                    names[key] = f"{name} in {place.tb_frame.f_code.co_name}()"
                except (RuntimeError, NotImplementedError):  # a tensor without a storage
                    continue
        place = place.tb_next
    return names


# For people


def _lines(report: OomReport) -> Iterator[str]:
    refusal, state = report.refusal, report.state
    yield f"hiwater: memory of {report.device} was refused to process {report.pid}{_most(report)}"
    yield f"  {report.verdict.kind}: {report.verdict.why}"
    for advice in report.verdict.advice:
        yield f"  - {advice}"
    if state is not None:
        yield from ("", "What the allocator held after the exception:")
        yield from _of_state(state)
    yield from _of_stacks(report)
    if report.tensors:
        yield from ("", "Largest tensors:")
        yield from (
            f"  {size(one['bytes']):>11}  {one['category']:<10} {_tensor_text(one)}" for one in report.tensors[:15]
        )
    if report.categories:
        yield from (
            "",
            "By category: " + ", ".join(f"{name} {size(count)}" for name, count in report.categories.items()),
        )
    yield from ("", *(f"  ! {note}" for note in report.notes), f"torch said: {refusal.message}")


def _most(report: OomReport) -> str:
    """The line of the user's code that held most, with its bytes in all its stacks; "" without a history."""
    held: dict[str, int] = {}
    for stack in report.stacks:
        own = _own(stack["frames"])
        if own:
            held[_place(own[-1])] = held.get(_place(own[-1]), 0) + stack["bytes"]
    if not held:
        return ""
    place = max(held, key=held.__getitem__)
    return f"; {size(held[place])} were live that {place} allocated"


def _own(frames: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The frames of the user's code; where there are none, those of other libraries than torch; else all."""
    owners = ownership.owners([frame["file"] for frame in frames], [_COMMAND, *ownership.rules()])
    own = [frame for frame, owner in zip(frames, owners, strict=True) if owner == ownership.OWN]
    return own or [frame for frame in frames if _TORCH_FOLDER not in frame["file"]] or list(frames)


def _place(frame: Mapping[str, Any]) -> str:
    return f"{frame['function']} ({frame['file']}:{frame['line']})"


def _of_state(state: AllocatorState) -> Iterator[str]:
    terms = (
        ("in use", state.requested_bytes), ("rounding", state.rounding_bytes),
        ("waiting for a stream", state.awaiting_free_bytes), ("free between blocks in use", state.inactive_split_bytes),
        ("free segments and pages", state.free_segments_bytes),
    )  # fmt: skip
    yield from (f"  {size(count):>11}  {name}" for name, count in terms if count)
    largest = sorted(state.largest_free.items(), key=lambda each: -each[1])[:_MOST_STREAMS]
    largest_text = "; the largest free blocks: " + ", ".join(f"{size(count)} ({name})" for name, count in largest)
    yield f"  {size(state.reserved_bytes):>11}  reserved{largest_text if largest else ''}"


def _of_stacks(report: OomReport) -> Iterator[str]:
    known = [stack for stack in report.stacks if stack["frames"]]
    if not known:
        if report.device != "cpu":
            yield from (
                "",
                "By stack: unknown, because no history was recorded; `hiwater run` and hiwater.record() record one",
            )
        return
    yield from ("", "Stacks that held most:")
    for stack in known[:5]:
        yield f"  {size(stack['bytes']):>11}  {stack['blocks']:,} block{'' if stack['blocks'] == 1 else 's'}"
        shown = [frame for frame in stack["frames"] if _TORCH_FOLDER not in frame["file"]] or stack["frames"]
        yield from (f"               {_place(frame)}" for frame in shown[:-6:-1])


def _tensor_text(one: Mapping[str, Any]) -> str:
    shape = "" if one["shape"] is None else f"  ({', '.join(one['shape'])}) {one['dtype']}"
    return f"{one['name']}{shape}"
