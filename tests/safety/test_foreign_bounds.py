"""Every count, size and decompression in a file that came from elsewhere has a bound, which is checked before memory
is taken."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import re
import resource
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import large_captures
import parts
from example_captures import program, small
from hiwater import capture as captures
from hiwater._os.destination import MERGED_INDEX
from hiwater.analysis import type_growth
from hiwater.analysis.suppressions import Suppression
from hiwater.capture import attachments, bounds, container, run_index
from hiwater.capture.holders import StepKind
from hiwater.capture.layout import NEEDED_FIELDS, OPTIONAL_FIELDS
from hiwater.errors import CaptureError, CorruptCapture, ReportTooLarge
from hiwater.report.export import collapsed, csv_rows, svg
from hiwater.report.html import page
from hiwater.report.request import Report
from hiwater.report.text import full
from page_reader import Page
from peak_memory import peak_of_command
from places import ROOT

LITTLE = 48 << 20
WHOLE = parts.complete(small().to_bytes())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.hiw"


@contextmanager
def little_memory() -> Iterator[None]:
    """What takes more than LITTLE fails with a MemoryError."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + LITTLE, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(path: Path, match: str) -> None:
    with little_memory(), pytest.raises(CaptureError, match=match):
        captures.open(path)


# Captures


@pytest.mark.parametrize("table", [*NEEDED_FIELDS, *OPTIONAL_FIELDS])
def test_a_table_has_no_more_records_than_it_may(path: Path, table: str) -> None:
    one = parts.Parts(WHOLE)
    place = one.schema.header.fields["table_count"][1] + 8 * one.schema.tables[table].number  # type: ignore[index]
    content = bytearray(WHOLE)
    content[place : place + 8] = struct.pack("<Q", bounds.MOST_RECORDS[table] + 1)
    path.write_bytes(content)
    refused(path, f"more records of '{table}' than a capture can hold")


def test_a_file_of_holes_takes_no_memory(path: Path) -> None:
    """2 GiB of nodes, none of which is on the disk."""
    one = parts.Parts(small().to_bytes())
    start, table, count = one._start, one.schema.tables["nodes"], 1 << 27
    extents = count * table.record.itemsize // start.extent_bytes
    one.header["extents_used"], one.header["table_count"][0][table.number] = extents, 1 << 26
    content = bytearray(small().to_bytes())
    content[: one.schema.header.itemsize] = bytes(content[:60]) + one.header.tobytes()[60:]
    content[start.directory_offset : start.directory_offset + 4 * extents] = struct.pack(
        f"<{extents}I", *(table.number << 24 | chunk for chunk in range(extents))
    )
    path.write_bytes(content[: start.first_extent_offset])
    os.truncate(path, start.first_extent_offset + extents * start.extent_bytes)
    refused(path, "extents and is stored in")


@pytest.mark.parametrize(("table", "field"), [("facts", "value"), ("processes", "command"), ("residency", "part")])
def test_many_records_that_name_one_long_text_do_not_fill_memory(path: Path, table: str, field: str) -> None:
    one = parts.Parts(WHOLE)
    one.tables[table] = np.tile(one.tables[table][:1], 40)
    one.tables[table][field] = one.add_strings([b"x" * (1 << 20)])
    path.write_bytes(one.to_bytes())
    refused(path, f"the texts in '{field}' of '{table}' come to more than 32 MiB")


def test_of_a_name_the_beginning_is_read(path: Path) -> None:
    one = parts.Parts(WHOLE)
    one.tables["codes"]["function"] = one.add_strings([b"f" * 100_000])
    path.write_bytes(one.to_bytes())
    (name, *_) = {stack.frames[-1].function for stack in captures.open(path).peak.stacks}
    assert name == "f" * bounds.LONGEST_NAME_BYTES + "…"


