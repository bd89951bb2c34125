"""Files that are cut, foreign, newer, flipped or made to hurt: a clear error or a right answer, never anything else."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from capture_builder import (
    DIRECTORY_OFFSET,
    EXTENT_BYTES,
    FIRST_EXTENT_OFFSET,
    HEADER_BYTES,
    Recording,
    assemble,
    schema,
)
from example_captures import small
from hiwater import capture as captures
from hiwater import cli
from hiwater.analysis.call_tree import Grouping
from hiwater.capture.layout import parse_schema
from hiwater.cli import report
from hiwater.cli.output import BINARY
from hiwater.errors import (
    CaptureError,
    CorruptCapture,
    ForeignFile,
    HiwaterError,
    IncompatibleCapture,
    MissingCapture,
    TruncatedCapture,
)
from messages import messages_to
from mutants import FIELDS, Original
from recording import rounds

WHOLE = small().to_bytes(shuffle=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.hiw"


def look_at_everything(path: Path) -> None:
    """Open a capture and use all there is to use."""
    capture = captures.open(path)
    capture.problems()
    _ = (
        capture.process,
        capture.facts,
        capture.resident,
        capture.totals,
        capture.timeline,
        capture.markers,
        repr(capture),
    )
    for snapshot in (capture.peak, capture.end, *(capture.of_slice(piece) for piece in capture.slices)):
        _ = (list(snapshot.stacks[:50]), snapshot.kind_bytes(), snapshot.allocated_blocks)


def an_error_or_an_answer(path: Path) -> None:
    try:
        look_at_everything(path)
    except HiwaterError as error:
        assert str(error) and "\n" not in str(error)


def everything_shown(path: Path, *words: str) -> None:
    """Every view of it: an answer, or an error of one line alone."""
    for shown in (name for name in report.FORMATS if name not in BINARY):
        out, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), messages_to(told):
            code = cli.main(["report", str(path), "--format", shown, "-o", "-", *words])
        assert code in (0, 2), told.getvalue()
        if code == 2:
            assert (out.getvalue(), told.getvalue().count("\n")) == ("", 1)


@functools.cache
def seconds_undamaged(use: Callable[[Path], None]) -> float:
    """The processor's time for the undamaged capture, once all is imported."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.hiw"
        path.write_bytes(WHOLE)
        use(path)
        begun = time.process_time()
        use(path)
        return time.process_time() - begun


def test_missing(path: Path) -> None:
    with pytest.raises(MissingCapture, match="there is no capture"):
        captures.open(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_not_ours_to_read(path: Path) -> None:
    path.write_bytes(WHOLE)
    path.chmod(0)
    with pytest.raises(MissingCapture, match="cannot be opened"):
        captures.open(path)


@pytest.mark.parametrize(
    "content", [b"", b"GIF89a" * 100, b"\x7fELF" + b"\0" * 9000, b"\x89HIX\r\n\x1a\n" + b"\0" * 9000, b"\x89PNG"]
)
def test_foreign(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ForeignFile):
        captures.open(path)


def test_folders_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CaptureError):
            captures.open(name)
    with pytest.raises(MissingCapture):
        captures.open("a\0b")


@pytest.mark.parametrize("version", [0, 2, 4])
def test_another_version_of_the_format_is_refused(path: Path, version: int) -> None:
    path.write_bytes(WHOLE[:8] + struct.pack("<I", version) + WHOLE[12:])
    with pytest.raises(IncompatibleCapture, match=rf"version {version}.*reads version 3"):
        captures.open(path)


def test_every_cut_is_told_as_one(path: Path) -> None:
    path.write_bytes(WHOLE)
    used = FIRST_EXTENT_OFFSET + 5 * EXTENT_BYTES
    for length in (
        1,
        7,
        8,
        39,
        40,
        4095,
        HEADER_BYTES,
        HEADER_BYTES + 5000,
        DIRECTORY_OFFSET,
        FIRST_EXTENT_OFFSET,
        used,
    ):
        os.truncate(path, length) if length < path.stat().st_size else path.write_bytes(WHOLE[:length])
        path.write_bytes(WHOLE[:length])
        with pytest.raises(TruncatedCapture):
            captures.open(path)


