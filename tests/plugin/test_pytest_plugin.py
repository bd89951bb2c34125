"""The pytest plugin, in pytest runs of their own: each is a process, which has imported pytest and no more."""

import json
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

import hiwater.capture.model  # here, because pytester forgets what a test imports, and numpy cannot be loaded twice
import warm_reader
from hiwater.contrib.pytest_plugin import measuring
from hiwater.contrib.pytest_plugin.limits import Wanted
from recording import needs_engine

pytest_plugins = ["pytester"]
pytestmark = needs_engine
MIB = 2**20


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest on `code` with the plugin, and returns the outcome of each test by name, and what was printed."""
    # Importing every plugin that is installed here takes a second of each run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(
        "[pytest]\nfilterwarnings = error\n ignore:Module already imported:pytest.PytestAssertRewriteWarning\n"
    )

    def run(code, *arguments, file="test_it.py"):
        Path(file).write_text("import pytest, threading, asyncio, unittest\nKEPT = []\n" + textwrap.dedent(code))
        words = ["-p", "hiwater", "-p", "no:monitor", "-p", "no:cacheprovider", "-rA", "-q", file, *arguments]
        done = warm_reader.run("pytest", words, pytester.path, os.environ, ("pytest",))
        text = f"{done.stdout}\n{done.stderr}"
        words = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
        lines = [line.split() for line in text.splitlines() if line.partition(" ")[0] in words and "::" in line]
        return {line[1].rpartition("::")[2]: line[0].lower() for line in lines}, text

    return run


def test_limits_of_each_figure(run):
    outcomes, text = run(
        """
        def use(size):
            bytearray(size)

        @pytest.mark.hiwater(peak="1 MiB")
        def test_peak_over(): use(2 << 20)
        @pytest.mark.hiwater(peak="3 MiB")
        def test_peak_within(): use(2 << 20); use(2 << 20)
        @pytest.mark.hiwater(allocated="3 MiB")
        def test_allocated_over(): use(2 << 20); use(2 << 20)
        @pytest.mark.hiwater(kept="100 KiB")
        def test_kept_over(): KEPT.append(bytearray(200_000))
        @pytest.mark.hiwater(kept="100 KiB")
        def test_kept_within():
            cycle = [bytearray(200_000)]
            cycle.append(cycle)
        @pytest.mark.hiwater(blocks=5_000)
        def test_blocks_over(): [bytearray(1) for _ in range(5_000)]
        @pytest.mark.hiwater(blocks=20_000)
        def test_blocks_within(): [bytearray(1) for _ in range(5_000)]
        @pytest.mark.hiwater(resident="20 MiB")
        def test_resident_over(): use(40 << 20); b"x" * (40 << 20)
        @pytest.mark.hiwater(device="1 MiB")
        def test_device_within(): use(4 << 20)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_fails_by_itself():
            use(2 << 20)
            assert 1 == 2
        @pytest.mark.xfail(strict=True)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_expected(): use(2 << 20)
        @pytest.mark.hiwater(peak=1000)
        def test_skipped(): pytest.skip("not here")
        def test_unmarked(): use(50 << 20)
        """
    )
    over = {name for name in outcomes if "over" in name}
    assert over == {name for name, outcome in outcomes.items() if outcome == "failed"} - {"test_fails_by_itself"}
    assert len(over) == 5
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} == {
        "test_peak_within", "test_kept_within", "test_blocks_within", "test_device_within", "test_unmarked",
    }  # fmt: skip
    assert outcomes["test_expected"] == "xfail"
    assert "the test has 2.00 MiB allocated at the peak, above the start; its limit is 1.00 MiB" in text
    for lines in (
        "allocated since the start, at the peak, by line of code:\n    2.00 MiB  test_it.py:5 in use\n",
        "allocated since the start, at the end, by line of code:\n     195 KiB  test_it.py:14 in test_kept_over\n",
        "allocated in all, by line of code:\n    4.00 MiB  test_it.py:5 in use\n",
    ):
        assert lines in text, text
    assert re.search(r"number of allocations, by line of code:\n +1\d,\d{3}  test_it.py:20 in test_blocks_over\n", text)
    assert "assert 1 == 2" in text


def test_threads_tasks_classes_and_parameters(run):
    outcomes, text = run(
        """
        def use(size): bytearray(size)

        def elsewhere(size):
            thread = threading.Thread(target=use, args=(size,))
            thread.start()
            thread.join()

        @pytest.mark.hiwater(peak="1 MiB", this_thread=True)
        def test_other_thread(): elsewhere(2 << 20)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_all_threads_over(): elsewhere(2 << 20)
        @pytest.mark.hiwater(peak="1 MiB", this_thread=True)
        def test_this_thread_over(): use(2 << 20)

        @pytest.mark.parametrize("n", [1, 4], ids=["small", "large"])
        @pytest.mark.hiwater(peak={"small": "1500 KiB", "large": "2 MiB"})
        def test_by_id(n): use(n << 20)
        @pytest.mark.parametrize("n", [1, 4])
        @pytest.mark.hiwater(peak=lambda given: (given["n"] << 20) + 100_000)
        def test_by_function(n): use(n << 20)

        @pytest.fixture
        def large(): return bytearray(8 << 20)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_fixture_is_apart(large): use(100_000)

        @pytest.mark.hiwater(peak="1 MiB")
        class TestClass(unittest.TestCase):
            def setUp(self): self.x = 1
            def test_case_over(self): use(2 << 20)
            def test_case(self): use(100_000)
            @pytest.mark.hiwater(peak="3 MiB")
            def test_case_own(self): use(2 << 20)
        class TestAsync(unittest.IsolatedAsyncioTestCase):
            @pytest.mark.hiwater(peak="1 MiB")
            async def test_async_over(self):
                use(2 << 20)
                await asyncio.sleep(0)

        def test_blocks(hiwater_memory):
            with hiwater_memory() as memory:
                use(2 << 20)
            assert 2_000_000 <= memory.peak_bytes < 3 << 20
            assert memory.peak_bytes <= memory.allocated_bytes and memory.kept_bytes < 10_000 and memory.allocations > 0
        def test_block_over(hiwater_memory):
            KEPT.append(bytearray(3 << 20))
            with hiwater_memory(peak="1 MiB"):
                use(2 << 20)
        """
    )
    assert "2.00 MiB  test_it.py:4 in use" in text and "3.00 MiB" not in text
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == {name for name in outcomes if "over" in name} | {"test_by_id[large]"}
    assert len(outcomes) == 14


AS_IN_PYTEST_MEMRAY = """
    import ctypes

    allocate = ctypes.pythonapi.PyMem_RawMalloc
    allocate.restype = ctypes.c_void_p
    allocate(1)
    def leak(size): allocate(size)
    def leak_elsewhere(size):
        thread = threading.Thread(target=leak, args=(size,))
        thread.start()
        thread.join()

    @pytest.mark.limit_memory("1 MB")
    def test_mb_are_mib(): bytearray(1_040_000)
    @pytest.mark.limit_memory("+0.5 mb")
    def test_memory_over(): bytearray(2_000_000)
    @pytest.mark.limit_memory("1 MB", current_thread_only=True)
    def test_memory_elsewhere():
        thread = threading.Thread(target=lambda: bytearray(2_000_000))
        thread.start()
        thread.join()
    @pytest.mark.limit_memory("0 B")
    def test_nothing_is_less_than_nothing_over(): bytearray(1_000)

    @pytest.mark.limit_leaks("100 KB")
    def test_leak_equals_the_limit_over(): leak(100 << 10)
    @pytest.mark.limit_leaks("100 KB")
    def test_leak_below(): leak((100 << 10) - 1)
    @pytest.mark.limit_leaks("8 KB")
    def test_what_pytest_itself_keeps_is_not_counted(): pass
    @pytest.mark.limit_leaks("100 KB")
    def test_leak_elsewhere_over(): leak_elsewhere(100 << 10)
    @pytest.mark.limit_leaks("100 KB", current_thread_only=True)
    def test_leak_elsewhere(): leak_elsewhere(100 << 10)
    @pytest.mark.limit_leaks("100 KB")
    def test_garbage_in_a_cycle_over():
        cycle = [bytearray(200_000)]
        cycle.append(cycle)
    @pytest.mark.limit_leaks("100 KB")
    def test_one_stack_of_a_loop_over():
        for _ in range(2):
            leak(60_000)
    @pytest.mark.limit_leaks("100 KB")
    def test_each_stack_is_below():
        leak(90_000)
        leak(90_000)
    @pytest.mark.limit_leaks("100 KB", filter_fn=lambda stack: all(one.function != "leak" for one in stack.frames))
    def test_filtered(): leak(200_000)
    @pytest.mark.limit_leaks("100 KB", filter_fn=lambda stack: any(one.function == "leak" and one.lineno == 9
        for one in stack.frames))
    def test_not_filtered_over(): leak(200_000)
    """


@pytest.mark.parametrize("throughout", [False, True])
def test_limits_of_pytest_memray_fail_in_the_same_cases(run, throughout):
    """The outcomes are those of pytest-memray 1.11 with these tests."""
    outcomes, text = run(AS_IN_PYTEST_MEMRAY, *(["--hiwater"] if throughout else []))
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == {name for name in outcomes if name.endswith("_over")}
    assert len(outcomes) == 14
    assert "1 stack of the test left 100 KiB or more allocated, the largest 195 KiB" in text
    assert "the test has 1.91 MiB allocated at the peak, above the start; it must stay below 512 KiB" in text
    assert "test_it.py:9 in leak" in text


def test_only_a_test_that_left_its_limit_in_all_has_its_stacks_read(run):
    """They are read by another process, which takes half a second."""
    outcomes, _ = run(
        """
        import resource
        def had_children():
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0
        @pytest.mark.limit_leaks("100 KB")
        def test_within(): KEPT.append(bytearray(1_000))
        def test_nothing_was_read(): assert not had_children()
        @pytest.mark.limit_leaks("100 KB")
        def test_each_stack_is_below():
            KEPT.append(bytearray(60_000))
            KEPT.append(bytearray(60_000))
        def test_stacks_were_read(): assert had_children()
        """
    )
    assert set(outcomes.values()) == {"passed"} and len(outcomes) == 4


def test_limit_memory_is_exceeded_at_its_limit_and_others_above_it():
    figures = {"peak": 100, "kept": 100}
    assert not measuring.excesses(figures, Wanted({"peak": 100, "kept": 100}))
    assert len(measuring.excesses(figures, Wanted({"peak": 100, "kept": 100}, peak_is_below=True))) == 1
    assert not measuring.excesses(figures, Wanted({"peak": 101}, peak_is_below=True))


def test_warmups_of_limit_leaks(run):
    outcomes, _ = run(
        """
        @pytest.mark.limit_leaks("100 KB", warmups=1)
        def test_cached_by_the_warmup():
            if len(KEPT) < 100:
                KEPT.extend(bytearray(3_000) for _ in range(100))
        """
    )
    assert outcomes == {"test_cached_by_the_warmup": "passed"}


KEEPS_AND_DROPS = """
    def test_keep(): KEPT.append([[i] for i in range(5_000)])
    def test_drop(): [[i] for i in range(5_000)]
    """


@pytest.mark.parametrize("options", [[], ["--hiwater"]], ids=["baseline", "throughout"])
def test_figures_are_of_every_block_and_the_same_when_run_again(run, pytester, options):
    """Each of 5,000 lists is a block of 72 bytes and one of 8 for its item, and each number above 256 one of 28 to
    32. Up to 80 list headers come from the interpreter's list of freed ones instead."""
    again = [*options, "--hiwater-baseline", "memory.json"]
    run(KEEPS_AND_DROPS, *again, "--hiwater-update")
    entries = json.loads((pytester.path / "memory.json").read_text())["entries"]
    for one in entries.values():
        assert 14_700 <= one["allocations"] <= 14_900
    outcomes, text = run(KEEPS_AND_DROPS, *again, "--hiwater-tolerance", "1.5%,1KiB")
    assert outcomes == {"test_keep": "passed", "test_drop": "passed"}, text
    assert "allocated bytes, exact" in text


