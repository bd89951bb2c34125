"""What holds objects, in real programs: the holder and the line that are named are those that a person would change,
and the program notices nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

import compiled
import hiwater
import notebooks
import schemas
from children import hiwater_command, run_hiwater, run_python
from packages import skip_without
from page_reader import Page
from recording import child_environment, needs_engine, rounds
from waiting import SLEEPING, is_in_call, wait_until

pytestmark = needs_engine
PROGRAMS = Path(__file__).parent.parent / "leaks" / "programs"
# For each program that leaks: the type that is held, its holder, and the file and text of a line that allocated it.
HOLDERS = {
    "asyncio_tasks": (r"_asyncio\.Task", r"set `_TASKS` of module `leaks_asyncio_tasks`", "# leak"),
    "cache": (r"str", r"dict `_CACHE` of module `leaks_cache`", "return chr"),
    "class_registry": (r"type", r"dict `\.registry` of type `Base` of module `leaks_class_registry`", "# leak"),
    "closure": (r"function", r"list `_LATER` of module `leaks_closure`", "return lambda"),
    "del_cycle": (r"leaks_del_cycle\.Node", r"list `_REVIVED` of module `leaks_del_cycle`", "Node()"),
    "listener": (r"method", r"list `\.listeners` of leaks_listener\.Signal `CHANGED` of module `leaks_listener`",
        "CHANGED.connect"),
    "logging_handlers": (r"logging\.StreamHandler",
        r"list `\.handlers` of logging\.Logger `_LOG` of module `leaks_logging_handlers`", "addHandler"),
    "thread_locals": (r"str", r".*`_LOCAL` of module `leaks_thread_locals`|.*a thread keeps.*", "return chr"),
    "traceback": (r"ValueError", r"list `_FAILURES` of module `leaks_traceback`", "raise ValueError"),
}  # fmt: skip


def searched(folder: Path, source: str, *words: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """What the search at the end of a program found."""
    (folder / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "--holders", "-o", "run.hiw", "program.py", folder=folder, environment=environment, check=True)
    found: dict[str, Any] = json.loads(
        run_hiwater("holders", "run.hiw", "--format", "json", *words, folder=folder, check=True).stdout
    )
    schemas.check(found, "holders")
    return found


def group_of(found: dict[str, Any], type_name: str) -> dict[str, Any]:
    """The group of a type that retains most."""
    groups = [group for group in found["groups"] if group["type"] == type_name]
    assert groups, [(group["type"], group["held_by"]) for group in found["groups"]]
    first: dict[str, Any] = groups[0]
    return first


# --- holders are right ------------------------------------------------------------------------------------------------


@pytest.mark.grid
@pytest.mark.parametrize("name", HOLDERS)
def test_the_holder_of_a_leak_is_named(tmp_path: Path, name: str) -> None:
    source = f"""
        import sys
        sys.path.insert(0, {str(PROGRAMS)!r})
        import leaks_{name} as leaking
        for _ in range(100):
            leaking.call()
    """
    first = searched(tmp_path, source)["groups"][0]
    type_name, holder, line = HOLDERS[name]
    assert re.fullmatch(type_name, first["type"]) and re.fullmatch(holder, first["held_by"]), first
    at = first["allocated_at"][0]
    assert line in Path(at["file"]).read_text().splitlines()[at["line"] - 1]


@pytest.mark.once
def test_blocks_that_no_object_holds_are_named_by_line(tmp_path: Path) -> None:
    source = f"""
        import sys
        sys.path[:0] = [{str(PROGRAMS)!r}, {str(compiled.library("forgetful").parent)!r}]
        import leaks_c_extension as leaking
        for _ in range(300):
            leaking.call()
    """
    found = searched(tmp_path, source)
    first = found["unheld_allocated_at"][0]
    text = (PROGRAMS / "leaks_c_extension.py").read_text().splitlines()
    assert first["file"].endswith("leaks_c_extension.py") and text[first["line"] - 1].endswith("# leak")
    assert first["bytes"] <= found["unheld_bytes"]
    said = run_hiwater("holders", "run.hiw", folder=tmp_path, check=True).stdout
    assert "that no object was found to hold, allocated at" in said.splitlines()[0]
    assert "leaks_c_extension.py:" in said.splitlines()[0]


def test_counts_and_sizes_are_those_of_the_program(tmp_path: Path) -> None:
    source = """
        import json, sys
        class Row:
            __slots__ = ("text",)
            def __init__(self, number):
                self.text = "x" * 100 + str(number)
        ROWS = [Row(number) for number in range(5000)]
        SHARED = {number: ROWS[number] for number in range(0, 5000, 2)}
        header = 16  # of the collector, before each object
        json.dump({
            "rows": sum(map(sys.getsizeof, ROWS)), "texts": sum(sys.getsizeof(row.text) for row in ROWS),
        }, open("sizes.json", "w"))
    """
    found = searched(tmp_path, source, "--type", "Row")
    sizes = json.loads((tmp_path / "sizes.json").read_text())
    assert sum(group["count"] for group in found["groups"]) == 5000
    assert sum(group["bytes"] for group in found["groups"]) == sizes["rows"]
    assert sum(group["retained_bytes"] for group in found["groups"]) == sizes["rows"] + sizes["texts"]
    (group,) = found["groups"]
    assert group["held_by"] == "list `ROWS` of module `__main__`"
    assert any("`SHARED`" in other for other in group["also_held_by"])


def test_array_buffers_belong_to_their_owner_and_count_once(tmp_path: Path) -> None:
    skip_without("numpy")
    source = """
        import numpy as np
        class Table:
            def __init__(self):
                self.values = np.ones(1_000_000)
                self.views = [self.values[::2], self.values.reshape(1000, 1000), memoryview(self.values)]
        TABLES = [Table() for _ in range(3)]
    """
    found = searched(tmp_path, source, "--type", "numpy.ndarray")
    owners = [group for group in found["groups"] if "`.values`" in group["held_by"]]
    views = [group for group in found["groups"] if "`.views`" in group["held_by"]]
    assert 24_000_000 <= sum(group["bytes"] for group in owners) < 24_010_000
    assert views and sum(group["bytes"] for group in views) < 10_000
    whole = json.loads(run_hiwater("holders", "run.hiw", "--format", "json", folder=tmp_path, check=True).stdout)
    assert 24_000_000 <= whole["groups"][0]["retained_bytes"] < 24_100_000
    assert "`TABLES` of module `__main__`" in whole["groups"][0]["held_by"]


def test_a_frame_of_pandas_holds_its_columns(tmp_path: Path) -> None:
    skip_without("pandas")
    source = """
        import numpy as np, pandas as pd
        def main():
            global FRAME
            FRAME = pd.DataFrame({"a": np.zeros(500_000), "b": np.ones(500_000)})
        main()
    """
    first = searched(tmp_path, source)["groups"][0]
    assert (
        first["retained_bytes"] >= 8_000_000
        and "`FRAME` of module `__main__`" in " ".join(first["path"][:2])[:80] + first["held_by"]
    )


@pytest.mark.parametrize(
    ("source", "type_name", "holder"),
    [
        ("def f():\n    big = bytearray(3_000_000)\n    yield big\nG = f(); next(G)", "bytearray",
            "`big` of generator `G` of module `__main__`"),
        ("class A: big = bytearray(3_000_000)", "bytearray", "`.big` of type `A` of module `__main__`"),
        ("def f(x=bytearray(3_000_000)): pass", "bytearray",
            (r"tuple `\.?__defaults__` of function `f` of module `__main__`|tuple in function `f` of module "
            r"`__main__`")),
        (("import functools\n@functools.cache\ndef f(n): return bytes(3000)+bytes([n % 256, n // 256])\n"
            "for n in range(2000): f(n)"), "bytes", ".*functools._lru_cache_wrapper `f` of module `__main__`"),
        (("import functools\nclass Model:\n    def __init__(self): self.weights = bytearray(300_000)\n"
            "    @functools.lru_cache(maxsize=None)\n    def predict(self, x): return x\n"
            "for n in range(10): Model().predict(n)"), "bytearray",
            (r"`\.weights` of 10 × Model in 10 × tuple in dict in functools\._lru_cache_wrapper `\.predict` of "
                r"type `Model` of module `__main__`")),
        (("import collections\nclass Box: pass\nclass Inner: pass\n"
            "B = Box(); I = Inner(); B.first = {0: [(I,)]}; I.second = collections.deque([{0: "
            "bytearray(3_000_000)}])\ndel I"), "bytearray",
            (r"dict in collections\.deque `\.second` of Inner in … in list in dict `\.first` of Box `B` of "
                r"module `__main__`")),
        ("import contextvars\nV = contextvars.ContextVar('V'); V.set(bytearray(3_000_000))", "bytearray",
            ".*(a thread keeps|`V` of module).*"),
        ("import collections\nQ = collections.deque(bytes(3000) + bytes([n % 256]) for n in range(1000))", "bytes",
            "collections.deque `Q` of module `__main__`"),
    ],
)  # fmt: skip
def test_shapes_of_holders(tmp_path: Path, source: str, type_name: str, holder: str) -> None:
    group = group_of(searched(tmp_path, source), type_name)
    assert group["retained_bytes"] >= 2_900_000
    assert re.fullmatch(holder, group["held_by"]), group["held_by"]


# --- the program notices nothing -------------------------------------------------------------------------------------


def test_no_reference_count_no_finalizer_and_no_state_of_the_collector_changes(tmp_path: Path) -> None:
    source = """
        import gc, sys, weakref
        import hiwater
        class Cycle:
            def __init__(self): self.me = self
            def __del__(self): print("finalized")
        gc.disable()
        objects = [object() for _ in range(1000)]
        called = []
        kept = Cycle()
        watched = weakref.ref(kept, called.append)
        lost = Cycle(); del lost
        def state():
            counts = [sys.getrefcount(one) for one in objects]
            return counts, gc.get_count()[1:], gc.isenabled(), gc.get_stats(), len(called)
        hiwater.holders()  # imports what it needs
        before = state()
        found = hiwater.holders(Cycle)
        assert state() == before, (state()[1:], before[1:])
        assert sum(group.count for group in found.groups) == 2, found.groups
        assert any("objects that only each other hold" in group.held_by for group in found.groups), found.groups
        print("same", flush=True)
        import os; os._exit(0)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    done = run_hiwater("run", "program.py", folder=tmp_path, check=True)
    assert done.stdout == "same\n"


