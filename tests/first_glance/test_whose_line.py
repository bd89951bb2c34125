"""What counts as the user's own code: the package that is run, what was installed from a folder, what is named; and
where a thread waited."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater
from compiled import library
from hiwater._os import ownership
from hiwater._os.ownership import OwnCode
from hiwater.analysis.user_lines import Group, rank_lines
from recording import child_environment, needs_engine

LIBRARY = """
def make(size):
    return bytearray(b"1") * size

def call(function, *arguments):
    return function(*arguments)

def make_after(function, size):
    function()
    return make(size)

def serve(requests):
    for request in iter(requests.get, None):
        request()
        requests.task_done()
"""
SIZE = 20 << 20
LONG = "\n".join(["    x = 1"] * 2000)


class Place:
    """A folder with site-packages, in which programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packages = folder, folder / "site-packages"
        self.write("site-packages/library.py", LIBRARY)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def headline(self, *words: str, options: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> str:
        """The end of the first sentence of a recorded run of a program."""
        path = {"PYTHONPATH": str(self.packages), **(environment or {})}
        done = run_hiwater("run", *options, "-o", "a.hiw", *words, folder=self.folder, environment=path, check=True)
        return done.stderr.splitlines()[1].partition("; ")[2]

    def own_code(self) -> str:
        said = run_hiwater("report", "a.hiw", folder=self.folder, check=True).stdout
        (row,) = [line for line in said.splitlines() if line.startswith("own code: ")]
        return row


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# The rules


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/app.py", ownership.OWN),
        ("<stdin>", ownership.OWN),
        ("<ipython-input-3-0a1b>", ownership.OWN),
        ("/tmp/ipykernel_77/123.py", ownership.OWN),
        ("<string>", ownership.LIBRARY),
        ("<-c>", ownership.OWN),
        ("<-c 04fd>", ownership.OWN),
        ("<dynamic-code>", ownership.OWN),
        ("<attrs generated __init__ app.Reading>", ownership.LIBRARY),
        ("<lambdifygenerated-1>", ownership.LIBRARY),
        ("<template>", ownership.LIBRARY),
        ("<_remote_module_non_scriptable>.py", ownership.LIBRARY),
        ("<frozen runpy>", ownership.LIBRARY),
        ("<frozen importlib._bootstrap>", ownership.IMPORTS),
        ("/app/templates/page.html", ownership.LIBRARY),
        ("/v/lib/python3.11/site-packages/shop/core.py", ownership.OWN),
        ("/v/lib/python3.11/site-packages/shop.py", ownership.OWN),
        ("/v/lib/python3.11/site-packages/shopping/core.py", ownership.LIBRARY),
        ("/v/lib/python3.11/site-packages/acme/tools/x.py", ownership.OWN),
        ("/v/lib/python3.11/site-packages/acme/other.py", ownership.LIBRARY),
        ("/v/lib/python3.11/site-packages/started/main.py", ownership.RUN),
        ("/usr/lib/python3/dist-packages/yaml/nodes.py", ownership.LIBRARY),
        ("/usr/lib/python3.13t/json/decoder.py", ownership.LIBRARY),
        ("/v/bin/shop", ownership.LIBRARY),
        ("/cache/w3/cw33botw3lfovvwl4ztkyu4piw7f566w7lia5a4vuafzhfhfu24g.py", ownership.LIBRARY),
        ("/cache/w3/cw33botw3lfovvwl4ztkyu4piw7f566w7lia5a4vuafzhfhfu24gg.py", ownership.OWN),
        ("/tmp/torch_geometric.nn.conv.gcn_conv_GCNConv_propagate_y_8h6pb9.py", ownership.LIBRARY),
        ("/home/me/torch_geometric_try.py", ownership.OWN),
        ("/c/huggingface/modules/transformers_modules/org/model/0a1b/modeling.py", ownership.LIBRARY),
        ("/home/me/.cache/torch/hub/pytorch_vision_v0.10.0/hubconf.py", ownership.LIBRARY),
        ("/home/me/.pex/installed_wheels/0/0a1b/numpy-2.0.whl/numpy/core.py", ownership.LIBRARY),
    ],
)  # fmt: skip
def test_whose_code_a_file_has(file: str, owner: int) -> None:
    by = ownership.rules(["shop", "acme.tools"], ["started"], launchers=["/v/bin/shop"])
    assert ownership.owners([file], by) == [owner]


