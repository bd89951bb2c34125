"""The type of the JSON report. `report.schema.json` in report/schemas is made from it."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from hiwater.analysis.user_lines import Group
from hiwater.capture import Resident, Totals
from hiwater.capture.at_once import Instant
from hiwater.capture.document_types import Keywords, Signed
from hiwater.capture.format import COUNTED_KINDS, KINDS
from hiwater.capture.limits import Pressure
from hiwater.capture.program import ENDED_BY
from hiwater.capture.residency_snapshots import Part
from hiwater.capture.run_index import ShortProcess, Unrecorded
from hiwater.capture.timeline import ScopeSpan
from hiwater.report.advice import FindingData, Hint
from hiwater.report.document import CountedKind, Ended, FrameData, KindAsked, Mode, Moment
from hiwater.report.export.json_devices import DeviceData, DeviceHistoryData
from hiwater.report.job_data import JobData, Role
from hiwater.report.stack_tables import PathNode


class ProcessData(TypedDict):
    """The recorded process."""

    pid: int
    argv: list[str]
    python: str
    hiwater: str
    mode: Mode
    sample_bytes: int
    ended: Ended
    exit_code: Signed | None
    signal: str | None
    """the signal that ended the process, if it is known: by its capture, or because its parent learned it"""
    ended_by: Annotated[str, Keywords(enum=ENDED_BY)]
    """how the process ended, where more is known than its exit code: an uncaught signal, SIGSEGV at the end of a stack,
    a fatal error of the interpreter, `_exit()` without exit callbacks, another program in its place"""
    words: str
    """the process and how it ended, as in every report; it may run on after its recording"""
    stop_reason: str | None
    host: str
    """name of the machine; empty when it is not known"""
    rank: str | None
    """number of the process in a job"""
    allocator: str | None
    """allocators other than the C library's, the one malloc belongs to first; null where there is none"""
    own_code: str | None
    """what counted as the user's own code when the process was recorded; null for a capture that does not say"""
    started_at: str | None
    """ISO 8601, UTC"""
    duration_ns: int
    parent_pid: int | None
    """process number of the parent"""
    started_by: str
    """how a recorded process started this one, `fork` or `exec`; empty when none did"""
    inherited_bytes: int
    """what the parent had live at the fork; in no other figure of this process"""


class PeakData(TypedDict):
    """The moment the counted kinds together were highest."""

    allocated_bytes: int
    """requested bytes of live blocks, used anonymous mappings and shared memory that the process made at the allocated
    peak; the sum of stacks[].bytes of an unfiltered report of the peak"""
    blocks: int
    at_ns: int
    python_bytes: int
    native_bytes: int
    mapping_bytes: int
    device_bytes: int
    shared_bytes: int
    standard_error_bytes: int
    """upper bound for the standard error of allocated_bytes; 0 when every block was recorded"""
    recorded_bytes: Signed
    """the recorder's own sum; equal to allocated_bytes but for a process killed in the middle of an event"""


class CallPath(TypedDict, total=False):
    """Who allocated something."""

    node: int | None
    """in the report: place in `nodes` of the innermost frame; null where no frame is known"""
    frame: FrameData | None
    """in the page: the innermost frame, without the import system's; null where that is not known"""


class LargeData(CallPath):
    """One of the largest blocks."""

    bytes: int
    touched_bytes: int
    """in RAM"""
    from_malloc: bool
    thread: str


class ResidencyData(TypedDict):
    """Where resident memory was at one moment: the parts add up to resident_bytes."""

    at_ns: int
    resident_bytes: int
    parts: list[Part]
    large: list[LargeData]


class EndData(TypedDict):
    """What was never freed."""

    allocated_bytes: int
    blocks: int


class RefusalData(CallPath):
    """A request that failed."""

    at_ns: int
    bytes: int
    """asked for"""
    thread: str


class RefusalsData(TypedDict):
    """Requests for memory that the program did not get."""

    count: int
    """at most 10,000 are kept"""
    last: list[RefusalData]


class WatchedData(TypedDict):
    """A process that was watched from outside."""

    pid: int
    parent_pid: int
    name: str
    command: list[str]
    start_ns: int
    end_ns: int | None
    peak_bytes: int
    """0 for one that was too short-lived to be read"""
    exact: bool
    exit_status: Signed | None
    """negative for the signal that ended it; null where nobody could tell"""
    samples: int


class MarkerData(TypedDict):
    """A named moment."""

    at_ns: int
    name: str


ListedData = TypedDict(
    "ListedData", {"class": Annotated[str, Keywords(enum=KINDS[len(COUNTED_KINDS) :])], "bytes": int, "blocks": int}
)


class ShownData(TypedDict):
    """What `stacks` is about: --at and --kind."""

    at: Moment
    at_ns: int
    start_ns: int
    end_ns: int
    kind: KindAsked
    bytes: int
    """the sum of stacks[].bytes"""
    blocks: int
    error_bytes: int
    """most by which any one stack's figure may be out of date"""


