"""Write the tables of docs/capture-format.md: every field of a capture, what bounds it, and who checks that.

They follow from what the reader itself uses: `hiwater.capture.layout` and `hiwater.capture.bounds`. A test compares
them with the page.

Usage: capture_bounds.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hiwater.capture import bounds
from hiwater.capture.layout import NEEDED_FIELDS, NEEDED_HEADER, OPTIONAL_FIELDS, is_signed

PAGE = Path(__file__).parent.parent / "docs" / "capture-format.md"
BEGIN, END = "<!-- made by tools/capture_bounds.py -->", "<!-- up to here -->"

_REFERENCES, _FIGURES = "`references.check_references`", "`references._check_figures`"
_HEADER = {
    "magic": ("the 8 bytes of every capture", "`layout.read_start`"),
    "version": ("those that this hiwater reads", "`layout.read_start`"),
    "header_bytes": (f"60 B to {bounds.LARGEST_TEXT_BYTES >> 20} MiB", "`layout.read_start`"),
    "schema_offset": ("inside the file", "`reader._pread`"),
    "schema_bytes": (f"2 B to {bounds.LARGEST_TEXT_BYTES >> 20} MiB", "`layout.read_start`"),
    "directory_offset": ("inside the file", "`reader._pread`"),
    "first_extent_offset": ("each extent that is read lies inside the file", "`reader._stay_inside`"),
    "extent_bytes": (
        f"{bounds.SMALLEST_EXTENT_BYTES >> 10} KiB to {bounds.LARGEST_EXTENT_BYTES >> 30} GiB", "`layout.read_start`"
    ),
    "max_extents": ("at least `extents_used`", "`reader._check_header`"),
    "extents_used": (
        (f"all extents: at most {bounds.FREE_BYTES >> 20} MiB and {bounds.MOST_TIMES_STORED} times what the "
            "file takes on the disk"), "`reader._check_room`"
    ),
    "table_count": ("for each table, its most records (below), and the room of its extents",
        "`reader._check_header`, `reader.read_records`"),
    "state": ("1, 2, 3", "`reader._check_header`"),
    "epoch_index": ("0, 1", "`reader._check_header`"),
    "boot_id": ("40 bytes", "the schema"),
    "stop_reason": ("a record of `strings`", _REFERENCES),
    "refused_children": (f"the first {bounds.MOST_REFUSED_CHILDREN:,} are counted", "`run_index.unrecorded`"),
}  # fmt: skip
_SPECIAL = {
    ("strings", "offset"): ("inside `string_bytes`", _REFERENCES),
    ("strings", "length"): (
        ("inside `string_bytes`; all together no longer than these; "
            f"of a name {bounds.LONGEST_NAME_BYTES:,} B are read"), f"{_REFERENCES}, `tables.Strings`",
    ),
    ("nodes", "parent"): ("an earlier record of `nodes`", _REFERENCES),
    ("accounts", "kind"): ("a kind of memory", _REFERENCES),
    ("slices", "first_entry"): ("a range inside `slice_entries`", "`references._check_slices`"),
    ("slices", "entry_count"): ("a range inside `slice_entries`; all together no more than these",
        "`references._check_slices`"),
    ("slices", "end_ns"): ("not before `start_ns`", "`references._check_slices`"),
    ("timeline", "at_ns"): ("ascending", _REFERENCES),
    ("markers", "value"): ("any: a request for memory that was refused may be of any size", ""),
    ("live_snapshots", "slice"): ("those beyond `slices` are left out", "`ages.snapshots`"),
    **{("holder_searches", name): ("a range inside its table", "`references._check_searches`")
       for name in ("first_path", "paths", "first_block", "blocks", "first_reference", "references_between")},
    ("holder_searches", "target"): ("a path of the search", "`references._check_search`"),
    **{("holder_paths", name): ("an earlier path of the search", "`references._check_search`") for name in ("parent",
        "dominator")},
    ("holder_paths", "kind"): ("a kind of step", "`references._check_search`"),
    ("holder_blocks", "path"): ("a path of the search", "`references._check_search`"),
    **{("holder_references", name): ("a path of the search", "`references._check_search`") for name in ("from", "to")},
}  # fmt: skip
_OTHERS = (
    ("a run's `index.jsonl`", f"{bounds.LARGEST_ROWS_BYTES >> 20} MiB; a row 512 B; no link, no pipe",
        "`run_index.read_folder`, `trust.open_regular`"),
    ("a child's capture in `run.hiw.d`", "a file, no link; the bounds of a capture",
        "`run_folder.refuse_link`, `reader.open_file`"),
    ("a merged capture's directory", f"{bounds.LARGEST_DIRECTORY_BYTES >> 20} MiB; members do not overlap",
        "`archives.opened`"),
    ("a merged capture's index", f"{bounds.LARGEST_INDEX_BYTES >> 20} MiB", "`container._index`"),
    ("a merged capture's rows", f"{bounds.LARGEST_ROWS_BYTES >> 20} MiB; a row {bounds.LONGEST_ROW_BYTES:,} B",
        "`container.rows`, `run_index.parse`"),
    ("a member", (f"{bounds.FREE_BYTES >> 20} MiB and {bounds.MOST_TIMES_STORED} times its packed bytes; stored or "
        "deflated; its SHA-256"), "`archives.check_member`, `container._copy`"),
    ("what is attached (`attached`)",
        f"all members: {bounds.FREE_BYTES >> 20} MiB and {bounds.MOST_TIMES_STORED} times the packed bytes",
        "`attachments.read`"),
    ("an attached history", f"{bounds.MOST_ATTACHED_OBJECTS:,} dicts and lists; plain data alone",
        "`device_history.files`, `plain_pickle`"),
    ("a history in a file", (f"{bounds.LARGEST_HISTORY_BYTES >> 30} GiB; unpacked, {bounds.FREE_BYTES >> 20} MiB and "
        f"{bounds.MOST_TIMES_STORED} times its bytes"), "`device_history.files`"),
)  # fmt: skip


def tables() -> str:
    """The tables in Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from ("### Header", "", "| field | bound | checked by |", "|---|---|---|")
    for field in dict.fromkeys((*_HEADER, *NEEDED_HEADER)):
        yield _row(f"`{field}`", *_HEADER.get(field, ("±2⁶²", "`reader._check_header`")))
    yield _row("all others", "±2⁶²", "`reader._check_header`")
    yield from ("", "### Tables", "", "| field | bound | checked by |", "|---|---|---|")
    for table, most in bounds.MOST_RECORDS.items():
        yield _row(f"**`{table}`**", f"{most:,} records", "`reader._check_header`")
        for field in (NEEDED_FIELDS | OPTIONAL_FIELDS).get(table, ()):
            yield _row(f"`{table}.{field}`", *_of_field(table, field))
    yield from ("", "### Facts", "", "| fact | read as |", "|---|---|")
    for fact, kind in bounds.FACTS.items():
        yield f"| `{fact}` | {kind} |"
    yield from ("", "### Files around a capture", "", "| what | bound | checked by |", "|---|---|---|")
    yield from (_row(*other) for other in _OTHERS)


def _of_field(table: str, field: str) -> tuple[str, str]:
    for one in bounds.REFERENCES:
        if (one.table, one.field) == (table, field):
            texts = f"; their texts come to at most {one.most_bytes >> 20} MiB" if one.most_bytes else ""
            return f"a record of `{one.target}`{texts}", _REFERENCES
    if (table, field) in _SPECIAL:
        return _SPECIAL[table, field]
    if is_signed(table, field):
        return "any; what adds up to more than 2⁶² is called a contradiction", "`check.problems`"
    return "0 to 2⁶², or its type's", _FIGURES


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def page_with_tables(page: str) -> str:
    """The page with its tables as they are now."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text("utf-8")), "utf-8")
