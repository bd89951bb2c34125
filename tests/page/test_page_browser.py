"""The interactive page in a real Chromium: what a reader clicks, types and sees. `web/browser/suite.mjs` is the reader.

Skipped where there is no Chromium, no node, or no `web/node_modules` (`cd web && npm ci`): see `browser`.
"""

from __future__ import annotations

import functools
import json
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

import browser
import hiwater
from capture_builder import Recording
from children import run_hiwater
from etl_example import WORSE, recorded_versions
from example_captures import HOSTILE, each_hostile_name, in_memory, with_source
from hiwater.analysis.diff import compare
from hiwater.capture import Run
from hiwater.report.diff_request import DiffReport
from hiwater.report.formatting import signed_size, size
from hiwater.report.html import diff_page
from hiwater.report.request import Report
from json_paths import frames_of
from native_recordings import record
from page_reader import page_of
from recording import needs_engine
from written_reports import as_json, diff_as_json

pytestmark = browser.needs_browser

SECOND = 1_000_000_000
LIBRARY = "/v/lib/python3.11/site-packages/lib.py"


@functools.cache
def reader() -> subprocess.Popen[bytes]:
    """A browser for all tests of this file; it closes when its input does."""
    script = browser.WEB / "browser" / "suite.mjs"
    return subprocess.Popen(["node", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture(scope="module", autouse=True)
def close_reader() -> Iterator[None]:
    """Other tests in this process wait for all its children, or measure them."""
    yield
    if reader.cache_info().currsize:
        reader().communicate(timeout=300)
        reader.cache_clear()


def see(scenario: str, page: Path) -> Any:
    """What the reader saw. Fails where a step fails, the page complains, or it asks for anything."""
    to, said = reader().stdin, reader().stdout
    assert to is not None and said is not None
    to.write(json.dumps([scenario, str(page)]).encode() + b"\n")
    to.flush()
    assert select.select([said], [], [], 120)[0], "the reader does not answer"
    answer = json.loads(said.readline())
    assert "error" not in answer, answer["error"]
    return answer["seen"]


def ten_seconds() -> Recording:
    """Ten slices of a second: `big` holds most from 3 s to 4 s, `small` a little all the time; the peak is at 7 s."""
    recording = Recording()
    recording.fact("program", "ten.py")
    main = ("main", "/app/ten.py", 3)
    big = recording.path(main, ("big", LIBRARY, 10))
    small = recording.path(main, ("other", LIBRARY, 9), ("small", "/app/ten.py", 20))
    worker = recording.path(("work", "/app/work.py", 5), thread="worker")
    recording.allocate(small, 300_000)
    recording.sample(1 << 20)
    for second in range(1, 11):
        if second == 4:
            recording.allocate(big, 400_000, "native")
            recording.free(big, 400_000, "native")
        if second == 7:
            recording.allocate(worker, 700_000)
        if second == 9:
            recording.free(worker, 600_000)
        recording.allocate(small, 1_000)
        recording.now_ns = second * SECOND
        recording.close_slice()
        recording.sample(2 << 20)
    recording.end()
    return recording


def killed() -> Recording:
    """The same, without an end."""
    recording = ten_seconds()
    recording.header.update(state=1, ended_ns=0, heartbeat_ns=recording.now_ns)
    return recording


def written(folder: Path, *recordings: Recording) -> Path:
    path = folder / "page.html"
    captures = [in_memory(recording) for recording in recordings]
    path.write_text(page_of([Report(capture, capture.peak) for capture in captures]), "utf-8")
    return path


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return written(tmp_path, ten_seconds())


def test_a_brush_on_the_timeline_changes_all_below(page: Path) -> None:
    capture = in_memory(ten_seconds())
    seen = see("brush", page)
    expected = {
        "peak": capture.peak,
        "window": capture.window(2.1, 4.8),
        "instant": capture.snapshot(0.5),
        "next": capture.snapshot(1.5),
        "end": capture.end,
        "home": capture.peak,
    }
    words = {name: size(snapshot.allocated_bytes) for name, snapshot in expected.items()}
    assert len(set(words.values())) == 5, "the moments must differ for this to say anything"
    assert {name: seen[name] for name in words} == {name: [word, word] for name, word in words.items()}
    assert seen["table"] == words["instant"]


def test_garbage_collections_are_strokes_and_a_number(tmp_path: Path) -> None:
    recording = ten_seconds()
    without = see("timeline", written(tmp_path, recording))
    recording.markers += [(second * SECOND, 2, 4, 0) for second in range(1, 9)]
    seen = see("timeline", written(tmp_path, recording))
    assert "garbage collected" not in without["legend"]
    assert "garbage collected 16 times" in seen["legend"]
    assert seen["drawn"] != without["drawn"]


def test_a_search_marks_and_sums(page: Path) -> None:
    capture = in_memory(ten_seconds())
    held = {stack.frames[-1].function: stack.bytes for stack in capture.peak.stacks}
    share = f"{100 * held['small'] / capture.peak.allocated_bytes:.1f} %"
    seen = see("search", page)
    words = f"{size(held['small'])}, {share}, in 1 match"
    assert seen == {"part": words, "regular": words, "wrong": "not a regular expression", "none": ""}


def test_the_flame_graph_by_keyboard_alone(page: Path) -> None:
    seen = see("keyboard", page)
    names = [told.split(",")[0] for told in seen[:7]]
    assert names == ["all", "work", "work", "main", "main", "all", "all"]
    assert seen[7] == "work, 683.6 KiB, 69.4 %"
    assert seen[8] == "work" and seen[9].startswith("683.6 KiB")


def deep(frames: int) -> Recording:
    """One call path of so many functions of the user's own code, in four threads with scopes and a note."""
    recording = Recording()
    recording.fact("program", "deep.py")
    path = recording.path(*((f"level_{depth}", "/app/deep.py", 10 + depth) for depth in range(frames)))
    recording.allocate(path, 5_000_000)
    for number in range(3):
        recording.allocate(recording.path(("work", "/app/deep.py", 5), thread=f"worker {number}"), 1000)
    recording.sample(9 << 20)
    recording.now_ns = SECOND
    recording.close_slice()
    recording.header.update(lost_events=3)
    recording.end()
    return recording


def test_the_answer_and_fifteen_rows_are_above_the_fold(tmp_path: Path) -> None:
    seen = see("glance", written(tmp_path, deep(40)))
    assert (
        seen["answer"].startswith(f"{size(5_003_000)} allocated at the peak; most at ")
        and "deep.py:49" in seen["answer"]
    )
    assert f": {size(5_000_000)} (" in seen["answer"]
    assert seen["above"] and seen["whole"] and seen["panels"] == 0
    assert seen["bar"] <= 48 and seen["timeline"] <= 160 and seen["rows"] >= 15


def test_my_lines_are_those_of_json(tmp_path: Path) -> None:
    recording = Recording()
    main = ("main", "/app/ten.py", 3)
    recording.allocate(recording.path(main, ("read", LIBRARY, 10)), 400_000, "native")
    recording.allocate(recording.path(main, ("other", LIBRARY, 9), ("small", "/app/ten.py", 20)), 300_000)
    imported = recording.path(main, ("<module>", "<frozen importlib._bootstrap>", 9), ("<module>", LIBRARY, 1))
    recording.allocate(imported, 200_000)
    recording.allocate(recording.path(("alone", LIBRARY, 77)), 5_000)
    recording.now_ns = SECOND
    recording.close_slice()
    recording.free(imported, 150_000)
    recording.end()
    capture = in_memory(recording)
    seen = see("mine", written(tmp_path, recording))
    assert seen["order"][:2] == ["Flame graph", "My lines"]
    for rows, snapshot in ((seen["rows"], capture.peak), (seen["end"], capture.end)):
        told = as_json(Report(capture, snapshot))["lines"]["rows"]
        assert [row[0] for row in rows] == [size(row["bytes"]) for row in told]
        for row, line in zip(rows, told, strict=True):
            place = f"{Path(line['file']).name}:{line['line']}"
            assert place in row[3] and ("import at" in row[3]) == (line["group"] == "import")
            assert (f"in {line['library']}: {size(line['library_bytes'])}" in row[3]) == bool(line["library"])
    assert seen["curves"] == len(seen["rows"]) and "imports 195.3 KiB" in seen["sums"]
    assert seen["inside"] == [f"{size(400_000)} read lib.py:10"]


@needs_engine
def test_memory_never_touched_is_a_row_of_its_own(tmp_path: Path) -> None:
    program = "import time; never = bytes(90_000_000); held = [bytes(1000) for _ in range(5000)]; time.sleep(0.3)"
    run_hiwater("run", "-q", "-o", "a.hiw", "--format", "html", "-c", program, folder=tmp_path, check=True)
    capture = hiwater.open(tmp_path / "a.hiw")
    told = as_json(Report(capture, capture.peak))["lines"]
    assert told["untouched_bytes"] > 80_000_000
    seen = see("mine", tmp_path / "a.html")
    assert ["untouched reservation" in hint for hint in seen["hints"]] == [True]
    assert seen["untouched"][0].startswith(f"{size(told['untouched_bytes'])} allocated and never touched")
    assert [row[0] for row in seen["rows"]][:3] == [size(row["bytes"]) for row in told["rows"]][:3]


def test_libraries_are_one_frame_that_opens(page: Path) -> None:
    seen = see("collapsed", page)
    assert seen["collapsed"] == ["all", "main", "in lib", "small"]
    assert seen["opened"] == ["all", "main", "other", "small"]
    assert seen["root"] == size(in_memory(ten_seconds()).peak.allocated_bytes)
    assert seen["found"].endswith("in 0 matches")  # big holds nothing at the peak


@needs_engine
def test_native_frames_have_a_switch(tmp_path: Path) -> None:
    path = record(tmp_path, "kept = native.first(3_000_000)\n", "--native")
    run_hiwater("report", path, "--html", "-o", tmp_path / "page.html", check=True)
    seen = see("native", tmp_path / "page.html")
    assert "shapes::take" not in seen["python"] and "program.py" in seen["python"]
    assert "shapes::take" in seen["mixed"] and "program.py" in seen["mixed"]
    assert "shapes::take" in seen["native"] and "program.py" not in seen["native"]
    assert seen["native_root"] == seen["whole"]


def test_an_inverted_graph_has_the_same_totals(page: Path) -> None:
    upright, inverted = see("inverted", page)
    assert upright == inverted


def test_the_timeline_gives_values_under_the_pointer(page: Path) -> None:
    seen = see("hover", page)
    capture = in_memory(ten_seconds())
    assert size(capture.snapshot(6.5).allocated_bytes) in seen["tip"] and "resident" in seen["tip"]
    assert "Drag" in seen["hint"]


def test_nothing_is_cut_off_on_a_telephone(tmp_path: Path) -> None:
    for recording in (ten_seconds(), with_source(tmp_path), hostile_program(HOSTILE[0])):
        assert set(see("narrow", written(tmp_path, recording)).values()) == {0}


def test_every_look_draws_anew(page: Path) -> None:
    seen = see("looks", page)
    capture = in_memory(ten_seconds())
    assert seen["whole"] == size(capture.peak.allocated_bytes)
    assert seen["thread"] == seen["moment"] == size(700_000)


def test_themes_and_printing(page: Path) -> None:
    light, dark, again = see("theme", page)
    assert light == again == "rgb(255, 255, 255)" != dark


def test_tables_sort_filter_and_copy(page: Path) -> None:
    seen = see("table", page)
    capture = in_memory(ten_seconds())
    own = sorted((stack.bytes for stack in capture.peak.stacks), reverse=True)
    assert seen["own"][: len(own)] == [size(count) for count in own]
    assert seen["names"][0].startswith("work") and seen["names"][1].startswith("small")
    assert seen["total"] == seen["up"][::-1] and seen["total"][0] == size(700_000)
    assert len(seen["filtered"]) == 1 and seen["filtered"][0].startswith("small")
    for by in ("Line", "File", "Module", "Kind", "Thread"):
        assert seen[by].startswith(size(700_000 if by != "Kind" else capture.peak.allocated_bytes)), by
    assert seen["Size of allocations"] == f"{size(700_000)} {size(capture.peak.allocated_bytes - 700_000)} 0 B"


def test_source_kept_and_mappings(tmp_path: Path) -> None:
    seen = see("views", written(tmp_path, with_source(tmp_path)))
    assert "y = '</script>'" in seen["Source"] and "109 B" in seen["Source"]
    curves, strings = seen["source"]
    assert curves > 0 and "'</script>'" in strings
    assert "129 B in 4 blocks were never freed" in seen["Kept"] and "own.py:2" in seen["Kept"]
    assert all(f"{what} is not known" in seen["Kept"] for what in ("When it was allocated", "What holds it"))
    assert "anonymous mappings" in seen["Mappings"]
    assert seen["asked"] == "y = '</script>'"


def test_without_scripts_the_summary_is_there(page: Path) -> None:
    seen = see("noscript", page)
    capture = in_memory(ten_seconds())
    assert size(capture.peak.allocated_bytes) in seen and "work (/app/work.py:5)" in seen
    assert "Scripts may not run here" in seen


def test_in_an_old_browser_the_summary_stays(page: Path) -> None:
    seen = see("old", page)
    assert "Only the summary can be shown here" in seen and "work (/app/work.py:5)" in seen


def test_in_the_frame_of_a_notebook(tmp_path: Path, page: Path) -> None:
    host = tmp_path / "host.html"
    content = escape(page.read_text("utf-8"))
    host.write_text(
        '<!doctype html><title>host</title><iframe sandbox="allow-scripts" width="1300" height="900" '
        f'srcdoc="{content}"></iframe>'
    )
    seen = see("srcdoc", host)
    assert seen["found"] >= 4 and seen["moment"] == size(in_memory(ten_seconds()).peak.allocated_bytes)


def hostile_program(name: str) -> Recording:
    recording = Recording()
    recording.fact("program", name)
    recording.fact("argv", json.dumps([name, name]))
    recording.fact("python", name)
    recording.allocate(recording.path((name, name, 3), (name + "2", "/x/" + name, 4), thread=name), 1000, "native")
    recording.allocate(recording.path(("plain", "/x/plain.py", 1), thread="other"), 10)
    recording.header.update(stop_reason=recording.string(name), lost_events=1)
    recording.close_slice()
    recording.sample(5)
    recording.end()
    return recording


@each_hostile_name
def test_hostile_names_stay_names(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, hostile_program(name))
    seen = see("whole", path)
    assert "1010 B" in seen["text"]
    assert not any(character in seen["text"] for character in "\u202e\x1b\u2028")
    assert "alert" not in seen["title"] or "</script>" in seen["title"]


@pytest.mark.parametrize("which", ["ten", "source", "hostile", "empty", "two"])
def test_axe_finds_nothing(tmp_path: Path, which: str) -> None:
    recordings = {
        "ten": lambda: [ten_seconds()],
        "source": lambda: [with_source(tmp_path)],
        "hostile": lambda: [hostile_program(HOSTILE[0])],
        "empty": lambda: [Recording()],
        "two": lambda: [ten_seconds(), ten_seconds()],
    }
    assert see("accessible", written(tmp_path, *recordings[which]())) == []


def test_a_timeline_of_processes(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(0.3)'])"
    for words in (
        ["sample", "-q", "-o", "a.hiw", "--", sys.executable, "-c", program],
        ["report", "a.hiw", "--format", "html", "-o", "a.html"],
    ):
        run_hiwater(*words, folder=tmp_path, check=True)
    seen = see("processes", tmp_path / "a.html")
    assert len(seen["rows"]) == 2 and all("MiB" in row for row in seen["rows"])
    assert see("accessible", tmp_path / "a.html") == []


def test_the_resident_peak_of_a_killed_process_is_a_lower_bound(tmp_path: Path) -> None:
    captures = [in_memory(killed()), in_memory(ten_seconds())]
    for run in (Run(captures), None):
        path = tmp_path / "page.html"
        path.write_text(page_of([Report(one, "peak", run=run) for one in captures]), "utf-8")
        lower_bound, exact = see("processes", path)["rows"]
        assert "\t≥ 64.0 MiB\t" in lower_bound and "\t64.0 MiB\t" in exact


@needs_engine
def test_a_real_recording(tmp_path: Path) -> None:
    program = "import time; held = bytearray(50_000_000); held[::4096] = bytes(len(held[::4096])); time.sleep(0.2)"
    run_hiwater("run", "-q", "-o", "a.hiw", "--format", "html", "-c", program, folder=tmp_path, check=True)
    text = see("whole", tmp_path / "a.html")["text"]
    assert "47.7 MiB" in text
    resident = see("resident", tmp_path / "a.html").replace("\n", " ")
    highest = max(hiwater.open(tmp_path / "a.hiw").residency_snapshots, key=lambda one: one.resident_bytes)
    assert resident.startswith(f"{size(highest.resident_bytes)} resident in the residency snapshot at ")
    assert "malloc, live" in resident and "Largest blocks and mappings" in resident
    assert see("accessible", tmp_path / "a.html") == []


@needs_engine
def test_what_holds_the_objects_of_a_frame(tmp_path: Path) -> None:
    program = """
class Row:
    def __init__(self, number):
        self.text = "x" * 1000 + str(number)
def load():
    return [Row(number) for number in range(5000)]
CACHE = {"rows": load()}
OTHER = [bytes(2000) for number in range(1000)]
"""
    (tmp_path / "app.py").write_text(program)
    run_hiwater("run", "-q", "--holders", "-o", "a.hiw", "--format", "html", "app.py", folder=tmp_path, check=True)
    seen = see("holders", tmp_path / "a.html")
    assert "list in dict `CACHE` of module `__main__`" in seen["chosen"] and "OTHER" not in seen["chosen"]
    assert "5,000" in seen["chosen"] and "app.py:" in seen["chosen"]
    assert seen["some"] < seen["all"]
    assert "module `__main__`" in seen["details"] and "str" in seen["details"]
    assert seen["source"].strip() == "return [Row(number) for number in range(5000)]"
    assert see("accessible", tmp_path / "a.html") == []
    assert not any(see("narrow", tmp_path / "a.html").values())


@needs_engine
def test_what_is_kept_with_its_ages_and_holders(tmp_path: Path) -> None:
    program = """
import hiwater, time
FIRST = [bytearray(50_000) for _ in range(20)]
for _ in range(3): hiwater.mark("warm")
time.sleep(0.4)
hiwater.mark("warm")
SECOND = [bytearray(60_000) for _ in range(20)]
hiwater.mark("warm")
time.sleep(0.3)
"""
    (tmp_path / "app.py").write_text(program)
    run_hiwater("run", "-q", "--holders", "-o", "a.hiw", "app.py", folder=tmp_path, check=True)
    run_hiwater("report", "a.hiw", "--kept", "--html", folder=tmp_path, check=True)
    seen = see("kept", tmp_path / "a.html")
    ages = slice(seen["heads"].index("1st"), seen["heads"].index("4th") + 1)
    second, first = seen["rows"][:2]
    assert "SECOND = [bytearray(60_000) for _ in range(20)]" in second[2]
    assert "held by list `SECOND` of module `__main__`" in second[2] and "types: bytearray" in second[2]
    assert first[ages] == ["100.0 %", "", "", ""]
    assert second[ages][0] == "" and sorted(second[ages]) == ["", "", "", "100.0 %"]
    assert "is known from 3 snapshots:" in seen["said"] and "needs a marker" not in seen["said"]
    text = run_hiwater("report", "a.hiw", "--kept", folder=tmp_path, check=True).stdout
    assert all(re.search(rf"^ *{row[0]} +{row[1]} ", text, re.MULTILINE) for row in (first, second)), text
    assert see("accessible", tmp_path / "a.html") == []


def test_several_captures_in_one_page(tmp_path: Path) -> None:
    second = hostile_program("child.py")
    second.header["pid"] = 77
    seen = see("processes", written(tmp_path, second, ten_seconds()))
    assert seen["first"] == "ten.py" and len(seen["rows"]) == 2
    assert seen["second"] == ["child.py", "1010 B"]


def write_diff(path: Path, before: Recording, after: Recording) -> Path:
    with path.open("w", encoding="utf-8") as stream:
        diff_page.write(DiffReport(compare(in_memory(before), in_memory(after))), stream)
    return path


@needs_engine
def test_what_grew_in_the_example_stands_first(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before, after = recorded_versions(tmp_path_factory)
    page = tmp_path / "diff.html"
    run_hiwater("diff", before, after, "--format", "html", "-o", page, check=True)
    told = hiwater.open(before).diff(after)
    seen, said = see("diff", page), diff_as_json(told)
    lines = after.with_name("etl_after.py").read_text().splitlines()
    changed = 1 + next(n for n, line in enumerate(lines) if WORSE in line)
    grew = {
        f"{frame['function']} etl_after.py:{frame['line']}": line
        for line in said["lines"]
        for frame in frames_of(said, line["after_node"])
    }
    # A table of the interpreter's own may grow in whatever line comes just then, and so be gone from where it was
    # before.
    gone = [signed_size(line["change_bytes"]) for line in said["lines"] if line["after_node"] is None]
    assert seen["columns"][0].startswith("Change") and seen["lines"][0][4].strip() == (
        f"Pipeline.apply etl_after.py:{changed}"
    )
    for change, then, now, state, name, *_ in seen["lines"]:
        if state == "gone":
            gone.remove(change)
            continue
        line = grew.pop(name)
        assert [change, then, now, state] == [
            signed_size(line["change_bytes"]), size(line["before_bytes"]), size(line["after_bytes"]), line["state"],
        ]  # fmt: skip
    assert not grew and not gone
    for name, what in (("allocated_bytes", "allocated"), ("resident_bytes", "resident")):
        figure = said["peak"][name]
        assert (
            f"{what} at its peak\n{size(figure['before'])} → {size(figure['after'])}\n{signed_size(figure['change'])}"
            in seen["head"]
        )
    assert f"{after} compared with {before}" in seen["head"] and WORSE.split("#", maxsplit=1)[0].strip() in seen["head"]
    assert seen["root"] == size(said["peak"]["allocated_bytes"]["after"])
    assert signed_size(said["allocated"]["bytes"]["change"]) in seen["moment"]
    assert signed_size(said["end"]["allocated_bytes"]["change"]) in seen["end"][0]
    assert see("accessible", page) == []


def test_new_and_gone_rows_and_what_is_within_error(tmp_path: Path) -> None:
    """`new` and `gone` are exact; `main` is an estimate from sampled blocks, whose growth says nothing."""
    sides = []
    for number, name in enumerate(("gone", "new")):
        side = Recording()
        side.header["sample_bytes"] = 64 << 10
        side.fact("program", "two.py")
        side.allocate(
            side.path(("main", "/app/two.py", 3), (name, "/app/two.py", 20 + 10 * number)), 5_000_000, "mapping"
        )
        side.allocate(side.path(("main", "/app/two.py", 4)), 1_000_000 + 50_000 * number)
        side.end()
        sides.append(side)
    page = write_diff(tmp_path / "two.html", *sides)
    seen = see("diff", page)
    assert {row[4].split()[0]: row[3] for row in seen["lines"]} == {
        "gone": "gone",
        "new": "new",
        "main": "within error",
    }
    assert seen["lines"][0][4].startswith("new") and seen["lines"][-1][4] == "gone two.py:20 before"
    assert seen["Before"][0][4].startswith("gone")
    assert seen["After"][0][4].startswith("new")
    assert "within error" in seen["moment"]
    assert set(see("narrow", page).values()) == {0}
    assert see("accessible", page) == []
