"""The line profiler of devices over a simulated allocator below torch's own Python code. No GPU has seen it yet."""

import asyncio
import gc
import io
import random
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

import hiwater
from hiwater.errors import BadRequest, UnknownStatistic
from hiwater.lines import core, without_engine
from hiwater.meters import devices
from hiwater.meters.devices import Backend, Device, Standing, Status
from recording import child_environment, needs_engine

torch = pytest.importorskip("torch")

import naive_lines  # noqa: E402 - it needs torch
from cuda_double import installed  # noqa: E402 - the same
from hiwater.contrib.torch import LineProfiler, line_decorators, profile, profile_every, set_target_gpu  # noqa: E402 - the same

KIB, MIB = 1 << 10, 1 << 20
DOORS = torch._C.__dict__.get("_cuda_memoryStats")


@pytest.fixture(params=[pytest.param("engine", marks=needs_engine), "python"])
def recorder(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(core, "_module", without_engine)
    return request.param


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(line_decorators, "_global", None)
    found = sys.gettrace(), threading.gettrace()
    with installed(2) as double:
        double.initialise(0, 1)
        yield double
        assert (sys.gettrace(), threading.gettrace()) == found


def of(profiler, function, column):
    """The values of a column by line, counted from the `def`."""
    shown = profiler.display(function, columns=[column]).to_dict()["functions"][0]
    first = min(shown["lines"])
    return {line - first: row[column] for line, row in shown["lines"].items()}


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_table_of_two_functions_one_inside_the_other(cuda, recorder):
    def inner():
        cuda[0].free(cuda[0].malloc(40 * KIB))

    def outer():
        one = cuda[0].malloc(40 * KIB)
        two = cuda[0].malloc(40 * KIB)
        inner()
        return one, two

    with LineProfiler(outer, inner) as profiler:
        outer()
    first = outer.__code__.co_firstlineno
    inside = inner.__code__.co_firstlineno
    here = "test_the_table_of_two_functions_one_inside_the_other.<locals>"
    assert repr(profiler.display()) == textwrap.dedent(f"""\
        ## {here}.outer

        active_bytes reserved_bytes line  code
                 all            all
                peak           peak
                 0 B            0 B {first:>4}      def outer():
            40.0 KiB       2.00 MiB {first + 1:>4}          one = cuda[0].malloc(40 * KIB)
            80.0 KiB       2.00 MiB {first + 2:>4}          two = cuda[0].malloc(40 * KIB)
             120 KiB       2.00 MiB {first + 3:>4}          inner()
            80.0 KiB       2.00 MiB {first + 4:>4}          return one, two


        ## {here}.inner

        active_bytes reserved_bytes line  code
                 all            all
                peak           peak
            80.0 KiB       2.00 MiB {inside:>4}      def inner():
             120 KiB       2.00 MiB {inside + 1:>4}          cuda[0].free(cuda[0].malloc(40 * KIB))
        """)


def test_which_line_grew_how_far_above_its_start_and_how_often(cuda, recorder):
    def work(rounds):
        held = []
        for size in range(1, rounds + 1):
            held.append(cuda[0].malloc(size * MIB))
            cuda[0].free(cuda[0].malloc(5 * MIB))
        cuda[0].free(held.pop())
        return held

    with LineProfiler(work) as profiler:
        work(4)
    assert of(profiler, work, "hits") == {0: 1, 1: 1, 2: 5, 3: 4, 4: 4, 5: 1, 6: 1}
    assert of(profiler, work, "increment") == {0: None, 1: 0, 2: 0, 3: 10 * MIB, 4: 0, 5: -4 * MIB, 6: 0}
    assert of(profiler, work, "peak_above_start") == {0: None, 1: 0, 2: 0, 3: 4 * MIB, 4: 5 * MIB, 5: 0, 6: 0}
    assert of(profiler, work, "reserved_bytes.all.increment")[4] == 20 * MIB  # one segment for large blocks
    assert of(profiler, work, "allocated_bytes.all.allocated")[4] == 20 * MIB
    assert of(profiler, work, "allocation.all.freed")[4] == 4
    assert of(profiler, work, "allocated_bytes.large_pool.current")[4] == 9 * MIB  # 1 MiB is a small block
    assert of(profiler, work, "device") == dict.fromkeys(range(7), "cuda:0")


def test_recursion_counts_each_byte_once_and_every_call(cuda, recorder):
    def work(depth):
        block = cuda[0].malloc(MIB)
        if depth:
            work(depth - 1)
        cuda[0].free(block)

    with LineProfiler(work) as profiler:
        work(3)
    assert of(profiler, work, "hits") == {0: 4, 1: 4, 2: 4, 3: 3, 4: 4}
    assert of(profiler, work, "active_bytes.all.peak") == {0: 3 * MIB, 1: 4 * MIB, 2: 4 * MIB, 3: 4 * MIB, 4: 4 * MIB}
    assert of(profiler, work, "peak_above_start") == {0: None, 1: MIB, 2: 0, 3: 3 * MIB, 4: 0}
    assert of(profiler, work, "increment") == {0: None, 1: 4 * MIB, 2: 0, 3: 0, 4: -4 * MIB}


def test_a_line_left_by_an_exception_or_suspended_has_its_own(cuda, recorder):
    def items():
        block = cuda[0].malloc(2 * MIB)
        yield 1
        cuda[0].free(block)
        raise LookupError

    def work():
        found = items()
        next(found)
        cuda[0].malloc(MIB)
        try:
            next(found)
        except LookupError:
            cuda[0].malloc(MIB)

    with LineProfiler(work, items) as profiler:
        work()
    assert of(profiler, items, "increment") == {0: None, 1: 2 * MIB, 2: 0, 3: -2 * MIB, 4: 0}
    assert of(profiler, work, "increment") == {0: None, 1: 0, 2: 2 * MIB, 3: MIB, 4: 0, 5: -2 * MIB, 6: 0, 7: MIB}
    assert of(profiler, items, "hits") == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}


