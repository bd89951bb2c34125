"""A process group of real ranks that record themselves: rank 0 merges the captures, whatever it sees of the
other ranks' folders."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

import hiwater
from children import run_command, run_hiwater, run_python, torchrun
from hiwater.capture import Capture
from packages import skip_without
from recording import child_environment, needs_engine

skip_without("torch")
pytestmark = needs_engine
PATIENCE_SECONDS = 600
RANKS, CULPRIT = 3, 1  # neither the first nor the last; each rank takes seconds to start
HELD = 3_000_001

PROGRAM = f"""
    import warnings
    from datetime import timedelta

    import hiwater
    import torch.distributed as dist
    from hiwater.contrib.cluster import torch_distributed

    def load(size):
        return b"x" * size  # one block, and none beside it at the peak

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    size = {HELD} * (10 if rank == {CULPRIT} else 1)

    with hiwater.cluster("shared.hiw", sample=0):
        pass  # its captures are not those of the next job of this name
    with hiwater.cluster("shared.hiw", sample=0):
        kept = load(size)
        dist.barrier()
    del kept

    has = torch_distributed._has
    torch_distributed._has = lambda capture: capture.rank == 0 and has(capture)  # as if each rank had a disk of its own
    with torch_distributed.profile(f"disk{{rank}}.hiw", sample=0):
        kept = load(size)
    del kept
    torch_distributed._has = has

    torch_distributed._PATIENCE = timedelta(seconds=20)
    try:
        with warnings.catch_warnings(record=True) as caught, torch_distributed.profile("failed.hiw", sample=0):
            kept = load(size)
            dist.barrier()
            if rank == {CULPRIT}:
                raise MemoryError
    except MemoryError:
        pass
    print(f"rank {{rank}}: {{len(caught)}} warnings", flush=True)
    dist.destroy_process_group()  # torch's threads may otherwise end a rank by an abort as it exits
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    done = run_command(
        [*torchrun(RANKS), sys.executable, "program.py"],
        folder=folder,
        env=child_environment({"OMP_NUM_THREADS": "1"}),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("warnings") == RANKS
    return folder


def loaded(capture: Capture) -> int:
    return sum(stack.bytes for stack in capture.peak.stacks if stack.frames and stack.frames[-1].function == "load")


def check(folder: Path, name: str) -> None:
    """All ranks are in the file, with exact figures, and the one with most is named first."""
    captures = {capture.facts["rank"]: capture for capture in hiwater.open_run(folder / name).captures}
    assert {capture.facts["engine"] for capture in captures.values()} == {"torch"}
    assert {rank: loaded(capture) for rank, capture in captures.items()} == {
        str(rank): sys.getsizeof(b"x" * (HELD * (10 if rank == CULPRIT else 1))) for rank in range(RANKS)
    }
    assert all(capture.process.ended == "exit" for capture in captures.values())
    text = run_hiwater("report", name, folder=folder, check=True).stdout
    assert f"highest: rank {CULPRIT} " in text


def test_rank_0_merges_the_captures_of_a_shared_folder(folder: Path) -> None:
    check(folder, "shared.hiw")
    assert len(list((folder / "shared.hiw.ranks").glob("*.hiw"))) == RANKS


def test_ranks_send_captures_that_rank_0_does_not_see(folder: Path) -> None:
    check(folder, "disk0.hiw")
    assert all(len(list((folder / f"disk{rank}.hiw.ranks").glob("*.hiw"))) == 1 for rank in range(RANKS))
    assert not (folder / "disk1.hiw").exists()


def test_a_rank_that_failed_keeps_nobody_from_writing_the_file(folder: Path) -> None:
    check(folder, "failed.hiw")
    (missing,) = hiwater.open_run(folder / "failed.hiw").unrecorded
    assert "not every rank came to the end" in missing.why


def test_a_process_group_is_needed(tmp_path: Path) -> None:
    program = "from hiwater.contrib.cluster import torch_distributed; torch_distributed.profile('job.hiw')"
    done = run_python("-c", program, folder=tmp_path, env=child_environment())
    assert "BadRequest" in done.stderr and "init_process_group" in done.stderr