def test_nothing_is_judged_by_a_sample_of_the_blocks(run, pytester):
    """Of a recording around pytest."""
    Path("test_it.py").write_text(
        "import pytest\n@pytest.mark.hiwater(peak='1 MiB')\ndef test_a(): pass\ndef test_b(): pass\n"
    )
    recorded = [sys.executable, "-m", "hiwater", "run", "-q", "-o", "outer.hiw"]
    words = ["-m", "pytest", "-p", "hiwater", "-p", "no:monitor", "-p", "no:cacheprovider", "-q", "test_it.py"]
    sampled = pytester.run(*recorded, "--sample", "64KiB", *words)
    assert "is recorded with a sample of its blocks" in sampled.stdout.str()
    sampled.assert_outcomes(passed=1, errors=1)
    pytester.run(*recorded, *words).assert_outcomes(passed=2)
    sampled = pytester.run(*recorded, "--sample", "64KiB", *words, "--hiwater")
    assert "ERROR: --hiwater cannot record: this process is recorded with a sample" in sampled.stderr.str()


@pytest.mark.parametrize("throughout", [False, True])
def test_a_failing_limit_shows_its_lines_and_keeps_the_capture(run, throughout, pytester):
    outcomes, text = run(
        """
        def load(size): return bytearray(size)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_over(): load(2 << 20)
        @pytest.mark.hiwater(kept="1 MiB")
        def test_kept(): KEPT.append(load(3 << 20))
        def test_within(): load(2 << 20)
        """,
        *(["--hiwater"] if throughout else []),
    )
    assert outcomes == {"test_over": "failed", "test_kept": "failed", "test_within": "passed"}
    lines = text.splitlines()
    for when, size in (("at the peak", "2.00 MiB"), ("at the end", "3.00 MiB")):
        at = lines.index(f"allocated since the start, {when}, by line of code:")
        assert f"{size}  test_it.py:4 in load" in lines[at + 1]
    captures = sorted(path.name for path in (pytester.path / "hiwater-captures").iterdir())
    expected = ["session.hiw"] if throughout else []
    assert captures == sorted([*expected, "test_it.py-test_kept.hiw", "test_it.py-test_over.hiw"])
    assert hiwater.open(pytester.path / "hiwater-captures" / "test_it.py-test_over.hiw").peak.allocated_bytes > 2 * MIB
    if throughout:
        run_as_whole = hiwater.open(pytester.path / "hiwater-captures" / "session.hiw")
        assert [scope.name for scope in run_as_whole.scopes] == [f"test_it.py::{name}" for name in ("test_over",
            "test_kept", "test_within")]  # fmt: skip