@settings(max_examples=rounds(300))
@given(st.data())
def test_flipped_bytes_are_an_error_or_an_answer(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Anywhere in what is used: header, schema, directory, and the beginning of each extent."""
    places = [(0, HEADER_BYTES // 4), (HEADER_BYTES, 6000), (DIRECTORY_OFFSET, 64)]
    extents = (len(WHOLE) - FIRST_EXTENT_OFFSET) // EXTENT_BYTES
    places += [(FIRST_EXTENT_OFFSET + number * EXTENT_BYTES, 700) for number in range(extents)]
    content = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        start, length = data.draw(st.sampled_from(places))
        width = data.draw(st.sampled_from((1, 4, 8)))
        at = start + data.draw(st.integers(0, length - width)) // width * width
        content[at : at + width] = data.draw(
            st.sampled_from((b"\0" * width, b"\xff" * width, b"\x7f" * width, os.urandom(width)))
        )
    path = tmp_path_factory.mktemp("flip") / "run.hiw"
    path.write_bytes(content)
    begun = time.process_time()
    an_error_or_an_answer(path)
    path.unlink()
    assert time.process_time() - begun < 2500 * seconds_undamaged(look_at_everything)


ORIGINAL = Original(WHOLE)


@settings(max_examples=rounds(150))
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(("peak", "end", "0:9")),
    st.sampled_from(Grouping),
    st.sampled_from(((), ("--inverted",))),
)
def test_mutants_are_an_error_or_an_answer(
    tmp_path_factory: pytest.TempPathFactory, random: Random, at: str, by: Grouping, more: tuple[str, ...]
) -> None:
    """Up to three things changed, anywhere that the layout knows of; in every view, at any moment."""
    content, what = ORIGINAL.mutant(random)
    note(what)
    path = tmp_path_factory.mktemp("mutant") / "run.hiw"
    path.write_bytes(content)
    begun = time.process_time()
    an_error_or_an_answer(path)
    everything_shown(path, "--at", at, "--by", by, *more)
    path.unlink()
    assert time.process_time() - begun < 200 * seconds_undamaged(everything_shown)


@settings(max_examples=rounds(400))
@given(st.randoms(use_true_random=False), st.sampled_from(FIELDS))
def test_one_changed_figure_never_passes_for_another_sound_one(
    tmp_path_factory: pytest.TempPathFactory, random: Random, change: Callable[[Original, bytearray, Random], str]
) -> None:
    content = bytearray(WHOLE)
    note(change(ORIGINAL, content, random))
    path = tmp_path_factory.mktemp("figure") / "run.hiw"
    path.write_bytes(content)
    try:
        capture = captures.open(path)
        if not capture.problems() and not capture.lost_events:
            assert (capture.peak.allocated_bytes, capture.end.allocated_bytes) == (5596, 4596)
            assert (capture.peak.allocated_blocks, capture.end.allocated_blocks) == (3, 2)
    except HiwaterError as error:
        assert str(error)
    path.unlink()


NUMBER = st.sampled_from((0, 1, 2, 3, 7, 8, 100, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))
HEADER_NUMBERS = (
    "extent_bytes", "directory_offset", "first_extent_offset", "schema_offset", "schema_bytes", "header_bytes",
    "max_extents", "extents_used", "state", "stop_reason", "epoch_index", "ended_ns", "started_unix_ns", "generation",
    "sample_bytes", "pid", "slice_peak_ns", "live_bytes", "slice_peak_bytes", "epoch0_peak_bytes",
    "epoch0_slice_start_ns", "heartbeat_ns", "lost_events",
)  # fmt: skip


@settings(max_examples=rounds(200))
@given(
    changes=st.dictionaries(st.sampled_from(HEADER_NUMBERS), NUMBER, min_size=1, max_size=3),
    counts=st.lists(NUMBER, max_size=12),
)
def test_a_hostile_header(tmp_path_factory: pytest.TempPathFactory, changes: dict[str, int], counts: list[int]) -> None:
    recording = small()
    tables = recording.tables()
    header: dict[str, Any] = {**recording.header, **changes}
    if counts:
        header["table_count"] = [*counts, *[0] * (16 - len(counts))]
    path = tmp_path_factory.mktemp("header") / "run.hiw"
    path.write_bytes(assemble(header, tables))
    an_error_or_an_answer(path)
    path.unlink()


@settings(max_examples=rounds(200))
@given(st.data())
def test_a_hostile_schema(data: st.DataObject) -> None:
    """Any value of the schema replaced by any other."""
    said = schema()
    target: Any = said
    keys: list[Any] = []
    while isinstance(target, (dict, list)) and target and (not keys or data.draw(st.booleans()) or len(keys) < 2):
        keys.append(data.draw(st.sampled_from(list(target) if isinstance(target, dict) else range(len(target)))))
        parent, target = target, target[keys[-1]]
    parent[keys[-1]] = data.draw(
        st.none() | st.integers(-(2**70), 2**70) | st.text(max_size=8) | st.floats() | st.booleans()
        | st.sampled_from(("<u8", "<i8", "<u16", "O", "S9999", [], {}, [[]], [["x", "<u4", -4]], "V8", "<f8", "M8[ns]"))
    )  # fmt: skip
    try:
        parse_schema(json.dumps(said).encode(), HEADER_BYTES)
    except CorruptCapture as error:
        assert "damaged" in str(error)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format":"hiwater.capture","tables":[1]}']
)
def test_a_schema_that_is_none(text: bytes) -> None:
    with pytest.raises(CorruptCapture):
        parse_schema(text, HEADER_BYTES)


@pytest.mark.parametrize(
    ("table", "field", "value", "problem"),
    [
        ("strings", "offset", 2**63, "string"),
        ("strings", "length", 2**32 - 1, "string"),
        ("codes", "function", 999, "function"),
        ("nodes", "parent", 2**32 - 1, "ancestor"),
        ("nodes", "parent", len(small().tables()["nodes"]) - 1, "ancestor"),  # its own
        ("nodes", "code", 999, "code"),
        ("accounts", "node", 999, "node"),
        ("accounts", "kind", 9, "kind"),
        ("facts", "value", 999, "value"),
    ],
)
def test_ids_that_lead_nowhere(path: Path, table: str, field: str, value: int, problem: str) -> None:
    recording = small()
    tables = recording.tables()
    tables[table][field][-1] = value
    path.write_bytes(assemble(recording.header, tables))
    with pytest.raises(CorruptCapture, match=problem):
        captures.open(path)


def test_strings_that_all_share_their_bytes_do_not_fill_memory(path: Path) -> None:
    tables = small().tables()
    tables["string_bytes"] = np.zeros(1 << 20, np.uint8)
    strings = np.zeros(10_000, tables["strings"].dtype)
    strings["length"] = 1 << 20
    path.write_bytes(assemble(Recording().header, {**tables, "strings": strings}))
    with pytest.raises(CorruptCapture, match="overlap"):
        captures.open(path)


def test_a_directory_that_names_a_chunk_twice(path: Path) -> None:
    content = bytearray(WHOLE)
    content[DIRECTORY_OFFSET + 4 : DIRECTORY_OFFSET + 8] = content[DIRECTORY_OFFSET : DIRECTORY_OFFSET + 4]
    path.write_bytes(content)
    with pytest.raises(CorruptCapture, match="twice"):
        captures.open(path)


def test_a_very_deep_stack_is_read(path: Path) -> None:
    recording = Recording()
    deep = recording.path(*[("down", "/app/deep.py", 3)] * 30_000)
    recording.allocate(deep, 64)
    path.write_bytes(recording.to_bytes())
    capture = captures.open(path)
    assert len(capture.peak.stacks[0].frames) == 30_000
