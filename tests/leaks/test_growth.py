"""Growth over time without markers, growth of types, ages of what is live, and leak tests with more call paths than
the recorder tells ages of."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import hiwater
import schemas
from capture_builder import COUNTED_KINDS
from children import hiwater_command, run_hiwater
from hiwater.capture.holders import read_searches
from hiwater.report.request import Report
from page_reader import Page, page_of
from recording import child_environment, needs_engine
from waiting import wait_until

pytestmark = needs_engine

SERVICE = """\
import os, time

KEPT, RING = [], {}

def handle(number):
    KEPT.append(bytearray(3_000))
    RING[number % 20] = bytearray(20_000)

def main():
    number = 0
    while not os.path.exists("stop"):
        handle(number)
        number += 1
        time.sleep(0.001)
    for number in range(20):  # it may have waited long for a processor
        handle(number)

main()
"""


def record_service(folder: Path, *options: object) -> Path:
    """Record the service until it has been recorded for 40 intervals."""
    (folder / "service.py").write_text(SERVICE)
    command = hiwater_command("run", "-q", *options, "--holders", "-o", "service.hiw", "service.py")
    with subprocess.Popen(command, cwd=folder, env=child_environment()) as process:
        try:
            wait_until(lambda: (folder / "service.hiw").exists() and _intervals(folder / "service.hiw") >= 40)
        finally:
            (folder / "stop").touch()
        assert process.wait() == 0
    return folder / "service.hiw"


def _intervals(path: Path) -> int:
    rows = hiwater.open(path).tables.get("live_snapshots")
    return 0 if rows is None or len(rows) == 0 else int(rows["number"].max())


def test_what_a_program_without_markers_leaks_over_time(tmp_path: Path) -> None:
    record_service(tmp_path, "--snapshot-every", "0.05s")
    done = run_hiwater("leaks", "service.hiw", "--format", "json", folder=tmp_path)
    result = json.loads(done.stdout)
    assert (result["name"], done.returncode) == ("every 0.05 s", 1)
    (leak,) = result["leaks"]
    assert (leak["line"], leak["types"], leak["held_by"]) == (6, ["bytearray"], "list `KEPT` of module `__main__`")
    text = run_hiwater("leaks", "service.hiw", folder=tmp_path).stdout
    assert re.match(r"leaks \S+ KiB every 0\.05 s at service\.py:6 \(handle\)\n", text)
    assert re.search(r"it was allocated after snapshot \d+,", text)


def test_the_search_at_the_end_is_not_time_in_which_nothing_leaked(tmp_path: Path) -> None:
    """The search takes many intervals: without growth in them, a leak would look like a cache that is full."""
    program = (
        "import time\n"
        "kept = []\n"
        "began = time.monotonic()\n"
        "while time.monotonic() < began + 0.6: kept.append(bytearray(3_000)); time.sleep(0.001)\n"
        "objects = [(number,) for number in range(600_000)]\n"
    )
    (tmp_path / "service.py").write_text(program)
    run_hiwater("run", "-q", "--snapshot-every", "10ms", "--holders", "-o", "a.hiw", "service.py", folder=tmp_path)
    capture = hiwater.open(tmp_path / "a.hiw")
    intervals = capture.tables["live_snapshots"]["at_ns"]
    (search,) = read_searches(capture.tables)
    assert search.duration_ns > 50_000_000 and (intervals < search.at_ns).sum() > 10
    assert (intervals > search.at_ns).sum() <= 1  # one may be due at the moment of the search


def test_the_ages_of_what_is_live(tmp_path: Path) -> None:
    record_service(tmp_path, "--snapshot-every", "0.05s")
    text = run_hiwater("report", "service.hiw", "--kept", folder=tmp_path, check=True).stdout
    shares = {
        int(line): [float(one) for one in ages.replace("%", "").split()]
        for ages, line in re.findall(r"%  ((?:\s*[\d.]+ %){4})  service\.py:(\d+)", text)
    }
    assert all(abs(sum(ages) - 100) < 0.5 for ages in shares.values()), text
    assert min(shares[6]) > 0  # a leak is of all ages, of more of some where the program had to wait for a processor
    assert shares[7][3] > 99  # and a ring is young
    said = json.loads(
        run_hiwater("report", "service.hiw", "--kept", "--format", "json", folder=tmp_path, check=True).stdout
    )
    schemas.check(said, "kept")
    lines = {line["line"]: line for line in said["lines"] if line["file"].endswith("service.py")}
    assert all(sum(line["by_age"]) == line["bytes"] for line in lines.values()) and said["snapshots"] > 10
    assert sum(line["bytes"] for line in said["lines"]) == said["bytes"]
    for line, parts in shares.items():
        assert all(
            abs(100 * part / lines[line]["bytes"] - shown) < 0.1
            for part, shown in zip(lines[line]["by_age"], parts, strict=True)
        )
    capture = hiwater.open(tmp_path / "service.hiw")
    page = Page(page_of([Report(capture, capture.end)]))
    counted = page.kind < len(COUNTED_KINDS)
    of_page = [int(page.unpacked.column(column)[counted].sum()) for column in page.capture["ages"]["end_bytes"]]
    assert of_page == [sum(parts) for parts in zip(*(line["by_age"] for line in said["lines"]), strict=True)]
    assert page.capture["ages"]["snapshots"] == said["snapshots"]


def test_without_snapshots_the_ages_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("KEPT = [bytearray(5000) for _ in range(10)]")
    run_hiwater("run", "-q", "-o", "short.hiw", "short.py", folder=tmp_path, check=True)
    text = run_hiwater("report", "short.hiw", "--kept", folder=tmp_path, check=True).stdout
    assert "--snapshot-every" in text
    assert re.search(r"49\.\d KiB +\S+ % +short\.py:1", text), text
    refused = run_hiwater("report", "short.hiw", "--kept", "--format", "csv", folder=tmp_path)
    assert (refused.returncode, "--kept is for text and json" in refused.stderr) == (2, True)
    said = json.loads(
        run_hiwater("report", "short.hiw", "--kept", "--format", "json", folder=tmp_path, check=True).stdout
    )
    schemas.check(said, "kept")
    assert said["snapshots"] == 0 and {line["by_age"] for line in said["lines"]} == {None}


@pytest.mark.parametrize("every", ["0", "soon", "-3s"])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, every: str) -> None:
    done = run_hiwater("run", "--snapshot-every", every, "-c", "pass", folder=tmp_path)
    assert (done.returncode, f"{every!r} is not a duration" in done.stderr) == (2, True)


# --- types ------------------------------------------------------------------------------------------------------------

MANY = """\
class Row:
    __slots__ = ("a", "b", "c", "d", "e", "f")

