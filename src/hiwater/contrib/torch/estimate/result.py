"""The result of an estimate as data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from hiwater.capture.document_types import Keywords, Signed

CONTEXT_BYTES = 512 * 2**20
NOT_COUNTED = (
    "workspaces of cuDNN's convolutions beyond the bound; on the CPU, the workspace of native LSTM, GRU and RNN",
    "temporaries inside a kernel that neither torch's operators show nor hiwater models: sorting, scans, some norms",
    "custom CUDA and Triton kernels: their own operators are not run, or run as their CPU twins",
    "of torch.compile, CUDA graphs, tuning, and splits at DDP's buckets",
    "NCCL's buffers, and other processes on the card",
    "fragmentation beyond the model: max_split_size_mb, CUDA graphs' private pools, other libraries' pools",
    "growth of the context as more kernels are loaded; the figure for it is an assumption",
    (
        "what data-dependent shapes would add, and tensors that stay on the host in the real program but are used in"
        " the step here"
    ),
)


Phase = Annotated[str, Keywords(enum=["before", "forward", "backward", "optimizer", "after"])]


class EstimateModule(TypedDict):
    """What a module holds."""

    module: str
    bytes: int


class EstimateLine(TypedDict):
    """What a line holds. If `file` is empty, `function` is the kind of memory."""

    file: str
    line: int
    function: str
    bytes: int


class EstimatePeak(TypedDict):
    """What is allocated at the peak."""

    categories: dict[str, int]
    """sums to peak_allocated_bytes"""
    modules: list[EstimateModule]
    lines: list[EstimateLine]
    reached_by: EstimateLine
    """the newest request of at least 1 % of the peak"""
    called_by: EstimateLine | None
    """the line of the user's code that led to it, if its own is a library's"""
    step: int
    phase: Phase


class EstimateStep(TypedDict):
    """The peaks of one step; step 0 is what was there before the first."""

    step: int
    peak_allocated_bytes: int
    phases: dict[str, int]
    peak_reserved_bytes: int | None


class EstimateInstant(TypedDict):
    """The highest instant of a stretch of events."""

    event: int
    step: int
    phase: Phase
    bytes: int
    categories: dict[str, int]


class EstimateTry(TypedDict):
    """A change, or several, and the figures of the step with it. If it could not be made, `problem` says why."""

    name: str
    change: str
    """What was changed."""
    price: str
    """What the change costs."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    difference_bytes: Signed | None
    """Of the allocated peaks; below zero, what the change saves."""
    fits: bool | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class EstimateData:
    """The estimated memory of a step of training or inference on a card, in bytes.

    `peak_allocated_bytes` estimates `torch.cuda.max_memory_allocated()`, and `peak_reserved_bytes`
    `max_memory_reserved()`. The latter is None for `device="cpu"`, which has no such allocator and does not round
    sizes. The process also uses `context_bytes`, which is an assumption.
    If cuDNN may need workspaces for convolutions, or DDP may hold buckets for longer, these are without any, and
    `most_allocated_bytes` and `most_reserved_bytes` with the largest and all (otherwise None).
    `needed_bytes` is what the step reserves if that fits, otherwise the least with which it can run. `low_because` has
    the reasons why these figures are too low. With a reason, `fits` is False or None (unknown).
    """

    schema: Literal["hiwater.estimate/1"] = field(default="hiwater.estimate/1", init=False)
    target: str
    mode: Annotated[str, Keywords(enum=["train", "inference"])]
    device: str
    """A card's name, a size as asked for, or cpu."""
    total_bytes: int | None
    context_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    at_peak: EstimatePeak
    steps: list[EstimateStep]
    timeline: list[EstimateInstant]
    """The highest of all is among them."""
    parameters: int
    """A count, not bytes."""
    most_allocated_bytes: int | None = None
    most_reserved_bytes: int | None = None
    batch_size: Annotated[int, Keywords(minimum=1)] | None = None
    fits: bool | None = None
    fits_only_by_retrying: bool | None = None
    needed_bytes: int | None = None
    margin_bytes: Signed | None = None
    """What is left over; below zero, what is missing."""
    low_because: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_counted: list[str] = field(default_factory=lambda: list(NOT_COUNTED))
    tries: list[EstimateTry] = field(default_factory=list)
    """The changes that were asked for, each run by itself."""
    torch_version: str = ""
    peak_used_bytes: int | None = field(default=None, init=False)
    """The bytes that the driver would count for this process: reserved and the assumed context."""

    def __post_init__(self) -> None:
        if self.peak_reserved_bytes is not None:
            object.__setattr__(self, "peak_used_bytes", self.peak_reserved_bytes + self.context_bytes)

    def category(self, name: str) -> int:
        """Bytes of one category at the peak: parameters, gradients, optimizer state, activations, temporaries,
        inputs, buffers, cuBLAS workspaces."""
        return self.at_peak["categories"].get(name, 0)

    def to_dict(self) -> dict[str, Any]:
        """The estimate as `estimate.schema.json` describes it."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)