@pytest.mark.parametrize("throughout", [False, True])
def test_lines_are_those_of_the_test_alone(run, throughout):
    """With its setUp and its threads, and without what an earlier test, or the same one with other parameters, keeps
    from the same line."""
    outcomes, text = run(
        """
        def keep(size): KEPT.append(bytearray(size))
        @pytest.mark.parametrize("size", [900_000, 3_000_000])
        @pytest.mark.hiwater(peak="1 MiB")
        def test_keeps(size): keep(size)
        class TestClass(unittest.TestCase):
            def setUp(self): self.kept = bytearray(5_000_000)
            @pytest.mark.hiwater(peak="1 MiB")
            def test_case(self): pass
        @pytest.mark.hiwater(peak="1 MiB")
        def test_thread():
            thread = threading.Thread(target=keep, args=(7_000_000,))
            thread.start()
            thread.join()
        """,
        *(["--hiwater"] if throughout else []),
    )
    assert outcomes == {
        "test_keeps[900000]": "passed",
        "test_keeps[3000000]": "failed",
        "test_case": "failed",
        "test_thread": "failed",
    }
    lines = text.partition("short test summary info")[0].splitlines()  # which has all again where CI is set
    rows = [lines[at + 1].split() for at, line in enumerate(lines) if line.endswith("by line of code:")]
    assert rows == [
        ["2.86", "MiB", "test_it.py:4", "in", "keep"], ["4.77", "MiB", "test_it.py:9", "in", "TestClass.setUp"],
        ["6.68", "MiB", "test_it.py:4", "in", "keep"],
    ]  # fmt: skip


