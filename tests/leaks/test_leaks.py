"""`hiwater leaks`: the snapshots at markers against what the program counts itself, the command, suppressions, and
wrong arguments."""

import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest

import hiwater
import schemas
from children import run_hiwater
from hiwater.analysis import suppressions
from hiwater.capture.paths import Frame
from recording import needs_engine, record

APP = """\
import hiwater

KEPT = []

def handle():
    KEPT.append(bytearray(10_000))

def busy():
    rows = [bytearray(1000) for _ in range(100)]
    return len(rows)

async def later():
    KEPT.append(bytearray(20_000))

def fails():
    raise ValueError("no")

def main():
    for number in range(40):
        with hiwater.phase("request"):
            handle()
        if number % 2:
            hiwater.mark("pair")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


# --- snapshots at markers ---------------------------------------------------------------------------------------------


@needs_engine
@pytest.mark.parametrize("workers", [0, 3])
def test_live_bytes_and_ages_at_each_marker_are_those_that_the_program_counts(tmp_path: Path, workers: int) -> None:
    program = f"""
    import json, random, sys, threading
    import hiwater
    draw = random.Random(7)
    held = {{}}
    counted = []
    def make(size):
        return bytearray(size)  # @kept
    def other():
        held[len(counted), "x", draw.random()] = bytearray(5000)
    def main():
        for step in range(20):
            for number in range(draw.randrange(30)):
                held[step, "a", number] = make(draw.randrange(700, 3000))
            for key in [key for key in held if draw.random() < 0.3]:
                del held[key]
            for worker in [threading.Thread(target=other) for _ in range({workers})]:
                worker.start(); worker.join()
            sizes = {{}}
            for key, value in held.items():
                if key[1] == "a":
                    sizes[key[0]] = sizes.get(key[0], 0) + sys.getsizeof(value)
            hiwater.mark("step")
            counted.append(sizes)
    def after():
        print(json.dumps(counted))
    """
    recorded = record(tmp_path, program)
    counted = json.loads(recorded.stdout)
    capture = hiwater.open(recorded.path)
    capture.check()
    tables = capture.tables
    rows = tables["live_snapshots"]
    assert rows["number"].tolist() == list(range(3, 21))  # none at the first two
    line = recorded.line("kept")
    is_own = np.array([tables.string(int(file)).endswith("/program.py") for file in tables["codes"]["file"]])
    nodes = tables["nodes"]
    on_line = ((nodes["line"] == line) & is_own[nodes["code"]])[tables.account_node]
    births = rows["first_account"].tolist()
    assert births == sorted(set(births))
    for row in rows:
        held = capture.of_slice(capture.slices[row["slice"]])
        assert held.at_ns == row["at_ns"]
        expected = counted[int(row["number"]) - 1]
        assert int(held.bytes[on_line].sum()) == sum(expected.values())
    # Before the third marker nothing tells ages apart; from then on, each step has accounts of its own.
    by_birth = np.searchsorted(births, np.arange(len(on_line)), "right")
    for number in range(4, 21):
        found = int(held.bytes[on_line & (by_birth == number - 3)].sum())
        assert found == counted[-1].get(str(number - 1), 0), number


@needs_engine
def test_call_paths_with_several_accounts_are_one_row_of_a_report(app: Path) -> None:
    run_hiwater("run", "-q", "-o", "run.hiw", "app.py", folder=app, check=True)
    capture = hiwater.open(app / "run.hiw")
    for snapshot in (capture.peak, capture.end):
        held = snapshot.holdings()
        assert len({*zip(held.node.tolist(), held.kind.tolist(), strict=True)}) == len(held.node)
        assert held.total_bytes == snapshot.allocated_bytes


@needs_engine
def test_the_snapshots_of_many_markers_are_bounded(tmp_path: Path) -> None:
    program = """
    import hiwater
    def main():
        for number in range(9_000):
            hiwater.mark("request")
            hiwater.mark(f"{number // 3 % 900}")
    """
    recorded = record(tmp_path, program)
    tables = hiwater.open(recorded.path).tables
    rows = tables["live_snapshots"]
    assert len(rows) <= 2000
    of_requests = [int(row["number"]) for row in rows if tables.string(int(row["name"])) == "request"]
    gaps = np.diff(of_requests)
    assert of_requests[:62] == list(range(3, 65))
    assert (gaps <= np.maximum(1, np.array(of_requests[:-1]) // 16)).all()
    assert recorded.path.stat().st_size < 4_000_000


# --- the command ------------------------------------------------------------------------------------------------------


@needs_engine
def test_repeated_calls_of_a_function_that_leaks(app: Path) -> None:
    done = run_hiwater("leaks", "--repeat", 30, "app.py:handle", folder=app)
    assert re.fullmatch(r"leaks 9\.8\d KiB each call at app\.py:6 \(handle\)", done.stdout.splitlines()[0])
    assert "KEPT.append(bytearray(10_000))" in done.stdout
    assert done.returncode == 1
    assert list(app.glob("*.hiw*")) == []


@needs_engine
@pytest.mark.parametrize("place", ["app:later", "app.py:later"])
def test_coroutines_run_and_modules_are_found(app: Path, place: str) -> None:
    done = run_hiwater("leaks", "--repeat", 15, place, folder=app)
    assert re.match(r"leaks 19\.\d KiB each call at app\.py:13 \(later\)\n", done.stdout), done.stdout + done.stderr


@needs_engine
def test_repeated_calls_that_leak_nothing_say_what_would_have_been_found(app: Path) -> None:
    done = run_hiwater("leaks", "--repeat", 30, "app.py:busy", folder=app)
    assert done.stdout.splitlines()[0] == "no leak: the test finds growth of 2.13 KiB each call and more"
    assert done.returncode == 0


@needs_engine
def test_a_recording_with_phases_and_markers(app: Path) -> None:
    run_hiwater("run", "-q", "-o", "run.hiw", "app.py", folder=app, check=True)
    done = run_hiwater("leaks", "run.hiw", folder=app)
    assert re.fullmatch(r"leaks 9\.8\d KiB each 'request' at app\.py:6 \(handle\)", done.stdout.splitlines()[0])
    pairs = run_hiwater("leaks", "run.hiw", "--name", "pair", "--format", "json", folder=app)
    (leak,) = json.loads(pairs.stdout)["leaks"]
    assert (leak["line"], leak["bytes_per_moment"] // 1000) == (6, 20)
    assert done.returncode == pairs.returncode == 1


@needs_engine
def test_too_few_markers_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(APP.replace("range(40)", "range(8)"))
    run_hiwater("run", "-q", "-o", "few.hiw", "few.py", folder=tmp_path, check=True)
    done = run_hiwater("leaks", "few.hiw", folder=tmp_path)
    said = "cannot tell: 4 snapshots were tested, too few for a leak to be told from chance; record more of 'request'\n"
    assert done.stdout.startswith(said)
    assert done.returncode == 3


@needs_engine
def test_too_few_snapshots_say_how_there_are_more(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(
        "import time\nkept = []\nfor _ in range(60):\n    kept.append(bytes(9999)); time.sleep(0.01)\n"
    )
    run_hiwater("run", "-q", "--snapshot-every", "0.1", "-o", "short.hiw", "short.py", folder=tmp_path, check=True)
    done = run_hiwater("leaks", "short.hiw", folder=tmp_path)
    assert "from chance; record for longer, or with a shorter --snapshot-every\n" in done.stdout, done.stdout


@needs_engine
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--repeat", "30", "app.py:nothing"], 2, "has no 'nothing'"),
        (["--repeat", "30", "app.py"], 2, "is not the name of a function"),
        (["--repeat", "30", "missing:call"], 2, "cannot be loaded"),
        (["--repeat", "30", "app.py:fails"], 125, "failed in one of its calls"),
        (["--repeat", "5", "app.py:busy"], 2, "not between 12 and 10,000"),
        (["missing.hiw"], 2, "missing.hiw"),
        (["plain.hiw"], 2, "no markers or phases"),
        (["plain.hiw", "--suppressions", "bad.toml"], 2, "has no reason"),
    ],
)
def test_what_cannot_be_done_is_said(app: Path, words: list[str], code: int, message: str) -> None:
    (app / "bad.toml").write_text("[[suppress]]\nfunction = 'handle'\n")
    (app / "plain.py").write_text("pass")
    run_hiwater("run", "-q", "-o", "plain.hiw", "plain.py", folder=app, check=True)
    done = run_hiwater("leaks", *words, folder=app)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


# --- free lists -------------------------------------------------------------------------------------------------------

REUSED = """\
import hiwater

