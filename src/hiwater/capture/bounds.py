"""What a capture may hold at most. A capture may come from elsewhere, and its figures decide how much memory and time a
reader takes.

Every bound is here, once: `reader`, `archives` and `run_index` check them before memory is taken,
docs/capture-format.md lists them, and the fuzzer (tests/stress/fuzz.py) makes captures that reach and exceed them. They
are far above what hiwater records.
"""

from __future__ import annotations

from typing import NamedTuple

SMALLEST_EXTENT_BYTES, LARGEST_EXTENT_BYTES = 4096, 1 << 30
LARGEST_TEXT_BYTES = 1 << 20  # of the header, and of the schema's text
FREE_BYTES = 8 << 20
MOST_TIMES_STORED = 32
"""A capture may unpack to FREE_BYTES and MOST_TIMES_STORED times the room that it takes, on the disk or in an
archive: holes and zeros cost whoever made it nothing. The tables of a recording compress to a tenth at most."""

LARGEST_FIGURE = 1 << 62
"""Of unsigned numbers: no count, time or size is larger, and two of them can be added up."""
LONGEST_ARGUMENTS = 1 << 17  # characters of a command's arguments, as JSON; of longer ones the first are read
# Of a function, a file and the like; of longer ones the beginning is read, as facts they are not there.
LONGEST_NAME_BYTES = 4096

OTHER_FIGURES = {
    ("codes", "kind"): (1 << 16) - 1, ("codes", "first_line"): (1 << 32) - 1, ("nodes", "line"): (1 << 32) - 1,
    ("markers", "value"): (1 << 64) - 1,
}  # fmt: skip
"""Figures that are kept in fewer bits, whatever type the schema gives them; and what a program asked for and was
refused, which may be anything."""
LAST_KIND_OF_STEP = 14  # of `holders.StepKind`

LARGEST_INDEX_BYTES = 8 << 20  # of a merged capture, as JSON: 60,000 captures
LARGEST_DIRECTORY_BYTES = 16 << 20  # of an archive: 100,000 members
LARGEST_ROWS_BYTES = 64 << 20  # of the index of a run: 131,072 rows
LONGEST_ROW_BYTES = 4096  # in a merged capture; a run's own have 512
MOST_REFUSED_CHILDREN = 100_000  # that are counted: header.refused_children
LARGEST_HISTORY_BYTES = 1 << 30  # of another library, and what it unpacks to
MOST_ATTACHED_OBJECTS = 1_900_000  # dicts and lists of a pickle: 100,000 events of each of 16 devices, 250 B each

MOST_RECORDS = {
    "string_bytes": 1 << 30, "strings": 1 << 24, "codes": 1 << 24, "nodes": 1 << 26, "accounts": 1 << 26,
    "account_peaks": 1 << 26, "slices": 100_000, "slice_entries": 1 << 27, "timeline": 1_000_000, "facts": 100_000,
    "markers": 500_000, "residency": 200_000, "large_blocks": 200_000, "pressure": 200_000, "devices": 256,
    "device_samples": 4_000_000, "device_terms": 500_000, "scopes": 100_000, "live_snapshots": 10_000,
    "holder_searches": 1_000, "holder_paths": 2_000_000, "holder_blocks": 8_000_000, "holder_references": 8_000_000,
    "relatives": 4_000_000, "modules": 10_000, "processes": 100_000, "process_samples": 50_000_000, "attached": 1 << 30,
}  # fmt: skip
"""Of each table. Records of tables with few become objects of the reader."""

FACTS = {
    "argv": "JSON", "engine_memory": "JSON", "allocator_state": "JSON", "sent code": "JSON", "window_ns": "two numbers",
    "cwd": "path", "cgroup_events": "path",
    **dict.fromkeys((
        "ppid", "oom_kills", "hiwater_code_bytes", "hiwater_code_file_bytes", "live_before_bytes",
        "reserved_peak_bytes", "worker_limit_bytes", "events", "ticks", "missed_ticks", "sum_peak_bytes",
    ), "number"),
    **dict.fromkeys((
        "python", "hiwater", "host", "rank", "restart", "engine", "worker", "run_id", "started_by", "recorder",
        "device", "source", "allocator",
    ), "name"),
    **dict.fromkeys((
        "program", "notes", "own_code", "attached", "limit_bytes", "children_found_by", "calls_not_recorded",
        "resident_not_sampled", "freed_unseen", "last_words_not_written", "recorded cell", "cell x.py",
    ), "text"),
}  # fmt: skip
"""What a reader takes the value of each fact for. JSON that is none, numbers that are none, and paths and names that
are longer than any count as not there: formats with a row for each stack repeat them in each row. Texts are escaped and
shortened where they are shown; what paths may lead to is said in `analysis/source.py` and `_os/cgroup_files.py`."""


class Reference(NamedTuple):
    """A field with the number of a record of another table. Of strings, `most_bytes` is what all that these fields
    name may come to."""

    table: str
    field: str
    target: str
    most_bytes: int = 0


_NAMES, _TEXTS = 256 << 20, 32 << 20

REFERENCES = (
    Reference("codes", "function", "strings", _NAMES), Reference("codes", "file", "strings", _NAMES),
    Reference("nodes", "code", "codes"), Reference("accounts", "node", "nodes"),
    Reference("slice_entries", "account", "accounts"), Reference("facts", "key", "strings", _TEXTS),
    Reference("facts", "value", "strings", _TEXTS), Reference("markers", "node", "nodes"),
    Reference("processes", "name", "strings", _TEXTS), Reference("processes", "command", "strings", _TEXTS),
    Reference("process_samples", "process", "processes"), Reference("scopes", "name", "strings", _TEXTS),
    Reference("residency", "part", "strings", _TEXTS), Reference("large_blocks", "node", "nodes"),
    Reference("device_samples", "device", "devices"), Reference("device_terms", "device", "devices"),
    Reference("device_terms", "term", "strings", _TEXTS),
    *(Reference("devices", name, "strings", _TEXTS) for name in ("name", "backend", "source", "note")),
    Reference("live_snapshots", "name", "strings", _TEXTS),
    *(Reference("holder_searches", name, "strings", _TEXTS) for name in ("name", "failure")),
    *(Reference("holder_paths", name, "strings", _TEXTS) for name in ("label", "type")),
    Reference("holder_blocks", "account", "accounts"),
    *(Reference("modules", name, "strings", _TEXTS) for name in ("path", "identity")),
    Reference("modules", "code", "codes"),
)  # fmt: skip


PARTS_OF_SEARCHES = (
    ("holder_paths", "first_path", "paths"), ("holder_blocks", "first_block", "blocks"),
    ("holder_references", "first_reference", "references_between"),
)  # fmt: skip
"""The rows of a search for holders: a table, and the fields with the first one and their number."""


def most_unpacked(stored_bytes: int) -> int:
    """What `stored_bytes` of a file or an archive may unpack to."""
    return FREE_BYTES + MOST_TIMES_STORED * stored_bytes
