"""Jobs of real launchers, each rank under `hiwater run`. The rank with too much memory is named first, and each
figure is exact."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from itertools import takewhile
from pathlib import Path

import pytest

import hiwater
from children import run_hiwater, torchrun
from packages import skip_without
from recording import child_environment, needs_engine
from waiting import PATIENCE_SECONDS

pytestmark = needs_engine
RANKS, CULPRIT = 3, 1  # neither the first nor the last; each rank of torch takes seconds to start
HELD = 3_000_001
COST = sys.getsizeof(bytearray(HELD))  # with the object and the null byte

needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI is installed: there is no mpirun")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path


def launch(folder: Path, launcher: list[str], options: list[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program under a launcher, each of its ranks recorded."""
    (folder / "program.py").write_text(textwrap.dedent(program))
    recorded = [sys.executable, "-m", "hiwater", "run", "-o", "job/%r.%p.hiw", *options, "program.py"]
    threads = {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *recorded], cwd=folder, env=child_environment(threads), capture_output=True, text=True,
        timeout=5 * PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def mpirun() -> list[str]:
    return ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "-n", str(RANKS)]


def held_at(capture: hiwater.capture.Capture, function: str) -> int:
    """The bytes at the peak that `function` itself allocated, in stacks of at least one of its blocks: they come first,
    and torch's imports have a hundred thousand smaller ones."""
    large = takewhile(lambda stack: stack.bytes >= COST, capture.peak.stacks)
    return sum(stack.bytes for stack in large if stack.frames and stack.frames[-1].function == function)


def first_process(text: str) -> str:
    """The first row of the table of processes."""
    lines = text.splitlines()
    return lines[next(place for place, line in enumerate(lines) if line.startswith("Processes")) + 2]


def captures_by_rank(folder: Path) -> dict[str, hiwater.capture.Capture]:
    return {capture.facts["rank"]: capture for capture in hiwater.open_run(folder).captures}


LEAK = f"""
    import torch.distributed as dist

    def load(size):
        return bytearray(size)

    dist.init_process_group("gloo")
    kept = [load({HELD})]
    dist.barrier()
    while dist.get_rank() == {CULPRIT}:
        kept.append(load({HELD}))
    dist.barrier()
"""


def test_the_rank_of_a_torch_job_that_ran_out_of_memory_is_first(folder: Path) -> None:
    skip_without("torch")
    done = launch(folder, torchrun(RANKS), ["--limit", "3GiB"], LEAK)
    assert done.returncode == 1 and "MemoryError" in done.stderr, done.stderr
    captures = captures_by_rank(folder / "job")
    assert set(captures) == {str(rank) for rank in range(RANKS)}
    assert {one.facts["engine"] for one in captures.values()} == {"torch"}
    kept = held_at(captures[str(CULPRIT)], "load")
    assert kept > 100 * HELD and captures[str(CULPRIT)].refusals
    assert kept % COST < 1000  # the last one has an object, an exception and no buffer
    assert [held_at(one, "load") for rank, one in captures.items() if rank != str(CULPRIT)] == [COST] * (RANKS - 1)
    text = run_hiwater("report", "job", folder=folder, check=True).stdout
    assert f"highest: rank {CULPRIT} " in text
    assert f"rank {CULPRIT} " in first_process(text) and "memory was refused" in first_process(text)


RESTART = f"""
    import os, sys, threading, time
    from pathlib import Path

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        Path("began-" + os.environ["RANK"]).touch()
        # torchrun ends the others when one fails, also before they began
        while len(list(Path().glob("began-*"))) < {RANKS}:
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            sys.exit(3)
        threading.Event().wait()  # torchrun ends it
"""


def test_a_restarted_rank_of_a_torch_job_has_both_captures(folder: Path) -> None:
    skip_without("torch")
    done = launch(folder, torchrun(RANKS, "--max-restarts=1"), [], RESTART)
    assert done.returncode == 0, done.stderr
    captures = hiwater.open_run(folder / "job").captures
    found = sorted((one.facts["rank"], one.facts["restart"]) for one in captures)
    assert found == [(str(rank), restart) for rank in range(RANKS) for restart in "01"]
    (failed,) = [one for one in captures if one.process.exit_code == 3]
    assert (failed.facts["rank"], failed.facts["restart"]) == ("1", "0")
    assert "rank 1 (restart 1)" in run_hiwater("report", "job", folder=folder, check=True).stdout


UNEVEN = f"""
    import os

    def partition(size):
        return bytearray(size)

    kept = partition({HELD} * (10 if os.environ["OMPI_COMM_WORLD_RANK"] == "{CULPRIT}" else 1))
"""


@needs_mpi
def test_the_rank_of_an_mpi_job_with_most_memory_is_first(folder: Path) -> None:
    done = launch(folder, mpirun(), ["-q"], UNEVEN)
    assert done.returncode == 0, done.stderr
    captures = captures_by_rank(folder / "job")
    sizes = {rank: held_at(one, "partition") for rank, one in captures.items()}
    assert sizes == {str(rank): COST + 9 * HELD * (rank == CULPRIT) for rank in range(RANKS)}
    assert {(one.facts["engine"], one.process.ended) for one in captures.values()} == {("mpi", "exit")}
    merged = run_hiwater("merge", "-o", "job.hiw", "job", folder=folder, check=True)
    assert f"merged {RANKS} captures" in merged.stderr
    for given in ("job", "job.hiw"):
        text = run_hiwater("report", given, folder=folder, check=True).stdout
        assert f"highest: rank {CULPRIT} " in text and f"rank {CULPRIT} " in first_process(text)


CHILDREN = """
    import subprocess, sys

    subprocess.run([sys.executable, "-c", "kept = bytearray(2_000_000)"], check=True)
"""


@needs_mpi
def test_a_folder_of_a_job_has_the_children_of_each_rank(folder: Path) -> None:
    done = launch(folder, mpirun(), ["-q"], CHILDREN)
    assert done.returncode == 0, done.stderr
    (folder / "job" / "9.1.hiw").write_bytes(next((folder / "job").glob("0.*.hiw")).read_bytes()[:100])
    run = hiwater.open_run(folder / "job")
    assert sorted(one.facts["rank"] for one in run.captures) == sorted([str(rank) for rank in range(RANKS)] * 2)
    (truncated,) = run.unreadable
    assert "9.1.hiw" in truncated


@pytest.mark.parametrize(
    ("environment", "facts"),
    [
        ({"RANK": "3", "TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "2"}, ("torch", "3", "2")),
        ({"PMI_RANK": "1", "SLURM_PROCID": "7"}, ("mpi", "1", None)),
        ({"SLURM_PROCID": "7", "SLURM_RESTART_COUNT": "1"}, ("slurm", "7", "1")),
        ({}, (None, None, None)),
    ],
)
def test_the_place_in_a_job_is_in_the_capture(
    folder: Path, environment: dict[str, str], facts: tuple[str | None, ...]
) -> None:
    run_hiwater("run", "-q", "-o", "%r.hiw", "-c", "pass", folder=folder, environment=environment, check=True)
    capture = hiwater.open(folder / f"{facts[1] or 0}.hiw")
    assert tuple(capture.facts.get(name) for name in ("engine", "rank", "restart")) == facts