@pytest.mark.once
def test_who_waits_for_children_does_not_notice_the_copy(tmp_path: Path) -> None:
    source = """
        import os, signal, threading
        import hiwater
        noticed = []
        signal.signal(signal.SIGCHLD, lambda *_: noticed.append("SIGCHLD"))
        def wait():
            while not done:
                try:
                    noticed.append(os.wait())
                except ChildProcessError:
                    pass
        done = False
        waiter = threading.Thread(target=wait); waiter.start()
        for _ in range(5):
            assert hiwater.holders().groups
        done = True; waiter.join()
        assert not noticed, noticed
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitpid(child, 0)[1] == 7 << 8
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "--no-children", "program.py", folder=tmp_path, check=True)


@pytest.mark.once
def test_the_kernel_ends_the_copy_before_the_program_if_memory_runs_out(tmp_path: Path) -> None:
    source = """
        import os, threading
        import hiwater
        rows = [[number] for number in range(300_000)]
        scores, done = set(), False
        def watch():
            while not done:
                for child in open(f"/proc/self/task/{os.getpid()}/children").read().split():
                    try:
                        scores.add(int(open(f"/proc/{child}/oom_score_adj").read()))
                    except (OSError, ValueError):  # it is gone, or it was read while it changed ("0" and then "00")
                        pass
        watcher = threading.Thread(target=watch, daemon=True); watcher.start()
        while 1000 not in scores:
            hiwater.holders()
        done = True; watcher.join()
        assert int(open("/proc/self/oom_score_adj").read()) != 1000
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "program.py", folder=tmp_path, check=True)