@needs_engine
def test_the_engine_applies_the_same_rules(place: Place) -> None:
    place.write("shop/__init__.py", "")
    place.write(
        "shop/__main__.py", "import dataclasses, json, library\nkept = [library.make(1000), json.loads('[1]')]\n"
    )
    place.headline("-m", "shop", options=("--own", "library"))
    tables = hiwater.open(place.folder / "a.hiw").tables
    files = [tables.string(file) for file in tables["codes"]["file"].tolist()]
    is_python = tables["codes"]["kind"] == 0
    expected = ownership.owners(files, ownership.rules(["library"], ["shop"]))
    found = tables["codes"]["owner"].tolist()
    assert [pair for pair in zip(files, found, strict=True) if pair not in set(zip(files, expected, strict=True))] == []
    assert {ownership.OWN, ownership.LIBRARY, ownership.IMPORTS} <= set(found) and is_python.any()


# What counts


@needs_engine
@pytest.mark.parametrize("how", ["option", "environment", "project", "nothing"])
def test_a_package_that_is_named_is_the_users(place: Place, how: str) -> None:
    place.write("program.py", f"import library\nkept = library.make({SIZE})\n")
    if how == "project":
        place.write("pyproject.toml", '[tool.hiwater]\nown = ["library"]\n')
    environment = {"HIWATER_OWN": "other,library"} if how == "environment" else {}
    said = place.headline(
        "program.py", options=("--own", "library") if how == "option" else (), environment=environment
    )
    assert said.startswith(
        "most at site-packages/library.py:3 in make" if how != "nothing" else "most at program.py:2 in <module>"
    )
    named = "" if how == "nothing" else ", package library (named)"
    assert place.own_code().replace(", package other (named)", "") == f"own code: files that are not installed{named}"


@needs_engine
def test_a_report_can_count_more_packages_as_the_users(place: Place) -> None:
    """Of each process of a run, and of all of them together."""
    place.write(
        "program.py",
        f"import library, os\nif os.fork() == 0:\n    kept = library.make({SIZE})\n    os._exit(0)\nos.wait()\n",
    )
    place.headline("program.py")

    def said(*words: str) -> str:
        return run_hiwater("report", *words, "a.hiw", folder=place.folder, check=True).stdout

    for words in ((), ("--format", "json")):
        before, after = said(*words), said(*words, "--own", "library")
        assert "site-packages/library.py:3 in make" not in before and "program.py:3" in before, words
        assert "site-packages/library.py:3 in make" in after and "package library (--own)" in after, words


@needs_engine
def test_children_have_the_same_packages(place: Place) -> None:
    place.write("site-packages/library.py", LIBRARY + f"\nif __name__ == '__main__':\n    kept = make({SIZE})\n")
    place.write("child.py", f"import library\nkept = library.make({SIZE})\n")
    place.write("program.py", "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)\n")
    place.headline("program.py", options=("--own", "library"))
    (child,) = (place.folder / "a.hiw.d").glob("*.hiw")
    capture = hiwater.open(child)
    top = rank_lines(capture.tables, capture.peak.holdings()).headline
    assert top is not None and (Path(top.frame.file).name, top.frame.line) == ("library.py", 3)