def test_a_line_that_awaits_has_only_its_own_stretches(cuda, recorder):
    async def work(size):
        block = cuda[0].malloc(size)
        await asyncio.sleep(0)
        cuda[0].free(block)

    async def main():
        await asyncio.gather(work(MIB), work(2 * MIB))

    with LineProfiler(work) as profiler:
        asyncio.run(main())
    assert of(profiler, work, "increment") == {0: None, 1: 3 * MIB, 2: 0, 3: -3 * MIB}
    assert of(profiler, work, "active_bytes.all.peak") == {0: MIB, 1: 3 * MIB, 2: 3 * MIB, 3: 3 * MIB}


def test_what_other_threads_do_meanwhile_is_in_the_line(cuda, recorder):
    """As autograd's threads do, which run no Python lines, while `backward()` waits."""

    def backward():
        thread = threading.Thread(target=lambda: cuda[0].free(cuda[0].malloc(7 * MIB)))
        thread.start()
        thread.join()

    def step():
        cuda[0].malloc(MIB)
        backward()

    with LineProfiler(step) as profiler:
        step()
    assert of(profiler, step, "active_bytes.all.peak") == {0: 0, 1: MIB, 2: 8 * MIB}


def test_threads_have_lines_of_their_own(cuda, recorder):
    begun, go_on = threading.Event(), threading.Event()

    def waits():
        begun.set()
        go_on.wait(60)
        cuda[0].malloc(MIB)

    def works():
        cuda[0].free(cuda[0].malloc(3 * MIB))

    with LineProfiler(waits, works) as profiler:
        thread = threading.Thread(target=waits)
        thread.start()
        begun.wait(60)
        works()
        go_on.set()
        thread.join()
    assert of(profiler, waits, "active_bytes.all.peak")[2] == 3 * MIB  # it waited through it
    assert of(profiler, waits, "active_bytes.all.peak")[3] == MIB
    assert of(profiler, works, "hits") == {0: 1, 1: 1}


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(16))
def test_random_programs_have_the_figures_of_a_naive_model(cuda, recorder, seed):
    program = naive_lines.Program(random.Random(seed), cuda[0])
    expected = program.run_naively()
    program.reset()
    profiler = LineProfiler(*program.functions)
    with profiler:
        program.run()
    found = {}
    for shown in profiler.display(columns=["hits", "increment", "peak_above_start", "active_bytes.all.peak"]).to_dict()[
        "functions"
    ]:
        for line, row in sorted(shown["lines"].items())[1:]:  # the `def` has no figures in the model
            found[shown["name"], line] = tuple(row.values())
    assert found == expected


# --- others' state ----------------------------------------------------------------------------------------------------


def test_the_programs_own_peaks_stay_true_and_no_cache_is_emptied(cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("the cache was emptied"))
    doors = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats

    def work():
        cuda[0].free(cuda[0].malloc(5 * MIB))
        cuda[0].free(cuda[0].malloc(3 * MIB))
        seen.append(torch.cuda.max_memory_allocated(0))
        torch.cuda.reset_peak_memory_stats(0)
        cuda[0].free(cuda[0].malloc(2 * MIB))
        seen.append(torch.cuda.max_memory_allocated(0))

    seen = []
    with LineProfiler(work) as profiler:
        work()
    assert seen == [5 * MIB, 2 * MIB] and torch.cuda.max_memory_allocated(0) == 2 * MIB
    assert of(profiler, work, "active_bytes.all.peak") == {
        0: 0, 1: 5 * MIB, 2: 3 * MIB, 3: 0, 4: 0, 5: 2 * MIB, 6: 0,
    }  # fmt: skip
    torch.cuda.reset_peak_memory_stats(0)
    with hiwater.track(meters=("gpu",)):
        pass
    assert (torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats) == doors