ROWS, LOG, POOL = [], [], {}

def parse(count):
    parts = list(range(count))
    return sum(parts)

def pair(count):
    return dict(count=count)["count"]

def handle():
    for number in range(100):
        parse(300 + number % 7)
        ROWS.append([f"cell {column} of {number}" for column in range(20)])
        pair(number)
        POOL[len(POOL)] = dict.fromkeys([f"key {column}" for column in range(9)], f"value {number}" * 20)
        if LOGS:
            LOG.append([])

for _ in range(40):
    handle()
    hiwater.mark("request")
"""


@needs_engine
@pytest.mark.parametrize("options", [(), ("--holders",)])
def test_memory_from_free_lists_is_no_leak_of_the_line_that_had_it_first(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Each list that is kept has the header of one that `parse` needed for a moment, and `parse` allocates the next
    one."""
    (tmp_path / "reused.py").write_text("LOGS = False\n" + REUSED)
    run_hiwater("run", "-q", *options, "-o", "run.hiw", "reused.py", folder=tmp_path, check=True)
    leaks = json.loads(run_hiwater("leaks", "run.hiw", "--format", "json", folder=tmp_path).stdout)["leaks"]
    told = [leak["line"] for leak in leaks]
    assert sorted(told) == [16, 18], leaks
    of_rows = leaks[told.index(16)]
    assert [frame["line"] for frame in of_rows["headers"]] == [7]
    if options:  # their figures are known to belong together
        per_row = of_rows["live_bytes"] / 4_000
        assert per_row == pytest.approx(56 + 20 * 8 + 20 * 64, rel=0.2)
        assert of_rows["live_blocks"] == 4_000 * 22