@needs_engine
@pytest.mark.parametrize("way", ["-m", "script"])
def test_the_package_that_is_run_is_the_users_though_it_came_from_an_index(place: Place, way: str) -> None:
    place.write("site-packages/shop/__init__.py", "")
    place.write("site-packages/shop/__main__.py", "from shop.core import main\nmain()\n")
    place.write("site-packages/shop/core.py", f"import library\ndef main():\n    return library.make({SIZE})\n")
    place.write(
        "bin/shop",
        f"#!{sys.executable}\nimport sys\nfrom shop.core import main\nif __name__ == '__main__':\n"
        "    sys.exit(main() and None)\n",
    )
    place.write(
        "bin/shop", f"#!{sys.executable}\n# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom shop.core import run\n"
        "if __name__ == '__main__':\n    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n"
            "    sys.exit(run())\n",
    )  # fmt: skip
    place.write(
        "site-packages/shop/core.py", f"import library\ndef main():\n    kept = library.make({SIZE})\nrun = main\n"
    )
    said = place.headline(*(("-m", "shop") if way == "-m" else ("bin/shop",)))
    assert said.startswith("most at site-packages/shop/core.py:3 in main")
    why = "run with -m" if way == "-m" else "run by shop"
    assert place.own_code() == f"own code: files that are not installed, package shop ({why})"


@needs_engine
def test_other_code_of_the_users_comes_before_the_package_that_is_run(place: Place) -> None:
    """A tool that runs the user's file: what its own helpers allocate for the user's line is of that line."""
    place.write("site-packages/tool.py", f"{LIBRARY}\nif __name__ == '__main__':\n    import plugin\n")
    place.write("plugin.py", f"import tool\nkept = tool.make({SIZE})\n")
    assert place.headline("-m", "tool").startswith("most at plugin.py:2 in <module>")


@needs_engine
def test_a_recording_that_the_program_begins_knows_its_package_too(place: Place) -> None:
    place.write(
        "site-packages/shop.py",
        f"import hiwater, library\nwith hiwater.record('a.hiw'):\n    kept = library.make({SIZE})\n",
    )
    environment = child_environment({"PYTHONPATH": str(place.packages)})
    subprocess.run([sys.executable, "-m", "shop"], cwd=place.folder, env=environment, check=True, timeout=300)
    assert place.own_code() == "own code: files that are not installed, package shop (run with -m)"
    headline = json.loads(run_hiwater("report", "a.hiw", "--format", "json", folder=place.folder, check=True).stdout)[
        "headline"
    ]
    assert (Path(headline["file"]).name, headline["line"]) == ("shop.py", 3)


# What the recorded process finds out


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["-m", "shop.tool", "-c"], ("module", "shop.tool")),
        (["-Im", "shop"], ("module", "shop")),
        (["-X", "dev", "-Wdefault", "-u", "app.py", "-m"], ("script", "app.py")),
        (["-c", "pass"], ("command", "pass")),
        (["--check-hash-based-pycs", "never", "-mshop"], ("module", "shop")),
        (["-"], ("", "")),
        ([], ("", "")),
    ],
)
def test_what_an_interpreter_runs(arguments: list[str], kind: tuple[str, str]) -> None:
    assert ownership.program_of(arguments) == kind


@pytest.mark.parametrize(
    ("text", "package"),
    [
        (
            (
                "#!/usr/bin/python\nimport sys\nfrom shop.core import main\nif __name__ == '__main__':\n"
                "    sys.exit(main())\n"
            ),
            "shop",
        ),
        ("#!/usr/bin/python\nimport sys\nfrom numpy import ones\ntable = ones(9)\nsys.exit(main())\n", ""),
        ("#!/usr/bin/python\nimport sys\nfrom shop import main\nprint(main())\n", ""),
        ("#!/bin/sh\nexec python -m shop\n", ""),
    ],
)
def test_which_package_a_console_script_calls(tmp_path: Path, text: str, package: str) -> None:
    (tmp_path / "script").write_text(text)
    assert ownership.launched_package(str(tmp_path / "script")) == package