KEPT, RECENT = [], {{}}

def define(number):
    names = {{}}
    exec(compile("\\n" * number + {body!r}.replace("@", str(number)), "made.py", "exec"), globals(), names)
    return names[f"make{{number}}"]

MAKERS = [define(number) for number in range(200)]

def call():
    for make in MAKERS:
        make()
"""


@pytest.mark.parametrize(
    ("body", "leaks"),
    [("def make@():\n    KEPT.append(Row())\n", True), ("def make@():\n    RECENT[@] = [Row() for _ in range(30)]\n",
        False)],
    ids=["leak", "renewed"],
)  # fmt: skip
def test_objects_of_a_type_leak_on_call_paths_that_do_not_show_it(tmp_path: Path, body: str, leaks: bool) -> None:
    (tmp_path / "many.py").write_text(MANY.format(body=body))
    done = run_hiwater("leaks", "--repeat", 40, "many.py:call", "--format", "json", folder=tmp_path)
    result = json.loads(done.stdout)
    assert (result["leaks"], done.returncode) == ([], int(leaks))
    assert [(one["type"], one["held_by"]) for one in result["types"]] == [
        ("many.Row", "list `KEPT` of module `many`")
    ] * leaks
    if leaks:
        (one,) = result["types"]
        assert one["line_count"] == 200
        assert one["bytes_per_moment"] == pytest.approx(200 * (64 + 16), rel=0.15)  # the objects, with their headers


# --- more call paths than ages are known of ---------------------------------------------------------------------------

CROWD = """\
import hiwater

KEPT, PLACES = [], [None] * 4000
exec("".join(f"def make{number}():\\n    PLACES[{number}] = bytearray(40)\\n" for number in range(4000)))
MAKERS = [globals()[f"make{number}"] for number in range(4000)]

def leak():
    KEPT.append(bytearray(20_000))

for _ in range(150):
    for make in MAKERS:
        make()
    leak()
    hiwater.mark("call")
"""


def test_a_leak_is_found_where_ages_are_known_for_the_first_markers_alone(tmp_path: Path) -> None:
    last_third = "time.sleep((time.monotonic() - began) / 2)\n"
    (tmp_path / "crowd.py").write_text("import time\nbegan = time.monotonic()\n" + CROWD + last_third)
    run_hiwater("run", "-q", "-o", "crowd.hiw", "crowd.py", folder=tmp_path, check=True)
    rows = hiwater.open(tmp_path / "crowd.hiw").tables["live_snapshots"]
    assert np.count_nonzero(rows["first_account"] == 0) > 3  # or this tests nothing
    done = run_hiwater("leaks", "crowd.hiw", "--format", "json", folder=tmp_path)
    result = json.loads(done.stdout)
    assert [leak["line"] for leak in result["leaks"]] == [10]
    assert 30 < result["last_tested_moment"] < 149
    text = run_hiwater("leaks", "crowd.hiw", folder=tmp_path).stdout
    assert f"only the first {result['last_tested_moment']} were tested" in text
    # What was allocated afterwards has no age, rather than a wrong one.
    kept = run_hiwater("report", "crowd.hiw", "--kept", "--format", "json", folder=tmp_path, check=True).stdout
    (line,) = [line for line in json.loads(kept)["lines"] if line["line"] == 10]
    known = 150 * sum(line["by_age"]) / line["bytes"]
    assert result["last_tested_moment"] - 15 < known < result["last_tested_moment"] + 2
    assert (
        "of what is missing to 100 % it is not known"
        in run_hiwater("report", "crowd.hiw", "--kept", folder=tmp_path).stdout
    )


def test_a_service_with_a_thread_for_each_request_has_no_more_call_paths_than_one_without(tmp_path: Path) -> None:
    requests = (
        CROWD.replace("4000", "300")
        .replace("import hiwater\n", "import threading\nimport hiwater\n")
        .replace("for _ in range(150):\n", "def request():\n")
        .replace('    hiwater.mark("call")\n', "")
    )
    requests += """
for _ in range(100):
    thread = threading.Thread(target=request)
    thread.start()
    thread.join()
    hiwater.mark("call")
"""
    (tmp_path / "service.py").write_text(requests)
    run_hiwater("run", "-q", "-o", "service.hiw", "service.py", folder=tmp_path, check=True)
    result = json.loads(run_hiwater("leaks", "service.hiw", "--format", "json", folder=tmp_path).stdout)
    assert [(leak["line"], leak["bytes_per_moment"] // 100) for leak in result["leaks"]] == [(9, 200)]
    # Of 300 lines for each of the first threads.
    assert len(hiwater.open(tmp_path / "service.hiw").tables["nodes"]) < 12_000