def test_one_residency_snapshot_does_not_fill_a_report(path: Path) -> None:
    """A sound one with 100,000 large blocks, and one of 100,000 parts."""
    one = parts.Parts(WHOLE)
    sound, many = one.tables["residency"][-1:], np.tile(one.tables["residency"][:1], 100_000)
    for rows in (sound, many):
        rows["part"] = one.add_strings([b"unexplained"])
    one.tables["residency"] = np.concatenate([many, sound])
    one.tables["large_blocks"] = np.tile(one.tables["large_blocks"][-1:], 100_000)
    path.write_bytes(one.to_bytes())
    capture = captures.open(path)
    (snapshot,) = capture.residency_snapshots
    assert len(snapshot.large) == 64
    full.write(Report(capture, capture.peak), text := StringIO())
    assert len(text.getvalue().splitlines()) < 300


@pytest.mark.parametrize("form", ["collapsed", "csv", "svg"])
def test_stacks_of_long_names_are_not_written_one_by_one(path: Path, form: str) -> None:
    """4,000 stacks, 100 frames deep on average, whose frames have 4 KiB each: 1.6 GB from 1 MB."""
    large_captures.deep(path, depth=200, functions=200, chains=20)
    one = parts.Parts(path.read_bytes())
    codes = one.tables["codes"]["function"]
    codes[-200:] = one.add_strings([b"%d" % number + b"f" * 5000 for number in range(200)])
    path.write_bytes(one.to_bytes())
    capture = captures.open(path)
    report = Report(capture, capture.peak)
    if form == "svg":
        svg.write(replace(report, inverted=True), drawing := StringIO())
        assert len(drawing.getvalue()) < svg.MOST_BOXES * 2500
        return
    with pytest.raises(ReportTooLarge, match="too deep to be written one by one"):
        collapsed.write(report, StringIO()) if form == "collapsed" else csv_rows.write([report], StringIO())


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture with very many call paths, and a small one beside it."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "small.hiw").write_bytes(WHOLE)
    other = program()
    other.header.update(pid=77, process_start_ticks=7)
    (folder / "other.hiw").write_bytes(other.to_bytes())
    return large_captures.wide(folder / "large.hiw", stacks=60_000, kinds=2)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["report"], 4),
        (["report", "--format=markdown", "-o-"], 4),
        (["report", "--format=json", "-o-"], 6),
        (["report", "--format=html", "-o-"], 8),
        (["diff", "SMALL"], 6),
        (["diff", "SMALL", "--format=html", "-o-"], 12),
        (["check", "--peak=1TiB"], 4),
        (["live", "--once"], 4),
        (["merge", "-q", "-o", "OUT", "OTHER"], 2),
    ],
    ids=str,
)
def test_a_reader_takes_a_small_multiple_of_the_tables(words: list[str], most: int, large: Path) -> None:
    """As docs/capture-format.md says; what the reader takes of a small capture is left out."""
    small_one, tables = large.with_name("small.hiw"), large.stat().st_size
    named = {
        "SMALL": str(small_one),
        "OTHER": str(large.with_name("other.hiw")),
        "OUT": str(large.with_name("out.hiw")),
    }
    taken = []
    for capture in (small_one, large):
        taken.append(peak_of_command(*(named.get(word, word) for word in words), str(capture)))
        large.with_name("out.hiw").unlink(missing_ok=True)
    assert taken[1] - taken[0] <= most * tables


def test_a_page_has_so_many_markers(path: Path) -> None:
    one = parts.Parts(WHOLE)
    one.tables["markers"] = np.zeros(60_000, one.tables["markers"].dtype)
    one.tables["markers"]["kind"] = np.where(np.arange(60_000) % 1000 == 0, 2, 4)
    path.write_bytes(one.to_bytes())
    capture = captures.open(path)
    out = StringIO()
    page.write([Report(capture, capture.peak)], out)
    (data,) = Page(out.getvalue()).unpacked.head["captures"]
    kinds = [marker["kind"] for marker in data["markers"]]
    assert kinds.count("out of memory") == 60 and 5_000 < len(kinds) < 11_000


