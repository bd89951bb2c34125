"""Captures that earlier engines wrote, in format versions 1 and 2, are still read: with the figures that the tools of that time showed.

`tests/data/captures` holds them, compressed: an exact one (a program with threads and residency snapshots), a sampled one, one of a killed
program, a merged one, and a timeline of `hiwater sample`. Paths in them were replaced by others of the same length. `expected.json` has
the figures from the JSON reports of the versions that wrote them, one entry for each process.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

import hiwater
from hiwater.cli import main

DATA = Path(__file__).parent.parent / "data" / "captures"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((DATA / "expected.json").read_text())
FORMATS = (
    "text",
    "table",
    "tree",
    "lines",
    "json",
    "html",
    "svg",
    "csv",
    "collapsed",
    "speedscope",
    "chrome",
    "openmetrics",
)


@pytest.fixture(params=EXPECTED)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A capture and what is expected of its processes."""
    path = tmp_path / "old.hiw"
    path.write_bytes(lzma.decompress((DATA / f"{request.param}.hiw.xz").read_bytes()))
    return path, EXPECTED[request.param]


def test_an_old_capture_has_the_figures_that_it_had(old: tuple[Path, list[dict[str, Any]]]) -> None:
    path, expected = old
    captures = hiwater.open_all(path)
    assert len(captures) == len(expected)
    for capture, told in zip(captures, expected, strict=True):
        assert capture.problems() == []
        process, peak, end = capture.process, told["peak"], told["end"]
        assert {name: getattr(process, name) for name in told["process"]} == told["process"]
        assert (capture.peak.allocated_bytes, capture.peak.allocated_blocks) == (
            peak["allocated_bytes"],
            peak["blocks"],
        )
        assert capture.peak.at_ns == peak["at_ns"]
        assert (capture.end.allocated_bytes, capture.end.allocated_blocks) == (end["allocated_bytes"], end["blocks"])
        for snapshot in capture.residency_snapshots:
            assert "hiwater's overhead" in {part.name for part in snapshot.parts}
        for name, size in told["resident"].items():
            assert getattr(capture.resident, name) == size
        totals = told["totals"]
        assert {name: getattr(capture.totals, name) for name in totals} == totals
        assert capture.lost_events == told["lost_events"]
        stacks = capture.peak.stacks
        assert len(stacks) == told["stack_count"]
        assert [stack.bytes for stack in stacks[: len(told["stacks"])]] == told["stacks"]
        assert (len(capture.processes), len(capture.scopes)) == (told["processes"], told["scopes"])
        if process.mode == "exact" and process.ended == "exit":
            assert capture.residency_snapshots
            assert {stack.thread for stack in stacks} >= {"MainThread"}


@pytest.mark.parametrize("format_", FORMATS)
def test_every_renderer_shows_an_old_capture(
    old: tuple[Path, list[dict[str, Any]]], format_: str, tmp_path: Path
) -> None:
    path, expected = old
    out = tmp_path / "report"
    # A flame graph is of one process: those of a merged capture are drawn one by one.
    for shown in [capture.path for capture in hiwater.open_all(path)] if format_ == "svg" else [path]:
        assert main(["report", str(shown), "--format", format_, "-o", str(out)]) == 0
    content = out.read_text("utf-8")
    assert content or (format_, expected[0]["stack_count"]) == ("collapsed", 0)
    if format_ == "json" and len(expected) == 1:
        assert json.loads(content)["peak"]["allocated_bytes"] == expected[0]["peak"]["allocated_bytes"]