def test_a_crash_of_the_search_ends_the_search_alone(tmp_path: Path) -> None:
    source = """
        import ctypes, gc
        import hiwater
        gc.disable()
        class Broken(list): pass
        broken = Broken([object()])
        place = ctypes.c_void_p.from_address(id(broken) + list.__basicsize__ - 16)
        good, place.value = place.value, 16
        try:
            hiwater.holders()
        except hiwater.HiwaterError as error:
            assert "crashed while it read an object of type Broken (signal 11)" in str(error), error
        else:
            raise AssertionError
        place.value = good
        assert hiwater.holders(Broken).groups[0].count == 1
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "program.py", folder=tmp_path, check=True)
    core = [name for name in os.listdir(tmp_path) if name.startswith("core")]
    assert not core


def test_a_search_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    source = """
        import hiwater
        from hiwater import _core
        rows = [[number] for number in range(200_000)]
        try:
            _core.search_holders("too long", None, 0.0)
        except _core.EngineFault as error:
            assert "it took longer than" in str(error), error
        else:
            raise AssertionError
        assert hiwater.holders(list).groups
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "program.py", folder=tmp_path, check=True)


@pytest.mark.parametrize("words", [(), ("--sample", "64KiB")])
def test_threads_that_allocate_go_on_and_searches_are_whole(tmp_path: Path, words: tuple[str, ...]) -> None:
    source = f"""
        import threading
        import hiwater
        class Row: pass
        ROWS = [Row() for _ in range(3000)]
        done = False
        def work():
            while not done:
                kept = [bytes(number % 700) for number in range(500)]
        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers: worker.start()
        for _ in range({rounds(4)}):
            found = hiwater.holders(Row)
            groups = [(one.count, one.held_by) for one in found.groups]
            assert groups == [(3000, "list `ROWS` of module `__main__`")], found
        done = True
        for worker in workers: worker.join()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", *words, "program.py", folder=tmp_path, check=True)


def test_a_forked_child_searches_its_own_objects(tmp_path: Path) -> None:
    source = """
        import os
        import hiwater
        class Row: pass
        ROWS = [Row() for _ in range(1000)]
        hiwater.holders(Row)
        child = os.fork()
        if child == 0:
            ROWS += [Row() for _ in range(500)]
            assert hiwater.holders(Row).groups[0].count == 1500
            os._exit(3)
        assert os.waitpid(child, 0)[1] == 3 << 8
        assert hiwater.holders(Row).groups[0].count == 1000
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "program.py", folder=tmp_path, check=True)