def test_scopes_and_lines_have_the_same_peak_each_its_own(cuda):
    def work():
        cuda[0].free(cuda[0].malloc(5 * MIB))
        with hiwater.track(meters=("gpu",)) as inner:
            cuda[0].free(cuda[0].malloc(3 * MIB))
        return inner.usage.gpu[0].peak_bytes

    with hiwater.track(meters=("gpu",)) as outer, LineProfiler(work) as profiler:
        assert work() == 3 * MIB
    assert outer.usage.gpu[0].peak_bytes == 5 * MIB and outer.usage.gpu[0].exact
    assert of(profiler, work, "active_bytes.all.peak") == {0: 0, 1: 5 * MIB, 2: 0, 3: 3 * MIB, 4: 0}


def test_a_reset_behind_torchs_back_makes_a_line_a_lower_bound(cuda):
    def work():
        block = cuda[0].malloc(9 * MIB)
        cuda[0].free(block)
        block = cuda[0].malloc(2 * MIB)
        cuda[0].free(cuda[0].malloc(4 * MIB)), cuda[0].free(block), cuda[0].stats.reset_peak()
        cuda[0].malloc(MIB)

    with LineProfiler(work) as profiler:
        work()
    shown = repr(profiler.display(work))
    assert "lower bounds: the peaks of" in shown and f"work:{work.__code__.co_firstlineno + 4}:" in shown
    assert f"work:{work.__code__.co_firstlineno + 2}" not in shown


def test_another_tracer_goes_on(cuda):
    seen = []

    def work():
        cuda[0].malloc(MIB)

    def tracer(frame, event, _argument):
        if frame.f_code is work.__code__:
            seen.append(event)
        return tracer

    found = sys.gettrace()
    sys.settrace(tracer)
    try:
        with LineProfiler(work) as profiler:
            work()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(found)
    assert seen == ["call", "line", "return"] and of(profiler, work, "increment")[1] == MIB