def test_only_marked_tests_are_recorded_and_nothing_stays_of_those_within_their_limits(run, pytester):
    outcomes, _ = run(
        """
        import os, tempfile, time
        from hiwater import _core as engine
        def captures(): return [name for name in os.listdir(tempfile.gettempdir())
            if name.startswith(f"hiwater-pytest-{os.getpid()}-")]
        @pytest.mark.hiwater(peak="1 MiB")
        def test_marked(): assert engine.is_recording() and captures()
        @pytest.mark.limit_leaks("1 MB")
        def test_marked_too(): assert engine.is_recording() and captures()
        def test_other(): assert not engine.is_recording() and not captures()
        def test_block(hiwater_memory): assert engine.is_recording()
        def test_after_block(): assert not engine.is_recording()
        @pytest.mark.hiwater(peak="1 MiB")
        def test_forks():
            child = os.fork()
            if child == 0:
                os._exit(engine.is_recording())
            assert os.waitpid(child, 0)[1] == 0
        @pytest.fixture
        def fails(): raise ValueError("no")
        @pytest.mark.hiwater(peak="1 MiB")
        def test_error(fails): pass
        def test_after_error(): assert not engine.is_recording() and not captures()
        """
    )
    assert outcomes.pop("test_error") == "error"
    assert set(outcomes.values()) == {"passed"} and len(outcomes) == 7
    assert not (pytester.path / "hiwater-captures").exists()