# --- from inside ------------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_a_type_a_line_and_an_object_choose(tmp_path: Path) -> None:
    source = """
        import hiwater
        class Row: pass
        def make():
            return [Row() for _ in range(2000)]  # here
        KEPT = {"rows": make()}
        with hiwater.record("own.hiw"):
            MORE = [Row() for _ in range(500)]  # more
            by_class = hiwater.holders(Row)
            by_name = hiwater.holders("Row")
            by_line = hiwater.holders("program.py:7")
            by_object = hiwater.holders(KEPT["rows"])
        without = hiwater.holders(Row)
        for found in (by_class, by_name, without):
            assert [(one.count, one.held_by) for one in found.groups] == [
                (2000, "list in dict `KEPT` of module `__main__`"), (500, "list `MORE` of module `__main__`")], found
        assert by_class.groups[0].allocated_at == "" and by_class.groups[1].allocated_at.endswith("program.py:7")
        assert without.groups[1].allocated_at == ""
        assert {one.type_name for one in by_line.groups} == {"Row", "list"}, by_line.groups
        (group,) = by_object.groups
        assert group.type_name == "list" and group.held_by == "dict `KEPT` of module `__main__`"
        assert group.path == ("module `__main__`", "dict `KEPT`", "list"), group.path
        assert "500 × Row" in repr(by_class.groups[1])
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source).lstrip())
    done = run_python("program.py", folder=tmp_path, env=child_environment())
    assert done.returncode == 0, done.stderr


# --- from outside -----------------------------------------------------------------------------------------------------

GROWING = """
    import os, sys, time
    class Row: pass
    ROWS = [Row() for _ in range(1000)]
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "sleep\\n":
            print("sleeping", flush=True)
            time.sleep(600)
        ROWS += [Row() for _ in range(1000)]
        print("grown", flush=True)
        while not os.path.exists(line.strip()):
            sum(range(1000))
        print("idle", flush=True)