def installed(folder: Path, name: str, url: str = "", *, installer: str = "pip", more: str = "") -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "INSTALLER").write_text(f"{installer}\n")
    (info / "RECORD").write_text(
        f"{name}/__init__.py,,\n../../../bin/{name},,\n{info.name}/METADATA,,\n{name}_single.py,,\n"
    )
    if url:
        (info / "direct_url.json").write_text(f'{{{more}, "url": "{url}"}}')


def test_what_was_installed_from_a_folder_is_the_users(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    for name in ("numpy", "rich", "click"):
        installed(folder, name)
    installed(folder, "shop", "file:///src/shop", more='"dir_info": {}')
    installed(folder, "develop", "file:///src/develop", more='"dir_info": {"editable": true}')
    installed(folder, "wheel_file", "file:///wheels/wheel_file.whl", more='"archive_info": {}')
    installed(folder, "by_git", "https://example.org/by_git.git", more='"vcs_info": {}')
    installed(folder, "by_conda", "file:///build/by_conda", installer="conda", more='"dir_info": {}')
    found = dict(ownership._local_installs([str(folder), "/nowhere/site-packages", str(tmp_path)]))
    assert found == {
        "shop": "local install", "shop_single": "local install", "develop": "editable install",
        "develop_single": "editable install", "wheel_file": "local install", "wheel_file_single": "local install",
    }  # fmt: skip
    for name in ("a", "b", "c", "d", "e", "f", "g"):  # an image into which everything was copied as wheels
        installed(folder, name, f"file:///wheels/{name}.whl", more='"archive_info": {}')
    assert set(dict(ownership._local_installs([str(folder)]))) == {"shop", "shop_single", "develop", "develop_single"}


def test_what_a_child_gets_is_what_its_parent_has() -> None:
    mine = OwnCode()
    mine.own, mine.run, mine.launchers = {"shop": "named"}, {"started": "run with -m"}, ["/v/bin/started"]
    child = OwnCode.of_parent(mine.as_text())
    assert (child.own, child.launchers) == (mine.own, mine.launchers) and child.run.items() >= mine.run.items()


@pytest.mark.parametrize(
    ("text", "is_a_librarys"),
    [
        ("from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)", True),
        ("from multiprocessing.resource_tracker import main;main(4)", True),
        ("from joblib.externals.loky.backend.resource_tracker import main; main(43, False)", True),
        ("from shop import orders; print(orders())", False),
        ("import shop; shop.main()", False),
        ("x = bytearray(1 << 20)", False),
    ],
)
def test_a_command_of_a_library_is_not_the_users(
    monkeypatch: pytest.MonkeyPatch, text: str, is_a_librarys: bool
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", text])
    assert OwnCode.of_parent("").command == ("" if is_a_librarys else text)
    # Who runs it has typed it, but a worker of multiprocessing may be recorded alone.
    assert OwnCode.of_this_process().command == ("" if "multiprocessing" in text else text)


# Where a thread is waited for


@needs_engine
@pytest.mark.parametrize("sample", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_each_line_that_waits_has_what_was_done_for_it(place: Place, sample: tuple[str, ...]) -> None:
    """Blocks of two tasks of one pool, large and small; and the line is the submitter's, where the main thread waits
    for that one."""
    place.write(
        "program.py",
        "import concurrent.futures, threading\nimport library\n"
        "pool = concurrent.futures.ThreadPoolExecutor(1)\n"
        f"kept = list(pool.map(library.make, [{SIZE}]))\n"
        f"more = list(pool.map(library.make, [{SIZE}, {SIZE}]))\n"
        "def submit():\n"
        "    own = concurrent.futures.ThreadPoolExecutor(1)\n"
        f"    more.extend(own.map(library.make, [{SIZE}] * 4))\n"
        "thread = threading.Thread(target=submit)\nthread.start()\nthread.join()\n"
        "small = list(concurrent.futures.ThreadPoolExecutor(1).map(str.split, ['abc ' * 200_000]))\n"
        "def own(size):\n"
        "    return bytearray(b'1') * size\n"
        f"kept += pool.map(own, [{SIZE}])\n"
        f"kept += pool.map(own, [{SIZE}])\n"
        f"kept += pool.map(library.make_after, [eval('lambda: [0] * 99')], [{SIZE}])\n"
        f"kept += pool.map(library.make_after, [eval('lambda: [0] * 99')], [{SIZE}])\n",
    )
    waited: dict[int, int] = {}
    for _ in range(3):  # on a very busy machine a task may keep the line of the one before
        said = place.headline("program.py", options=sample)
        capture = hiwater.open(place.folder / "a.hiw")
        ranking = rank_lines(capture.tables, capture.end.holdings())
        waited = {row.frame.line: row.bytes for row in ranking.lines if row.group == Group.waited}
        if waited.keys() >= {4, 5, 8, 12, 17, 18}:
            break
    assert re.match(r"most waited for at program\.py:8 in submit: 80\.\d MiB", said)  # a sample may add small blocks
    # At the last two, the thread met a new stack before it came to the one that it knew.
    assert [round(waited[line] / SIZE) for line in (4, 5, 8, 17, 18)] == [1, 2, 4, 1, 1]
    assert 5 << 20 < waited[12] < 20 << 20
    # Its own lines lose nothing when the thread is waited for at another line.
    assert [round(row.bytes / SIZE) for row in ranking.lines if row.group == Group.line and row.frame.line == 14] == [2]
    capture.check()
    text = run_hiwater("report", "a.hiw", folder=place.folder, check=True).stdout
    assert "  waited for at program.py:8 " in text


@needs_engine
@pytest.mark.parametrize("of_pool", [2, 1])
def test_what_a_line_allocates_and_waits_for_is_one_row(place: Place, of_pool: int) -> None:
    """It leads before a line that holds more than either part. What is most of it names it."""
    place.write(
        "program.py",
        "import concurrent.futures\nimport library\n"
        "pool = concurrent.futures.ThreadPoolExecutor(1)\n"
        f"both = [list(pool.map(library.make, [{SIZE}] * {of_pool})), library.make({SIZE} * {3 - of_pool})]\n"
        f"other = library.make({SIZE} * 5 // 2)\n",
    )
    before = "waited for at" if of_pool == 2 else "at"
    assert place.headline("program.py").startswith(f"most {before} program.py:4 in <module>: 60.")
    capture = hiwater.open(place.folder / "a.hiw")
    first, second = rank_lines(capture.tables, capture.end.holdings()).lines[:2]
    assert (first.group, first.frame.line) == (Group.waited if of_pool == 2 else Group.line, 4)
    assert (second.frame.line, round(second.bytes / SIZE, 1)) == (5, 2.5)
    for kind in ("text", "markdown", "html"):
        run_hiwater("report", "a.hiw", "--format", kind, "-o", kind, folder=place.folder, check=True)
        assert f"most {before} program.py:4" in (place.folder / kind).read_text()


@needs_engine
def test_the_thread_in_between_may_have_ended(place: Place) -> None:
    """A library's thread was started by another one, which the user's thread started: the user's waits for it."""
    place.write(
        "site-packages/relay.py",
        """
import threading
import library

def make(size):
    made, started = [], []
    def work(starter):
        starter.join()
        made.append(library.make(size))
    def start():
        started.append(threading.Thread(target=work, args=(threading.current_thread(),)))
        started[0].start()
    first = threading.Thread(target=start)
    first.start()
    first.join()
    started[0].join()
    return made
""",
    )
    place.write(
        "program.py",
        "import threading\nimport relay\n"
        "kept = []\n"
        "def work():\n"
        f"    kept.append(relay.make({SIZE}))\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n",
    )
    assert place.headline("program.py").startswith("most waited for at program.py:5 in work: 20.")


@needs_engine
@pytest.mark.parametrize("sample", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_a_native_thread_works_for_the_line_that_waits_for_it(place: Place, sample: tuple[str, ...]) -> None:
    """Such threads are below the line that started them. It counts where nobody waits: the caller keeps the GIL. Their
    starter may have ended, or be idle: then another thread waits."""
    place.write(
        "program.py",
        f"""
import ctypes, queue, threading
import library
pool, keeps_gil = (kind({str(library("workers"))!r}) for kind in (ctypes.CDLL, ctypes.PyDLL))
def start(number):
    pool.start_worker(number, None)
    pool.worker_allocates(number, {SIZE})
def heavy():
    pool.worker_allocates(0, 5 * {SIZE})
def deep(function, depth):
    return deep(function, depth - 1) if depth else function()
start(0)
deep(heavy, 60)
keeps_gil.worker_allocates(0, {SIZE})
small = [pool.worker_allocates(0, size) for size in [{SIZE} // 20] * 10 + [3000] * 3000]
thread = threading.Thread(target=start, args=(1,))
thread.start()
thread.join()
pool.worker_allocates(1, {SIZE})
def request():
    pool.worker_allocates(2, 2 * {SIZE})
for work in (lambda: pool.start_worker(2, None), request):
    requests = queue.Queue()
    threading.Thread(target=library.serve, args=(requests,), daemon=True).start()
    requests.put(work)
    requests.join()
def long():
{LONG}
    pool.worker_allocates(0, 3 * {SIZE})
long()
""",
    )
    said = place.headline("program.py", options=sample)
    assert re.match(r"most waited for at program\.py:9 in heavy: 100\.\d MiB", said), said
    capture = hiwater.open(place.folder / "a.hiw")
    sizes: dict[tuple[Group, int], int] = {}
    for row in rank_lines(capture.tables, capture.end.holdings()).lines:
        blocks = round(row.bytes / SIZE)
        if blocks:
            sizes[row.group, row.frame.line] = blocks
    waited = {
        (Group.waited, line): blocks
        for line, blocks in ((7, 2), (9, 5), (15, 1), (19, 1), (21, 2), (28 + LONG.count("x"), 3))
    }
    assert sizes == {(Group.line, 6): 1, **waited}
    capture.check()


@needs_engine
@pytest.mark.parametrize("sample", [(), ("--sample", "64KiB")], ids=["exact", "sampled"])
def test_frames_may_go_while_a_native_thread_reads_them(place: Place, sample: tuple[str, ...]) -> None:
    """Threads start and end, and wait in code that lives as long as they do."""
    place.write(
        "program.py",
        f"""
import ctypes, threading, time
pool = ctypes.CDLL({str(library("workers"))!r})
TEXT = '''
def waits(depth):
    return waits(depth - 1) if depth else time.sleep(0.0002)
for depth in range(8):
    waits(depth)
'''
threading.Thread(target=pool.start_hasty_worker).start()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    codes = [compile("\\n" * number + TEXT, f"file {{number}}.py", "exec") for number in range(4)]
    threads = [threading.Thread(target=exec, args=(code, {{"time": time}})) for code in codes]
    del codes
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(pool.end_hasty_worker())
""",
    )
    done = run_hiwater("run", *sample, "-o", "a.hiw", "program.py", folder=place.folder, check=True)
    assert done.stdout == "0\n"
    hiwater.open(place.folder / "a.hiw").check()


@needs_engine
def test_a_function_that_was_sent_to_a_worker_is_the_users(place: Place) -> None:
    pytest.importorskip("joblib")
    place.write(
        "pooled.py",
        """
from joblib import Parallel, delayed
import library

def work(size):
    kept = library.make(size)
    return len(kept)

if __name__ == "__main__":
    print(Parallel(n_jobs=2)(delayed(work)(40 << 20) for _ in range(2)))
""",
    )
    assert place.headline("pooled.py")
    said = run_hiwater("report", "a.hiw", "--full", folder=place.folder, check=True).stdout
    assert re.search(r"most(?: of the rest)? at pooled\.py:6 in work: 40\.0 MiB", said), said
    assert "<dynamic-code>" not in said