def test_coverage_goes_on(tmp_path):
    pytest.importorskip("coverage")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom hiwater.contrib.torch import LineProfiler\n\ndef work(n):\n    if n > 100:\n"
        "        return 1\n    return 2\n\n"
        "with LineProfiler(work) as profiler:\n    work(1)\nwork(200)\nprint(profiler.display(columns=['hits']))\n"
    )
    command = [sys.executable, "-m", "coverage"]
    env = child_environment() | {"COVERAGE_FILE": str(tmp_path / "data")}
    ran = subprocess.run([*command, "run", script], capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "   1    7      return 2" in ran.stdout
    told = subprocess.run(
        [*command, "report", "-m", f"--include={script}"],
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        check=False,
    )
    assert "100%" in told.stdout, told.stdout


def test_a_profiler_that_goes_leaves_nothing_behind(cuda):
    def work():
        cuda[0].malloc(MIB)

    doors = torch._C._cuda_memoryStats
    profiler = LineProfiler(work)
    profiler.enable()
    work()
    assert torch._C._cuda_memoryStats is not doors
    del profiler
    gc.collect()
    torch.cuda.reset_peak_memory_stats(0)
    assert torch._C._cuda_memoryStats is doors


# --- asking -----------------------------------------------------------------------------------------------------------


def test_any_statistic_however_many_parts_its_name_has(cuda):
    def work():
        with cuda[0].private_pool((0, 1)):
            cuda[0].malloc(3 * MIB)

    with LineProfiler(work) as profiler:
        work()
    columns = (
        "num_alloc_retries",
        "reserved_bytes_by_private_pools.0_1.large_pool.peak",
        "max_split_size",
        "oversize_segments.peak",
    )
    shown = profiler.display(columns=columns)
    assert list(shown.to_dict()["functions"][0]["lines"].values())[2] == dict(
        zip(columns, (0, 20 * MIB, -1, 0), strict=True)
    )
    assert "large_pool" in repr(shown)


def test_an_unknown_statistic_or_function_is_told_with_what_is_near(cuda):
    def work():
        cuda[0].malloc(MIB)

    with LineProfiler(work) as profiler:
        work()
    with pytest.raises(UnknownStatistic, match=r"active_bytes\.all\.peak"):
        profiler.display(columns=("active_byte.all.peak",))
    with pytest.raises(ValueError, match=r"did you mean num_alloc_retries"):
        profiler.display(columns=("num_alloc_retry",))
    with pytest.raises(UnknownStatistic, match=r"did you mean .*\.work"):
        profiler.display("wrok")
    with pytest.raises(UnknownStatistic, match="not watched"):
        profiler.display(len)
    with pytest.raises(UnknownStatistic, match="ram=True"):
        profiler.display(columns=("ram.kept",))
    named = profiler.display(work.__qualname__)
    assert repr(named) == repr(profiler.display(work)) == repr(profiler.display([work]))


def test_the_page_has_bars_and_no_markup_of_the_source(cuda):
    def work():
        cuda[0].malloc(MIB), "<script>"
        cuda[0].malloc(MIB)

    with LineProfiler(work) as profiler:
        work()
    page = profiler.display()._repr_html_()
    assert page.count("linear-gradient") == 4 and " 50.0%" in page and " 100.0%" in page
    assert "&lt;script&gt;" in page and "<script>" not in page


@needs_engine
def test_figures_of_ram_stand_beside(cuda):
    def work():
        block = bytearray(3 * MIB)
        cuda[0].malloc(MIB)
        return block

    with LineProfiler(work, ram=True) as profiler:
        work()
    kept, grown = of(profiler, work, "ram.kept"), of(profiler, work, "increment")
    assert 3 * MIB <= kept[1] < 3 * MIB + 4096 and grown[1] == 0
    assert abs(kept[2]) < 64 * KIB and grown[2] == MIB  # the double counts in Python
    assert of(profiler, work, "ram.peak_above_start")[1] >= 3 * MIB
    assert of(profiler, work, "ram.resident")[1] > 0


def test_the_device_may_change_in_the_middle_of_a_function(cuda):
    def work():
        cuda[0].malloc(MIB)
        profiler.target_gpu = torch.device("cuda", 1)
        cuda[1].malloc(2 * MIB)
        profiler.target_gpu = "cuda:0"
        cuda[0].malloc(MIB)

    profiler = LineProfiler(work)
    with profiler:
        work()
    assert of(profiler, work, "active_bytes.all.peak") == {0: 0, 1: MIB, 2: MIB, 3: 2 * MIB, 4: 2 * MIB, 5: 2 * MIB}
    assert of(profiler, work, "device") == {
        0: "cuda:0",
        1: "cuda:0",
        2: "cuda:0",
        3: "cuda:1",
        4: "cuda:1",
        5: "cuda:0",
    }
    with pytest.raises(BadRequest, match="names no device"):
        profiler.target_gpu = -1


def test_clear_begins_again(cuda):
    def work():
        cuda[0].malloc(MIB)

    with LineProfiler(work) as profiler:
        work()
        profiler.clear()
        work()
    assert of(profiler, work, "active_bytes.all.peak") == {0: MIB, 1: 2 * MIB} and of(profiler, work, "hits") == {
        0: 1,
        1: 1,
    }


def test_what_has_no_python_code_is_warned_of_and_left_out(cuda):
    with pytest.warns(UserWarning, match="no Python code"):
        LineProfiler(len)


# --- no device --------------------------------------------------------------------------------------------------------


def test_without_a_device_the_program_runs_and_the_table_says_why(recorder):
    def work():
        return 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with LineProfiler(work) as profiler:
            assert work() == 1
        on_cpu = LineProfiler(work, target_gpu="cpu")
        with on_cpu:
            work()
    assert repr(profiler.display()).startswith("No data collected: torch")
    assert "GPU support" in repr(profiler.display()) or torch.version.cuda  # then: has not initialised a device
    assert "keeps no counters of CPU memory" in repr(on_cpu.display()) and "ram=True" in repr(on_cpu.display())
    assert of(profiler, work, "hits") == {0: 1, 1: 1}


def test_a_device_that_comes_into_use_meanwhile_began_at_nothing(recorder):
    with installed() as cuda:
        begins_at_nothing(cuda)


def begins_at_nothing(cuda):
    def work():
        cuda.initialise()
        cuda[0].free(cuda[0].malloc(3 * MIB))
        cuda[0].malloc(MIB)

    def begins():
        cuda.initialise(), cuda[0].malloc(2 * MIB)
        work()

    with LineProfiler(begins, work) as profiler:
        begins()
    assert of(profiler, begins, "increment") == {0: None, 1: 2 * MIB, 2: MIB}
    assert of(profiler, begins, "device") == {0: "cuda:0", 1: "cuda:0", 2: "cuda:0"}
    assert of(profiler, work, "active_bytes.all.peak") == {0: 2 * MIB, 1: 2 * MIB, 2: 5 * MIB, 3: 3 * MIB}


def test_a_device_that_is_not_there_is_named_with_those_that_are(cuda):
    def work():
        cuda[0].malloc(MIB)

    with LineProfiler(work, target_gpu=5) as profiler:
        work()
    assert "cuda:0, cuda:1" in repr(profiler.display())


# --- any backend ------------------------------------------------------------------------------------------------------


class Toy(Backend):
    """A library that shows what is allocated and its highest since the process began, which nobody can start anew."""

    name = library = "toy"
    quantities = ("allocated",)
    source = "a toy"

    def __init__(self):
        self.now = self.peak = 0

    def move(self, change):
        self.now += change
        self.peak = max(self.peak, self.now)

    def status(self):
        return Status(True, "toy 1.0")

    def devices(self):
        return [Device("toy", "npu:0", 0)]

    def statistics(self, device):
        return {"allocated.current": self.now, "allocated.peak": self.peak, "limit": 100}

    def standings(self, device):
        return {"allocated": Standing(self.now, self.peak)}

    def refusal(self, device):
        return "a toy's mark only rises"


def test_a_backend_without_a_mark_that_can_be_reset(monkeypatch, recorder):
    toy = Toy()
    monkeypatch.setitem(devices._made, "toy", toy)

    def work():
        toy.move(9)
        toy.move(-5)
        toy.move(4), toy.move(-4)

    with LineProfiler(work, target_gpu="toy:npu:0") as profiler:
        work()
    assert of(profiler, work, "increment") == {0: None, 1: 9, 2: -5, 3: 0}
    assert of(profiler, work, "allocated.peak") == {0: 0, 1: 9, 2: 9, 3: 4}
    assert of(profiler, work, "limit") == {0: 100, 1: 100, 2: 100, 3: 100}
    first = work.__code__.co_firstlineno
    assert f"work:{first + 3}: a toy's mark only rises" in repr(profiler.display(columns=["allocated.peak"]))


# --- decorators -------------------------------------------------------------------------------------------------------


def test_profile_every_prints_after_as_many_calls(cuda, capsys):
    @profile_every(2)
    def work():
        cuda[0].malloc(MIB)

    @profile_every(1, enable=False)
    def left_alone():
        cuda[0].malloc(MIB)

    work()
    left_alone()
    assert capsys.readouterr().out == ""
    work()
    assert capsys.readouterr().out.startswith(
        "## test_profile_every_prints_after_as_many_calls.<locals>.work\n\nactive_bytes"
    )
    line_decorators.global_line_profiler().close()


def test_a_decorated_method_is_measured_and_set_target_gpu_moves_it(cuda, monkeypatch):
    at_exit = []
    monkeypatch.setattr(line_decorators.atexit, "register", at_exit.append)

    class Net:
        @profile
        def forward(self):
            set_target_gpu(1)
            cuda[1].malloc(MIB)
            set_target_gpu(0)
            return 3

    assert Net().forward() == 3
    profiler = line_decorators.global_line_profiler()
    assert of(profiler, Net.forward, "device")[3] == "cuda:1" and of(profiler, Net.forward, "increment")[3] == MIB
    stream = io.StringIO()
    profiler.print_stats(Net.forward, ("hits",), stream)
    assert "cuda[1].malloc(MIB)" in stream.getvalue() and len(at_exit) == 1
    profiler.close()


def test_profile_prints_at_the_end_and_costs_no_exit_code(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from hiwater.contrib.torch import profile\n@profile\ndef work():\n    return 1\n"
        "def wrong(): pass\nprofile(wrong, columns=('a.b.c',))\nassert work() == 1\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, env=child_environment(), check=False)
    assert ran.returncode == 0 and ran.stderr == ""
    assert ran.stdout.count("No data collected: torch") == 2


# --- a real GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_real_gpu_has_the_documented_sizes():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")

    def work():
        one = torch.nn.Linear(100, 100).cuda()
        two = torch.nn.Linear(100, 100).cuda()
        (two(one(torch.ones(512, 100, device="cuda"))).sum()).backward()

    torch.ones(1, device="cuda")
    with LineProfiler(work) as profiler:
        work()
    assert of(profiler, work, "increment")[1] == of(profiler, work, "increment")[2] == 40 * KIB
    assert of(profiler, work, "peak_above_start")[3] > 512 * 100 * 4
    assert torch.cuda.max_memory_allocated() >= max(of(profiler, work, "allocated_bytes.all.peak").values())
