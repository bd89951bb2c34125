"""The type of a page's data. From it come `page.schema.json` in report/schemas, and from that the types in `web/`."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from hiwater.analysis.user_lines import Group
from hiwater.capture.document_types import Keywords
from hiwater.report.diff_request import HeadlineData
from hiwater.report.document import FrameData, Mode, Moment
from hiwater.report.export.json_diff import FigureData
from hiwater.report.export.json_holders import ObjectHolders
from hiwater.report.export.report_document import SummaryData
from hiwater.report.html.columns import PackedColumn
from hiwater.report.job_data import JobData, Role

SeriesGroup = Literal["resident", "kind", "device", "reserved", "process", "part"]


class AskedData(TypedDict):
    """What the command line asked for: the page opens there."""

    at: Moment
    slice: int | None
    kind: str
    by: str
    inverted: bool
    frames: str
    """python, mixed or native: which frames stacks have, if native ones were recorded"""
    kept: bool
    """what is live at the end is shown first"""


class FileData(TypedDict):
    """A file of source, or what is none."""

    name: str
    module: str
    library: bool
    """an installed package's, the standard library's, or no Python file"""
    imports: bool
    """the import system's own"""


class GoneColumn(TypedDict, total=False):
    """Only in a page that compares two."""

    gone: PackedColumn
    """1: a line of the earlier capture that is none of the later's"""


class OriginColumn(TypedDict, total=False):
    """Only in a page with native frames."""

    origin: PackedColumn
    """0: no code, 1: Python's, 2 and more: native, and two less is the index of its library in files"""


class FrameColumns(GoneColumn, OriginColumn):
    """Functions at lines."""

    function: PackedColumn
    """index into functions"""
    file: PackedColumn
    """index into files"""
    line: PackedColumn
    """0: none"""
    part_of: PackedColumn
    """index into functions: for a comprehension the function around it, for others the function itself"""
    first_line: PackedColumn
    """of that function, which tells equal names of a file apart; 0: none"""


class NodeColumns(TypedDict):
    """Call paths, depth first: all below a path stand right after it."""

    above: PackedColumn
    """how many nodes earlier the caller is; 0 for node 0, which is no frame"""
    frame: PackedColumn
    """index into frames"""


class ThreadData(TypedDict):
    """A thread of the program."""

    node: int
    """the path that stands for the thread"""
    name: str


class HolderColumns(TypedDict):
    """Call paths with a kind of memory."""

    node: PackedColumn
    """call path"""
    kind: PackedColumn
    """0 python, 1 native, 2 mapping, 3 device, 4 shared; listed and not counted: 5 file, 6 attached, 7 reserved,
    8 slack"""
    sampled: PackedColumn
    """1: of sampled blocks, so that sums have a standard error of at most the root of sample_bytes times them"""
    peak_bytes: PackedColumn
    """live at the allocated peak"""
    peak_blocks: PackedColumn
    """blocks at the allocated peak"""
    end_bytes: PackedColumn
    """live at the end"""
    end_blocks: PackedColumn
    """blocks at the end"""
    total_bytes: PackedColumn
    """asked for over the whole run"""
    total_blocks: PackedColumn
    """allocations over the whole run"""
    temporaries: PackedColumn
    """blocks freed before their thread's next allocation"""
    before_peak_bytes: NotRequired[PackedColumn]
    """what the earlier capture had at its peak; only in a page that compares two"""
    before_end_bytes: NotRequired[PackedColumn]
    """what the earlier capture had at its end; only in a page that compares two"""
    delta_bytes: NotRequired[PackedColumn]
    """signed: by how much it grew between the moments that were compared; only in a page that compares two"""


class AgeColumns(TypedDict):
    """When what is live at the end was allocated; only where the capture has snapshots."""

    snapshots: Annotated[int, Keywords(minimum=1)]
    """of markers, phases and intervals, from which the ages are known"""
    end_bytes: Annotated[list[PackedColumn], Keywords(minItems=4, maxItems=4)]
    """for each holder, the bytes live at the end that were allocated in each quarter of the recording's time, the first
    one first"""


class AliveData(TypedDict, total=False):
    """Of the lines with most, in a capture with a search for holders, what is live at the end."""

    types: list[str]
    """types of the objects, most bytes first"""
    held_by: str
    """what holds most of them, empty where that is not known"""


class LineRow(FrameData, AliveData):
    """A row of summary.lines."""

    group: Group


class LineColumns(TypedDict):
    """The rows of summary.lines and the holders of each, so that any moment can be ranked; not in a page that compares
    two."""

    rows: list[LineRow]
    row: PackedColumn
    """for each holder, an index into rows"""
    libraries: list[str]
    library: PackedColumn
    """for each holder, an index into libraries: the package that the user's line called"""
    untouched_node: PackedColumn
    """call paths of which residency snapshots never saw some bytes touched"""
    untouched_bytes: PackedColumn
    """how many bytes of each of these"""
    untouched_row: PackedColumn
    """an index into rows for each of these: what a library mapped and nobody touched is on the library's row"""


class ChangeColumns(TypedDict):
    """By how much holders differ at a slice's high from the slice before, slice by slice: the sum of all changes up to
    a slice is what was live at its high."""

    count: PackedColumn
    """how many changes each slice has"""
    holder: PackedColumn
    """index into holders"""
    bytes: PackedColumn
    """signed"""
    blocks: PackedColumn
    """signed"""