"""


@pytest.fixture
def growing(tmp_path: Path) -> Any:
    (tmp_path / "growing.py").write_text(textwrap.dedent(GROWING))
    process = subprocess.Popen(
        hiwater_command("run", "-q", "-o", "run.hiw", "growing.py"), cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(),
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_a_running_process_is_searched_by_pid_and_by_capture(tmp_path: Path, growing: subprocess.Popen[str]) -> None:
    assert growing.stdin is not None and growing.stdout is not None
    counts = []
    for source in (growing.pid, "run.hiw"):
        growing.stdin.write(f"done{len(counts)}\n")
        growing.stdin.flush()
        assert growing.stdout.readline() == "grown\n"
        done = run_hiwater("holders", source, "--type", "Row", "--format", "json", folder=tmp_path, check=True)
        (group,) = json.loads(done.stdout)["groups"]
        assert group["held_by"] == "list `ROWS` of module `__main__`"
        counts.append(group["count"])
        (tmp_path / f"done{len(counts) - 1}").touch()
        assert growing.stdout.readline() == "idle\n"
    assert counts == [2000, 3000]
    found = json.loads(
        run_hiwater(
            "holders", "run.hiw", "--search", "2", "--since", "1", "--type", "Row", "--format", "json", folder=tmp_path,
            check=True
        ).stdout
    )  # fmt: skip
    (group,) = found["groups"]
    assert (group["earlier"]["count"], group["count"]) == (2000, 3000)
    said = run_hiwater("holders", "run.hiw", "--search", "2", "--since", "1", folder=tmp_path, check=True).stdout
    assert said.startswith("+") and "3,000 × Row, held by list `ROWS` of module `__main__`" in said.splitlines()[0]


def test_a_main_thread_in_c_code_is_a_refusal_with_its_reason(tmp_path: Path, growing: subprocess.Popen[str]) -> None:
    assert growing.stdin is not None and growing.stdout is not None
    growing.stdin.write("sleep\n")
    growing.stdin.flush()
    assert growing.stdout.readline() == "sleeping\n"
    wait_until(lambda: is_in_call(SLEEPING, growing.pid))
    done = run_hiwater("holders", growing.pid, folder=tmp_path)
    assert done.returncode == 126 and not done.stdout
    assert "its main thread has run no Python" in done.stderr and "sleep" in done.stderr


@pytest.mark.once
def test_the_process_with_the_largest_objects_is_shown_of_a_run(tmp_path: Path) -> None:
    source = """
        import multiprocessing, os
        import hiwater
        def keep(count):
            global KEPT
            KEPT = [bytearray(10_000) for _ in range(count)]
            hiwater.holders()
            print(os.getpid(), flush=True)
        if __name__ == "__main__":
            for count in (100, 300):
                process = multiprocessing.get_context("fork").Process(target=keep, args=(count,))
                process.start()
                process.join()
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    said = run_hiwater("run", "-q", "--holders", "-o", "run.hiw", "program.py", folder=tmp_path, check=True).stdout
    small, large = said.split()
    for words, pid, count in [
        (("run.hiw",), large, 300), (("run.hiw.d",), large, 300), (("run.hiw", "--pid", small), small, 100),
    ]:  # fmt: skip
        done = run_hiwater("holders", *words, "--type", "bytearray", folder=tmp_path, check=True)
        assert f"{count} × bytearray, held by list `KEPT` of module `__main__`" in done.stdout, (pid, done.stdout)
        assert (f"shows process {pid}" in done.stderr) is ("--pid" not in words)


