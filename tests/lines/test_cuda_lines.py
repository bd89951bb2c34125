"""Line by line, where the program starts the allocator's own totals anew in between."""

import contextlib
import random

import pytest

torch = pytest.importorskip("torch")

import hiwater.contrib.torch  # noqa: E402 - after torch is known to be there
from cuda_double import Card, installed  # noqa: E402 - the same
from cuda_double.versions import VERSIONS  # noqa: E402 - the same
from hiwater.contrib.torch.trainers.phases import Phases  # noqa: E402 - the same
from hiwater.meters.devices.statistics import RunningTotals  # noqa: E402 - the same

MIB = 1 << 20
TOTALS = ("allocated_bytes.all.allocated", "allocated_bytes.all.freed", "allocation.all.allocated", "num_device_alloc")


def of(profiler, function, column):
    shown = profiler.display(function, columns=[column]).to_dict()["functions"][0]
    first = min(shown["lines"])
    return {line - first: row[column] for line, row in shown["lines"].items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_totals_of_lines_do_not_fall_when_the_program_starts_torchs_anew(version):
    with installed(version=version) as cuda:
        cuda.initialise()
        cuda[0].free(cuda[0].malloc(64 * MIB))

        def work():
            kept = cuda[0].malloc(3 * MIB)
            torch.cuda.reset_accumulated_memory_stats()
            cuda[0].free(kept)

        functions = torch._C._cuda_resetAccumulatedMemoryStats
        with hiwater.contrib.torch.LineProfiler(work) as profiler:
            work()
        assert [of(profiler, work, name)[1] for name in TOTALS] == [3 * MIB, 0, 1, 0]
        assert [of(profiler, work, name)[2] for name in TOTALS] == [0, 0, 0, 0]
        assert [of(profiler, work, name)[3] for name in TOTALS] == [0, 3 * MIB, 0, 0]
        assert torch.cuda.memory_stats()["allocated_bytes.all.allocated"] == 0  # the program sees its own
        torch.cuda.reset_peak_memory_stats()
        assert torch._C._cuda_resetAccumulatedMemoryStats == functions


def test_a_line_that_does_more_than_all_before_it_loses_nothing_by_a_reset_inside():
    with installed() as cuda:
        cuda.initialise()
        cuda[0].free(cuda[0].malloc(5 * MIB))

        def inside():
            cuda[0].free(cuda[0].malloc(7 * MIB))
            torch.cuda.reset_accumulated_memory_stats()
            for _ in range(9):
                cuda[0].free(cuda[0].malloc(7 * MIB))

        def work():
            inside()

        with hiwater.contrib.torch.LineProfiler(work) as profiler:
            work()
        assert of(profiler, work, "allocated_bytes.all.allocated")[1] == 70 * MIB
        assert of(profiler, work, "allocation.all.freed")[1] == 10


def test_a_reset_by_cpp_code_makes_no_total_negative():
    with installed() as cuda:
        cuda.initialise()
        cuda[0].malloc(20 * MIB)

        def work():
            cuda[0].stats.reset_accumulated()
            cuda[0].malloc(MIB)

        with hiwater.contrib.torch.LineProfiler(work) as profiler:
            work()
        assert of(profiler, work, "allocated_bytes.all.allocated") == {0: None, 1: 0, 2: MIB}


def test_a_phase_of_training_counts_the_retries_since_a_reset_inside(monkeypatch):
    with installed([Card(0, 30 * MIB)]) as cuda:
        cuda.initialise()

        def retry():
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                cuda[0].malloc(40 * MIB)

        for _ in range(3):
            retry()
        phases = Phases()
        phases.begin("train")
        torch.cuda.reset_accumulated_memory_stats()
        retry()
        assert phases.end("train")["cuda_0_alloc_retries"] == 1


def test_totals_of_random_programs_are_those_of_one_that_never_resets():
    chosen = random.Random(7)
    totals, counter, since = RunningTotals(), 0, 0
    for _ in range(3000):
        if chosen.random() < 0.3:
            totals.program_reset({"num_ooms": since, "active.all.current": 5}, {"num_ooms": 0, "active.all.current": 5})
            since = 0
        added = chosen.randrange(50)
        counter, since = counter + added, since + added
        assert totals.lift({"num_ooms": since, "active.all.current": 3}) == {
            "num_ooms": counter,
            "active.all.current": 3,
        }