@pytest.mark.parametrize("text", ["x" * (1 << 20), json.dumps(["x" * 100] * 10_000)])
def test_of_very_many_arguments_the_first_are_read(path: Path, text: str) -> None:
    one = parts.Parts(WHOLE)
    one.add_facts(("argv", text))
    path.write_bytes(one.to_bytes())
    argv = captures.open(path).process.argv
    assert argv[-1].endswith("…") and sum(map(len, argv)) < bounds.LONGEST_ARGUMENTS


def test_what_is_suppressed_is_looked_up_of_the_code_that_calls(path: Path) -> None:
    """A table of codes that no call path has costs nothing."""
    one = parts.Parts(WHOLE)
    one.tables["codes"] = np.resize(one.tables["codes"], 300_000)
    path.write_bytes(one.to_bytes())
    capture = captures.open(path)
    begun = time.process_time()
    type_growth._suppressed(capture.tables, [Suppression("", "no_such")])
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("fact", "value"),
    [("missed_ticks", "many"), ("ppid", "9" * 5000), ("cwd", "/a" * bounds.LONGEST_NAME_BYTES),
        ("cgroup_events", "/" * 5000), ("host", "h" * 5000)],
)  # fmt: skip
def test_a_fact_that_is_not_of_its_kind_is_not_there(path: Path, fact: str, value: str) -> None:
    one = parts.Parts(WHOLE)
    one.add_facts((fact, value), ("notes", value))
    path.write_bytes(one.to_bytes())
    facts = captures.open(path).facts
    assert value not in facts.get(fact, "") and facts["notes"] == value


def test_every_fact_that_is_read_as_a_number_has_that_kind() -> None:
    read = {
        name
        for file in (ROOT / "src").rglob("*.py")
        for name in re.findall(r'tables\.number\("(\w+)"\)', file.read_text("utf-8"))
    }
    assert read and {bounds.FACTS[name] for name in read} == {"number"}


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("timeline", "at_ns", 1 << 63),
        ("scopes", "end_ns", (1 << 62) + 1),
        ("nodes", "line", None),
        ("codes", "kind", None),
    ],
)
def test_a_figure_beyond_any_is_damage(path: Path, table: str, field: str, value: int | None) -> None:
    one = parts.Parts(WHOLE)
    most = np.iinfo(one.tables[table].dtype[field]).max
    if value is None and most <= bounds.OTHER_FIGURES[table, field]:
        pytest.skip("the schema of these captures has no room for it")
    one.tables[table][field][-1] = most if value is None else value
    path.write_bytes(one.to_bytes())
    refused(path, "beyond any")


def test_a_figure_of_the_header_beyond_any_is_damage(path: Path) -> None:
    one = parts.Parts(WHOLE)
    one.header["epoch0_slice_start_ns"] = 1 << 63
    path.write_bytes(one.to_bytes())
    refused(path, "'epoch0_slice_start_ns' is beyond any figure")


def test_searches_for_holders_without_their_paths_are_damage(path: Path) -> None:
    place = WHOLE.index(b'"holder_paths"')
    path.write_bytes(WHOLE[:place] + b'"holder_pathz"' + WHOLE[place + 14 :])
    refused(path, "a search for holders has more rows than there are")


# Archives


def merged(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, rows: str = "") -> None:
    said = {
        name: {"name": name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in members.items()
    }
    index = {"format": "hiwater.merged", "version": 1, "captures": [one for name, one in said.items() if name != rows]}
    if rows:
        index["rows"] = said[rows]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MERGED_INDEX, json.dumps(index))
        for name, data in members.items():
            archive.writestr(name, data, method)


def test_a_member_that_unpacks_to_much_more_is_not_unpacked(path: Path) -> None:
    merged(path, {"a.hiw": bytes(64 << 20)})
    refused(path, "cannot be unpacked")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_are_packed_as_hiwater_packs_them(path: Path, method: int) -> None:
    merged(path, {"a.hiw": WHOLE}, method)
    refused(path, "cannot be unpacked")