@needs_engine
def test_a_small_leak_beside_a_large_one_is_told(tmp_path: Path) -> None:
    """It grows in step, in blocks of one size, and its objects hold nothing of the large one."""
    text = "LOGS = True\n" + REUSED
    for temporary in ("parse(300 + number % 7)", "POOL[len(POOL)] = "):  # nothing is freed whose memory is handed on
        text = text.replace(temporary, "pass # ")
    (tmp_path / "reused.py").write_text(text)
    run_hiwater("run", "-q", "--holders", "-o", "run.hiw", "reused.py", folder=tmp_path, check=True)
    leaks = json.loads(run_hiwater("leaks", "run.hiw", "--format", "json", folder=tmp_path).stdout)["leaks"]
    assert sorted(leak["line"] for leak in leaks) == [16, 20], leaks


# --- runs of several processes ----------------------------------------------------------------------------------------

POOL = """\
import os
import hiwater

KEPT = []

def handle(size):
    KEPT.append(bytearray(size))

def work(size):
    for _ in range(30):
        handle(size)
        hiwater.mark("request")

def main():
    for size in SIZES:
        child = os.fork()
        if child == 0:
            work(size)
            os._exit(0)
        os.waitpid(child, 0)

main()
"""


def pool(folder: Path, *sizes: int) -> list[int]:
    """Record forked workers one after the other, each of which keeps so many bytes for each request. Returns their
    process numbers."""
    (folder / "pool.py").write_text(POOL.replace("SIZES", repr(sizes)))
    run_hiwater("run", "-q", "-o", "pool.hiw", "pool.py", folder=folder, check=True)
    return [capture.process.pid for capture in hiwater.open_run(folder / "pool.hiw").captures[1:]]


@needs_engine
def test_the_process_that_leaks_is_named(tmp_path: Path) -> None:
    idle, leaking = pool(tmp_path, 10, 30_000)
    done = run_hiwater("leaks", "pool.hiw", folder=tmp_path)
    assert re.match(rf"leaks 29\.\d KiB each 'request' in process {leaking} at pool\.py:7 \(handle\)\n", done.stdout), (
        done.stdout
    )
    assert "not tested: 1 process without such a snapshot" in done.stdout  # the main process sets no marker
    alone = run_hiwater("leaks", "pool.hiw", "--pid", idle, folder=tmp_path)
    assert alone.stdout.startswith("no leak: ")
    assert (done.returncode, alone.returncode) == (1, 0)
    beside = run_hiwater("leaks", "pool.hiw.d", folder=tmp_path)
    assert (beside.stdout, beside.returncode) == (done.stdout, 1)