def test_a_limit_is_not_passed_because_its_recording_ended(run, pytester):
    """A capture that another program cuts ends the recording, and with it the figures."""
    outcomes, text = run(
        """
        import glob, os, tempfile
        @pytest.mark.hiwater(peak="1 MiB")
        def test_cut():
            (capture,) = glob.glob(f"{tempfile.gettempdir()}/hiwater-pytest-{os.getpid()}-*.hiw")
            os.truncate(capture, 0)
            for _ in range(100): bytearray(100_000)
            bytearray(5 << 20)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_next_over(): bytearray(2 << 20)
        """
    )
    assert outcomes == {"test_cut": "failed", "test_next_over": "failed"}
    assert "the memory of this test could not be measured to its end: another program truncated its capture" in text
    assert "2.00 MiB allocated at the peak" in text


def test_a_limit_holds_where_no_stacks_can_be_recorded(run, pytester):
    pytester._monkeypatch.setenv("TMPDIR", "/nowhere")
    outcomes, text = run(
        """
        import tempfile
        tempfile.tempdir = "/nowhere"
        @pytest.mark.hiwater(peak="1 MiB")
        def test_over(): bytearray(2 << 20)
        @pytest.mark.hiwater(peak="1 MiB")
        def test_within(): bytearray(2 << 10)
        """
    )
    assert outcomes == {"test_over": "failed", "test_within": "passed"}
    assert "its stacks cannot be shown: '/nowhere/hiwater-pytest-" in text


