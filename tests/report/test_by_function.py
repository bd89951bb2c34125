"""`--by function`: functions of one name in one file are told apart, and a comprehension is part of the function
around it, in every output."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from children import run_hiwater
from page_reader import Page
from recording import needs_engine

pytestmark = needs_engine

PROGRAM = """\
small = lambda: bytearray(1_000_000)


big = lambda: bytearray(8_000_000)


keep = [big()]
keep.append(small())
keep += [bytearray(4_000_000) for _ in range(1)]
if 1:
    def twice(): return bytearray(2_000_000)
    keep.append(twice())
    def twice(): return bytearray(500_000)
    keep.append(twice())
def nested():
    return [[bytearray(250_000) for _ in range(2)] for _ in range(1)]
keep += nested()
"""
FUNCTIONS = {  # name and first line: bytes of its own
    ("<lambda>", 4): 8_000_000, ("<module>", 1): 4_000_000, ("twice", 11): 2_000_000, ("<lambda>", 1): 1_000_000,
    ("twice", 13): 500_000, ("nested", 15): 500_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "program.py").write_text(PROGRAM)
    run_hiwater("run", "-q", "-o", "a.hiw", "program.py", folder=folder, check=True)
    (folder / "program.py").write_text(
        "\n\nfirst = lambda: None\nfirst()\n" + PROGRAM.replace("8_000_000", "9_000_000")
    )
    run_hiwater("run", "-q", "-o", "b.hiw", "program.py", folder=folder, check=True)
    return folder


def told(folder: Path, form: str, *more: str) -> str:
    return run_hiwater(
        "report", "a.hiw", "--by", "function", "--format", form, "-o", "-", *more, folder=folder, check=True
    ).stdout


def is_about(found: dict[tuple[str, int], int], wanted: dict[tuple[str, int], int]) -> bool:
    return all(0 <= found.get(key, 0) - held < 20_000 for key, held in wanted.items())


def test_json_and_text(folder: Path) -> None:
    groups = {(one["function"], one["line"]): one["self_bytes"] for one in json.loads(told(folder, "json"))["groups"]}
    assert is_about(groups, FUNCTIONS), groups
    assert not [name for name, _ in groups if "comp>" in name]
    text = told(folder, "text", "--full")
    assert all(f"{name} (" in text and f"program.py:{line})" in text for name, line in FUNCTIONS)


def test_collapsed_and_speedscope(folder: Path) -> None:
    lines = [line.rpartition(" ") for line in told(folder, "collapsed").splitlines()]
    found: dict[str, int] = {}
    for path, _, held in lines:
        found[path.rpartition(";")[2]] = found.get(path.rpartition(";")[2], 0) + int(held)
    file = folder / "program.py"
    assert is_about({(name, line): found.get(f"{name} ({file}:{line})", 0) for name, line in FUNCTIONS}, FUNCTIONS)
    scope = json.loads(told(folder, "speedscope"))
    assert {(one["name"], one.get("line", 0)) for one in scope["shared"]["frames"]} >= FUNCTIONS.keys()


def test_pprof(folder: Path) -> None:
    pytest.importorskip("google.protobuf")
    from hiwater.device_history.pprof_proto import profile_pb2

    run_hiwater("report", "a.hiw", "--format", "pprof", "-o", "a.pb.gz", folder=folder, check=True)
    profile = profile_pb2.Profile()
    profile.ParseFromString(gzip.decompress((folder / "a.pb.gz").read_bytes()))
    functions = {(profile.string_table[one.name], one.start_line) for one in profile.function}
    assert {("<lambda>", 1), ("<lambda>", 4), ("twice", 11), ("twice", 13)} <= functions


def test_diff_matches_functions_of_one_name_by_their_lines(folder: Path) -> None:
    diff = run_hiwater(
        "diff", "a.hiw", "b.hiw", "--by", "function", "--format", "json", "-o", "-", folder=folder, check=True
    )  # fmt: skip
    told = json.loads(diff.stdout)
    lines = [
        [told["frames"][told["nodes"][row[f"{side}_node"]]["frame"]]["line"] for side in ("before", "after")]
        for row in told["rows"]
        if abs(row["change_bytes"]) > 50_000
    ]
    assert lines == [[4, 8]], told["rows"]


def test_page(folder: Path) -> None:
    run_hiwater("report", "a.hiw", "--html", "-o", "a.html", folder=folder, check=True)
    page = Page((folder / "a.html").read_text())
    names, frame = page.capture["functions"], page.column("nodes", "frame")
    part_of, first_line = page.column("frames", "part_of"), page.column("frames", "first_line")
    held: dict[tuple[str, int], int] = {}
    for node, count in zip(page.column("holders", "node"), page.column("holders", "peak_bytes"), strict=True):
        key = (names[part_of[frame[node]]], int(first_line[frame[node]]))
        held[key] = held.get(key, 0) + int(count)
    assert is_about(held, FUNCTIONS), held