@needs_engine
def test_workers_that_leak_at_one_line_are_one_leak(tmp_path: Path) -> None:
    idle, *leaking = pool(tmp_path, 10, 10_000, 20_000, 30_000)
    result = json.loads(run_hiwater("leaks", "pool.hiw", "--format", "json", folder=tmp_path).stdout)
    schemas.check(result, "leaks")
    (leak,) = result["leaks"]
    assert leak["processes"] == leaking[::-1]  # the one that grows most first
    assert leak["bytes_per_moment"] // 1_000 == 20  # of one of them, on average
    assert leak["live_bytes"] // 100_000 == 18 and leak["live_blocks"] == 3 * (30 * 2 + 1)  # the list's items
    assert [(one["pid"], one["can_tell"]) for one in result["processes"]] == [(pid, True) for pid in (idle, *leaking)]
    assert (result["untested_processes"], result["tested_paths"]) == (1, 3)
    text = run_hiwater("leaks", "pool.hiw", folder=tmp_path).stdout
    assert f"each 'request' in each of 3 processes ({', '.join(map(str, leaking[::-1]))}) at pool.py:7" in text


@needs_engine
@pytest.mark.parametrize(("workers", "verdict", "code"), [(2, "no leak: ", 0), (6, "cannot tell: ", 3)])
def test_workers_that_end_too_soon_are_said(tmp_path: Path, workers: int, verdict: str, code: int) -> None:
    """If most of what was seen of the run are such workers, nothing can be told of it."""
    short = POOL.replace("SIZES", f"[30_000] * {workers}").replace("range(30)", "range(30 if size < 9 else 7)")
    (tmp_path / "pool.py").write_text(short + "work(5)\n")
    run_hiwater("run", "-q", "-o", "pool.hiw", "pool.py", folder=tmp_path, check=True)
    done = run_hiwater("leaks", "pool.hiw", folder=tmp_path)
    assert (done.stdout.startswith(verdict), done.returncode) == (True, code), done.stdout
    assert re.search(rf"^too few snapshots to tell: {workers} processes \(", done.stdout, re.MULTILINE), done.stdout


# --- suppressions -----------------------------------------------------------------------------------------------------


@needs_engine
@pytest.mark.parametrize("is_in_project", [False, True])
def test_suppressed_lines_are_counted_and_said(app: Path, is_in_project: bool) -> None:
    (app / "known.toml").write_text("[[suppress]]\nfunction = 'hand*'\nfile = 'app.py'\nreason = 'kept on purpose'\n")
    words = () if is_in_project else ("--suppressions", "known.toml")
    if is_in_project:
        (app / "pyproject.toml").write_text("[tool.hiwater]\nsuppressions = 'known.toml'\n")
    done = run_hiwater("leaks", "--repeat", 20, "app.py:handle", *words, folder=app)
    assert done.returncode == 0
    assert done.stdout.startswith("no leak: ")
    assert re.search(
        r"^suppressed: 9\.8\d KiB each call at app\.py:6 \(handle\): kept on purpose$", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[suppress]]\nreason = 'r'\n", "has neither a function nor a file"),
        ("[[suppress]]\nfunction = 'f'\nreason = ' '\n", "has no reason"),
        ("[[suppress]]\nfunction = 'f'\nreason = 'r'\nline = '3'\n", "unknown key 'line'"),
        ("[[suppress]]\nfunction = 3\nreason = 'r'\n", "a value that is not text"),
        ("suppress = 3\n", "something other than"),
        ("[suppress", "are not TOML"),
    ],
)
def test_bad_suppressions_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(hiwater.errors.BadRequest, match=message.replace("[", r"\[")):
        suppressions.read(str(path))


def test_globs_match_functions_and_ends_of_paths() -> None:
    frames = [Frame("main", "/srv/app.py", 3), Frame("Cache.put", "/srv/lib/cache.py", 9)]
    for function, file, expected in [
        ("Cache.*", "*", True), ("*", "cache.py", True), ("*", "lib/*.py", True), ("main", "cache.py", False),
        ("*", "ache.py", False),
    ]:  # fmt: skip
        assert suppressions.Suppression("r", function, file).matches(frames) is expected, (function, file)


@needs_engine
def test_caches_of_the_standard_library_are_known_by_name(tmp_path: Path) -> None:
    program = """
    import linecache, pathlib
    calls = 0
    def call():
        global calls
        calls += 1
        path = pathlib.Path(f"made_{calls}.py")
        path.write_text("# a comment that makes this file long\\n" * 500)
        linecache.getlines(str(path))
    """
    (tmp_path / "big.py").write_text(textwrap.dedent(program))
    done = run_hiwater("leaks", "--repeat", 20, "big.py:call", "--format", "json", folder=tmp_path)
    result = json.loads(done.stdout)
    schemas.check(result, "leaks")
    assert result["leaks"] == []
    assert [row["is_known"] for row in result["suppressed"]] == [True], done.stdout
    assert "linecache" in result["suppressed"][0]["suppressed_because"]