@pytest.mark.parametrize("workers", [0, 2])
def test_a_baseline_is_made_compared_and_updated(run, workers, pytester):
    code = """
        import os
        def test_a(): bytearray(int(os.environ.get("SIZE", 1 << 20)))
        def test_b(): bytearray(2 << 20)
        """
    spread = ["-n", str(workers), "-p", "xdist"] if workers else []
    options = ["--hiwater-baseline", "memory.json", *spread]
    outcomes, text = run(code, *options)
    assert outcomes == {}
    assert "the baseline" in text and "--hiwater-update" in text
    outcomes, text = run(code, *options, "--hiwater-update")
    assert outcomes == {"test_a": "passed", "test_b": "passed"}
    assert "the figures of 2 tests were written into the baseline" in text
    written = json.loads((pytester.path / "memory.json").read_text())
    assert written["schema"] == "hiwater-baseline"
    assert abs(written["entries"]["test_it.py::test_b"]["peak_bytes"] - 2 * MIB) < 64 << 10
    pytester._monkeypatch.setenv("SIZE", str(3 << 20))
    outcomes, text = run(code, *options)
    assert outcomes == {"test_a": "failed", "test_b": "passed"}
    assert "the baseline has 1.00 MiB and allows" in text
    outcomes, text = run(code, *options, "--hiwater-tolerance", "300%,4KiB")  # threads of xdist hold some bytes
    assert outcomes == {"test_a": "passed", "test_b": "passed"}, text


def test_limits_for_all_tests_and_the_summary(run, pytester):
    (pytester.path / "tox.ini").write_text("[pytest]\nhiwater_limits =\n    peak = 1 MiB\n    kept = 5 MiB\n")
    outcomes, text = run(
        """
        def test_over(): bytearray(2 << 20)
        def test_within(): bytearray(100_000)
        @pytest.mark.hiwater(peak="3 MiB")
        def test_own(): bytearray(2_000_000)
        @pytest.mark.hiwater(peak=None)
        def test_none(): bytearray(3_000_000)
        """
    )
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "passed"} == {"test_over": "failed"}
    table = text[text.index("memory of the heaviest tests") :].splitlines()[2:6]
    assert [line.rpartition("::")[2] for line in table] == ["test_none", "test_over", "test_own", "test_within"]
    assert table[0].startswith("2.86 MiB")


@pytest.mark.parametrize(
    ("marker", "arguments", "message"),
    [
        ('hiwater(peek="1 MiB")', [], "has no 'peek'; it has peak, allocated"),
        ('hiwater("1 MiB")', [], "takes no positional arguments"),
        ('hiwater(peak="1 parsec")', [], "'parsec' is not a unit"),
        ("limit_memory()", [], "needs one size"),
        ('limit_leaks("1 MB", warmups=-1)', [], "give a whole number of 0 or more"),
        ("skip", ["--hiwater-limit", "peak"], "is not a limit of hiwater"),
        ("hiwater(rerun=True)", [], "has no 'rerun'"),
        ("skip", ["--hiwater-update"], "add --hiwater-baseline FILE"),
        ("skip", ["--hiwater-baseline", "test_it.py"], "is not JSON"),
    ],
)
@pytest.mark.grid
def test_mistakes_are_told_in_one_line_before_the_first_test(run, marker, arguments, message):
    outcomes, text = run(f"@pytest.mark.{marker}\ndef test_a(): pass\n", *arguments)
    assert outcomes == {}
    assert any(line.startswith("ERROR: ") and message in line for line in text.splitlines()), text


def test_without_markers_no_engine_and_no_scopes_are_loaded(run, monkeypatch):
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")  # pytest finds the plugin, as users have it
    outcomes, _ = run(
        """
        def test_a():
            import sys
            heavy = {"numpy", "rich", "hiwater._core", "hiwater.scopes.manager", "hiwater.recording.recorder",
                "hiwater.analysis"}
            assert not heavy & set(sys.modules)
        """
    )
    assert outcomes == {"test_a": "passed"}