def test_members_that_share_bytes_are_refused(path: Path) -> None:
    merged(path, {"a.hiw": WHOLE, "b.hiw": WHOLE})
    content = bytearray(path.read_bytes())
    entries = [at for at in range(len(content)) if content[at : at + 4] == b"PK\1\2"]
    content[entries[2] + 42 : entries[2] + 46] = content[entries[1] + 42 : entries[1] + 46]  # the place of the member
    path.write_bytes(content)
    with pytest.raises(CaptureError, match="its directory cannot be read"):
        container.members(path)


def test_a_directory_that_is_too_large_is_not_read(path: Path) -> None:
    merged(path, {"a.hiw": WHOLE})
    content = bytearray(path.read_bytes())
    content[-10:-6] = struct.pack("<I", bounds.LARGEST_DIRECTORY_BYTES + 1)
    path.write_bytes(content)
    with pytest.raises(CaptureError, match="its directory cannot be read"):
        container.members(path)


def test_rows_that_are_too_many_or_too_long_are_not_parsed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"event": "started", "pid": 1, "ppid": 1, "at_unix_ns": 1, "program": "x", "why": ""}
    assert len(run_index.parse([json.dumps(row).encode()])) == 1
    assert run_index.parse([json.dumps(row | {"why": "x" * bounds.LONGEST_ROW_BYTES}).encode()]) == []
    merged(path, {"a.hiw": WHOLE, container.ROWS: b"\n" * 20_000}, rows=container.ROWS)
    assert container.rows(path) == []
    monkeypatch.setattr(bounds, "LARGEST_ROWS_BYTES", 10_000)
    with pytest.raises(CorruptCapture, match="more than can be"):
        container.rows(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (bytes(40 << 20), "larger than can be"),
        (b"\x80\x04" + b"}0" * (bounds.MOST_ATTACHED_OBJECTS + 1) + b"N.", "more objects"),
    ],
)
def test_what_is_attached_is_bounded_before_it_is_unpacked(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(WHOLE)
    attachments.append(str(path), {"torch.pickle": content})
    capture = captures.open(path)
    with little_memory(), pytest.raises(CorruptCapture, match=problem):
        _ = capture.device_histories


def test_a_gzipped_profile_is_bounded(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "memory.prof").write_bytes(gzip.compress(bytes(64 << 20)))
    refused(tmp_path / "memory.prof", "unpacks to more")


def test_a_gzipped_capture_is_told_from_a_profile(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "run.hiw.gz").write_bytes(gzip.compress(WHOLE))
    refused(tmp_path / "run.hiw.gz", "a capture that was gzipped; unpack it first")


def test_a_history_is_a_file_that_is_not_too_large(tmp_path: Path) -> None:
    place = tmp_path / "snapshot.pickle"
    place.write_bytes(pickle.dumps({}))
    os.truncate(place, bounds.LARGEST_HISTORY_BYTES + 1)
    refused(place, "larger than any history")


def test_an_archive_of_what_hiwater_makes_is_in_bounds() -> None:
    """What is refused is far from what is recorded: zeros alone reach the bound."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.hiw", WHOLE, zipfile.ZIP_DEFLATED)
        assert len(WHOLE) * 2 < bounds.most_unpacked(archive.getinfo("a.hiw").compress_size)


# The page


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("capture_bounds", ROOT / "tools" / "capture_bounds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_bounds_that_the_reader_has() -> None:
    made = tool()
    page = made.PAGE.read_text("utf-8")
    assert made.page_with_tables(page) == page, "python tools/capture_bounds.py writes it"


def test_every_table_and_reference_that_is_bounded_exists() -> None:
    known = NEEDED_FIELDS | OPTIONAL_FIELDS
    assert set(bounds.MOST_RECORDS) == {*known, "string_bytes", "attached"}
    for one in bounds.REFERENCES:
        assert one.field in known[one.table] and one.target in known
    assert max(StepKind) == bounds.LAST_KIND_OF_STEP