class UserLineData(FrameData):
    """A line of source, with all that it called. Each byte is in one line; bytes are without untouched_bytes."""

    bytes: int
    blocks: int
    untouched_bytes: int
    """allocated, and in no residency snapshot touched: not in RAM"""
    standard_error_bytes: int
    """at most; 0 where every block was recorded"""
    library: str
    """the package that holds most of it; empty where none does"""
    library_bytes: int
    group: Group
    """line: of the user's own code; waited: the same, where most of it is of code that no line of the user's own code
    called, and for which a thread waited at the line; import: what an import allocated, by the line that imported;
    other: code that no line of the user's own code called"""


class AnswerData(TypedDict):
    """The sentence that every report leads with, in three parts: what is before the place of the headline's line, this
    place, what is after it."""

    before: str
    place: str
    after: str


class LinesData(TypedDict):
    """All that is shown, by line: bytes and untouched_bytes of the rows sum to shown.bytes where none is left out. The
    user's own lines come first, then imports, then other code; most bytes first in each group."""

    rows: list[UserLineData]
    rows_left_out: int
    imports_bytes: int
    other_bytes: int
    untouched_bytes: int


class GroupData(FrameData):
    """A row of --by."""

    self_bytes: int
    self_blocks: int
    total_bytes: int
    self_standard_error_bytes: int
    """at most; 0 where every block was recorded"""
    total_standard_error_bytes: int
    """at most; 0 where every block was recorded"""


class AggregateData(TypedDict):
    """Where several captures are shown: the highest sum of what the processes of this machine held at the same instant.
    Peaks do not add up."""

    headline: UserLineData | None
    """the line with most memory at the instant of `allocated`, over all processes"""
    host: str
    processes: int
    allocated: Instant | None
    resident: Instant | None


class ShortData(TypedDict):
    """The sums of short_processes."""

    processes: int
    allocated_bytes: int
    allocations: int
    highest_peak_bytes: int


class RunData(TypedDict):
    """Of a run of several processes, what is known of those without a report; in the first report alone."""

    job: NotRequired[JobData]
    captures: int
    """each has a report"""
    processes: int
    """with a capture or short: a process that executes another program has a capture for each program"""
    short: ShortData
    short_processes: list[ShortProcess]
    """children of which these figures are left and no capture"""
    unrecorded: list[Unrecorded]
    """Python processes that were started and not recorded: in no figure"""
    unreadable: list[str]
    """captures of the run that cannot be read, and why"""


class SummaryData(TypedDict):
    """The report without its stacks, tables and children, as the page has it, too."""

    schema: Literal["hiwater.report/3"]
    process: ProcessData
    peak: PeakData
    resident: Resident
    breakdown: ResidencyData | None
    """where resident memory was, at the residency snapshot with the most of it; null in captures without residency
    snapshots"""
    breakdown_at_end: ResidencyData | None
    """the same at the last snapshot"""
    devices: list[DeviceData]
    """accelerators that the program used"""
    device_histories: list[DeviceHistoryData]
    """histories that allocators of devices kept, apart from all figures of RAM"""
    end: EndData
    totals: Totals
    lost_events: int
    shortcomings: list[str]
    """what the recorded process did not let the recorder see"""
    refusals: RefusalsData
    pressure: list[Pressure]
    """the last reading of the limits; empty in captures without"""
    processes: list[WatchedData]
    """the processes that `hiwater sample` watched from outside, the target first"""
    scopes: list[ScopeSpan]
    """named intervals that the program told of, as they ended"""
    markers: list[MarkerData]
    """moments that the program named with `hiwater.mark()`"""
    problems: list[str]
    """what contradicts itself in the capture; empty for a sound one"""
    notes: list[str]
    """what is particular about the figures of some libraries: those with an allocator of their own"""
    mappings: list[ListedData]
    """listed and never counted, at the moment shown"""
    shown: ShownData
    headline: UserLineData | None
    """the line to change first, of what is shown; `hiwater run` and every report lead with it"""
    answer: AnswerData
    lines: LinesData
    explain: list[FindingData]
    """advice, the largest sure saving first: at most five findings, each of at least 5 % of the peak and 1 MiB"""
    hints: list[Hint]
    groups: NotRequired[list[GroupData]]
    """With --by function, line, file, module, thread or task: self_bytes sum to shown.bytes; total_bytes count each
    byte once, however often the thing is on the stack."""


class StackData(TypedDict):
    """What one call path holds, of one kind of memory."""

    bytes: int
    blocks: int
    kind: CountedKind
    thread: str
    standard_error_bytes: NotRequired[int]
    """of bytes, at most; only in a sampled recording"""
    node: int | None
    """place in `nodes` of the innermost frame; null where no frame is known"""


class OfSeveral(TypedDict, total=False):
    """What the report of one of several processes has."""

    role: Role
    """of a process of a job"""
    aggregate: AggregateData
    run: RunData
    """in the first report alone"""


class ReportData(SummaryData, OfSeveral):
    """What `hiwater report --format json` writes for one capture; of several, child processes are in their parent's
    `children`, and processes without a common parent make a list of these. Sizes are bytes, times are nanoseconds since
    the recording began. Members are only ever added."""

    frames: list[FrameData]
    """the distinct frames of all call paths"""
    nodes: list[PathNode]
    """the call paths of stacks, refusals and large blocks: each is a frame and the path of its caller"""
    stacks: list[StackData]
    """largest first"""
    children: list[ReportData]
    """the same for each child process whose capture was given"""