class MergedData(TypedDict):
    """Small stacks that are not apart."""

    stacks: int
    """so many stacks were merged into their nearest callers' `[smaller stacks]`"""
    most_bytes: int
    """the most that any of them had at any moment"""


class SliceColumns(TypedDict):
    """The recording cut in stretches of time, the open one last."""

    start_ns: PackedColumn
    end_ns: PackedColumn
    peak_ns: PackedColumn
    """when the slice was highest"""
    peak_bytes: PackedColumn
    """what was allocated then"""
    unlisted_bytes: PackedColumn
    """the most by which the figure of one stack may be off"""


class Series(TypedDict):
    """A curve over time."""

    name: str
    group: SeriesGroup
    bytes: PackedColumn
    at_ns: NotRequired[PackedColumn]
    """samples of its own; else the timeline's"""


class LimitLine(TypedDict):
    """A ceiling that was in force at the last reading: of a cgroup, of address space."""

    name: str
    bytes: int


class TimelineData(TypedDict):
    """Memory over time."""

    at_ns: PackedColumn
    points: int
    """how many samples the capture has; the highest of their neighbours are here where those are too many"""
    series: list[Series]
    limits: list[LimitLine]


class PageMarker(TypedDict):
    """A moment in the timeline."""

    at_ns: int
    kind: str
    value: int


class SourcePiece(TypedDict):
    """Lines of a file."""

    line: Annotated[int, Keywords(minimum=1)]
    """of the text's first line"""
    text: str


class SourceFile(TypedDict):
    """A file's text, or the pieces around what allocated."""

    file: int
    """index into files"""
    lines: int
    pieces: list[SourcePiece]
    changed: bool
    """newer than the recording"""


class SourceData(TypedDict):
    """Source text."""

    which: Annotated[str, Keywords(enum=["own", "all", "none"])]
    files: list[SourceFile]
    """hottest first"""
    left_out: int
    """files that did not fit"""


class EarlierData(TypedDict):
    """The earlier capture."""

    name: str
    title: str
    python: str
    pid: int
    mode: Mode
    sample_bytes: int
    duration_ns: int
    exactness: str
    resident_exactness: str
    peak_ns: int
    asked_ns: int
    """the moment that was compared"""


class LaterData(TypedDict):
    """This capture."""

    name: str


class ComparisonData(TypedDict):
    """The earlier one of two captures that are compared; sizes are allocated bytes but for `resident`."""

    before: EarlierData
    after: LaterData
    headline: HeadlineData
    peak: FigureData
    resident: FigureData
    end: FigureData
    notes: list[str]


class WholeFigure(TypedDict):
    """A sum over processes."""

    name: str
    bytes: int
    words: str


class WholeData(TypedDict):
    """This is all processes of a machine at one instant: its threads are the processes."""

    processes: int
    words: str
    """how many processes, and programs"""
    host: str
    figures: list[WholeFigure]


class StackColumns(TypedDict):
    """Who allocated, and what."""

    functions: list[str]
    frames: FrameColumns
    nodes: NodeColumns
    threads: list[ThreadData]
    holders: HolderColumns
    changes: ChangeColumns
    merged: MergedData


class CaptureParts(TypedDict, total=False):
    """What not every capture has."""

    ages: AgeColumns
    user_lines: LineColumns
    object_holders: ObjectHolders
    compared: ComparisonData
    """with what it is compared; only in a page that compares two"""
    whole: WholeData


class CaptureData(StackColumns, CaptureParts):
    """A capture."""

    title: str
    summary: SummaryData
    exactness: str
    """how far the allocated peak can be trusted, in words"""
    resident_exactness: str
    """how exact the resident peak is, in words"""
    asked: AskedData
    files: list[FileData]
    slices: SliceColumns
    timeline: TimelineData
    markers: list[PageMarker]
    source: SourceData


class RunProcess(TypedDict):
    """A process in the table."""

    pid: int
    program: str
    started_by: str
    ended: str
    """how it ended, in words; empty for exit code 0"""
    is_dead: bool
    """a signal ended it"""
    peak_bytes: int
    kept_bytes: int
    resident_peak_bytes: int
    resident_at_least: bool
    """resident_peak_bytes is a lower bound"""
    inherited_bytes: int
    capture: int | None
    """its number in captures; null if the page does not have it"""
    role: NotRequired[Role]


class RunTable(TypedDict):
    """Of several processes: each in a row, those that a signal ended first, and what is known of the others in
    words."""

    processes: list[RunProcess]
    notes: list[str]
    job: NotRequired[JobData]


class PageData(TypedDict):
    """The data in a page of `hiwater report --format html` or `hiwater diff --format html`: base64 of a zlib stream
    that holds the length of this text (4 bytes, little-endian), this text as JSON, and the columns it speaks of. Sizes
    are bytes, times are nanoseconds since the recording began. Members are only ever added."""

    schema: Literal["hiwater.page/3"]
    captures: list[CaptureData]
    """one for each process that was recorded, the first one first; of many processes, those with the highest peaks. All
    processes of a machine at one instant are one more, with `whole`"""
    run: NotRequired[RunTable]