@pytest.mark.once
def test_wrong_words_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("pass\n")
    run_hiwater("run", "-q", "-o", "none.hiw", "program.py", folder=tmp_path, check=True)
    run_hiwater("run", "-q", "--holders", "-o", "one.hiw", "program.py", folder=tmp_path, check=True)
    for words, code, part in [
        (("none.hiw",), 2, "has no search for holders"),
        (("one.hiw", "--search", "2"), 2, "there is no search 2; the capture has searches 1 to 1"),
        (("one.hiw", "--wait", "1"), 2, "--wait needs a running process"),
        (("one.hiw", "--line", "x.py"), 2, "write it as db.py:41"),
        (("one.hiw", "--line", "x.py:3", "--type", "Row"), 2, "cannot be used together"),
        (("one.hiw", "--limit", "0"), 2, "--limit must be 1 or more"),
        (("program.py",), 2, "not a capture"),
        (("missing.hiw",), 2, "there is no capture"),
        (("4194304",), 127, "there is no process"),
    ]:
        done = run_hiwater("holders", *words, folder=tmp_path)
        assert (done.returncode, part in done.stderr, len(done.stderr.splitlines())) == (code, True, 1), done.stderr
    nothing = run_hiwater("holders", "one.hiw", "--type", "NoSuchType", folder=tmp_path, check=True)
    assert nothing.stdout.startswith("nothing found")


# --- on the page and in a notebook ------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_page_has_the_groups_of_json(tmp_path: Path) -> None:
    source = """
        class Row:
            def __init__(self, number): self.text = "x" * 1000 + str(number)
        ROWS = [Row(number) for number in range(2000)]
    """
    found = searched(tmp_path, source)
    run_hiwater("report", "run.hiw", "--format", "html", "-o", "page.html", folder=tmp_path, check=True)
    data = Page((tmp_path / "page.html").read_text("utf-8")).capture["object_holders"]
    assert data["groups"] == [
        {name: value for name, value in group.items() if name != "earlier"} for group in found["groups"]
    ]
    assert data["groups"][0]["type"] == "Row" and data["groups"][0]["count"] == 2000
    run_hiwater("run", "-q", "-o", "without.hiw", "program.py", folder=tmp_path, check=True)
    run_hiwater("report", "without.hiw", "--format", "html", "-o", "page.html", folder=tmp_path, check=True)
    assert "object_holders" not in Page((tmp_path / "page.html").read_text("utf-8")).capture


@pytest.mark.once
def test_in_a_notebook(tmp_path: Path) -> None:
    skip_without("nbclient")
    cells = [
        "%load_ext hiwater\nclass Row: pass\nROWS = [Row() for _ in range(3000)]",
        "%hiwater holders Row",
        "%hiwater holders",
    ]
    shown = notebooks.run(tmp_path, cells)
    assert not any(cell.error for cell in shown)
    of_type, all_types = ("\n".join([*cell.lines, cell.printed]) for cell in shown[1:])
    assert "3,000 × Row, held by list `ROWS` of module `__main__`" in of_type
    assert "\nTypes\n" in all_types


@needs_engine
def test_what_the_search_itself_loads_is_no_memory_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text("KEPT = bytearray(1000)")
    run_hiwater("run", "-q", "--holders", "-o", "small.hiw", "small.py", folder=tmp_path, check=True)
    stacks = [stack for stack in hiwater.open(tmp_path / "small.hiw").end.stacks if stack.frames]
    # The modules of the search take 1.2 MiB.
    assert {stack.frames[0].file for stack in stacks} == {str(tmp_path / "small.py")}
