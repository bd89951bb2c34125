"""Estimates of one of several processes that train together: DistributedDataParallel, FSDP, tensor parallelism."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import hiwater.contrib.torch  # noqa: E402
import hiwater.errors  # noqa: E402

SCORE = Path(__file__).parents[2] / "benchmarks" / "estimate_score"
ON_H100 = next(
    each["rows"]
    for each in json.loads((SCORE / "measured.json").read_text("utf-8"))
    if each["about"]["card"] == "NVIDIA H100 80GB HBM3"
)
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(torch.__version__ < "2.9", reason="the rows were measured with torch 2.11"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]
WIDTH = 1024


def built(build, **options):
    """The estimate of what a function builds: a fork, so that no interpreter has to load torch."""
    found = hiwater.contrib.torch.estimate.largest_batch(
        lambda batch_size: build(), largest=1, device="H100", **options
    )
    return found.estimate


def programs():
    specification = importlib.util.spec_from_file_location("parallel_programs", SCORE / "parallel_programs.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def two_layers():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()


def step_of(net):
    return net, torch.randn(32, WIDTH, device="cuda"), torch.optim.AdamW(net.parameters()), lambda out: out.sum()


@pytest.mark.parametrize("name", ["ddp", "ddp_view", "ddp_kept", "fsdp", "fsdp_kept", "fsdp_mixed"])
def test_one_process_needs_what_a_real_card_gave_to_the_byte(name, monkeypatch):
    # As torch 2.11, which had measured them, does by itself.
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
    found, real = built(getattr(programs(), name)), ON_H100[name]
    assert found.peak_allocated_bytes == real["allocated"]
    assert found.peak_reserved_bytes == real["reserved"]
    assert found.steps[0]["peak_allocated_bytes"] == real["built_allocated"]
    assert found.steps[0]["peak_reserved_bytes"] == real["built_reserved"]


def test_a_first_bucket_that_is_held_for_longer_is_within_the_bound(monkeypatch):
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
    found, real = built(programs().ddp_static), ON_H100["ddp_static"]
    assert found.peak_allocated_bytes < real["allocated"] <= found.most_allocated_bytes
    assert found.most_allocated_bytes == found.peak_allocated_bytes + 4 * 6 * (2048 * 2048 + 2048)


def sharded():
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    net = two_layers()
    fully_shard(net)
    return step_of(net)


def test_each_of_eight_has_an_eighth_of_the_parameters():
    one, eight = built(sharded), built(sharded, ranks=8)
    for kind in ("parameters", "optimizer state"):
        assert eight.category(kind) == one.category(kind) // 8
    assert one.parameters == eight.parameters  # of the whole model
    assert "process 0 of 8" in " ".join(eight.notes)


def test_tensor_parallelism_splits_weights_and_what_lies_between():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def build():
        mesh = dist.init_device_mesh("cuda", (4,))
        net = parallelize_module(two_layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return step_of(net)

    found = built(build, ranks=4)
    weights, biases = 2 * WIDTH * 4 * WIDTH, 4 * WIDTH
    assert found.category("parameters") == 4 * (weights + biases) // 4 + 4 * WIDTH  # the second bias is whole


def test_two_kinds_of_parallelism_share_a_mesh():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def build():
        mesh = dist.init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "tensor"))
        net = parallelize_module(two_layers(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(net, mesh=mesh["data"])
        return step_of(net)

    weights, biases = 2 * WIDTH * 4 * WIDTH, 4 * WIDTH
    assert built(build, ranks=4).category("parameters") == 4 * (weights + biases) // 4 + 4 * WIDTH // 2


def test_a_program_finds_torchruns_variables():
    def build():
        given = {name: os.environ[name] for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        assert given == {"WORLD_SIZE": "16", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}
        assert torch.cuda.device_count() == 8
        dist.init_process_group()
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 16, "nccl")
        return step_of(two_layers())

    assert built(build, ranks=16).peak_allocated_bytes


def test_the_number_of_processes_may_be_given_by_the_program():
    def build():
        dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500", world_size=4, rank=1)
        assert (dist.get_rank(), dist.get_world_size()) == (1, 4)
        return step_of(two_layers())

    assert "process 1 of 4" in " ".join(built(build).notes)


def test_communication_ends_at_once():
    def build():
        dist.init_process_group("nccl")
        total = torch.ones(8, device="cuda")
        dist.all_reduce(total)
        dist.broadcast(total, 0)
        assert dist.all_reduce(total, async_op=True).wait()
        parts = [torch.empty_like(total) for _ in range(4)]
        dist.all_gather(parts, total)
        dist.reduce_scatter(total, parts)
        objects = [None] * 4
        dist.all_gather_object(objects, {"loss": 1})
        assert objects == [{"loss": 1}] * 4
        dist.broadcast_object_list(objects, 0)
        dist.barrier()
        pair = dist.new_group([0, 1])
        dist.all_reduce(total, group=pair)
        return step_of(nn.parallel.DistributedDataParallel(two_layers(), device_ids=[0]))

    assert built(build, ranks=4).category("buckets of gradients")


def test_a_search_for_a_batch_makes_groups_for_each():
    def build(batch_size):
        dist.init_process_group("nccl")
        net, _, *rest = step_of(nn.parallel.DistributedDataParallel(two_layers(), device_ids=[0]))
        return net, torch.randn(batch_size, WIDTH, device="cuda"), *rest

    found = hiwater.contrib.torch.estimate.largest_batch(build, device="2GiB", largest=2**14, multiple_of=2**10)
    assert found.batch_size and len(found.probes) > 1


def test_a_program_without_groups_runs_alone_and_that_is_said():
    found = built(lambda: step_of(two_layers()), ranks=2)
    assert any("made no process group" in note for note in found.notes)
    assert not built(lambda: step_of(two_layers())).notes


def test_blocks_of_one_stream_serve_no_other():
    def build(is_apart):
        net, x, optimizer, loss = step_of(two_layers())
        stream = torch.cuda.Stream() if is_apart else torch.cuda.current_stream()

        def step(x):
            with torch.cuda.stream(stream):
                y = torch.cat([x] * 512).sum()
            torch.cuda.current_stream().wait_stream(stream)
            loss(net(x) * y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, x, optimizer

    together, apart = (built(functools.partial(build, is_apart), steps=1) for is_apart in (False, True))
    assert apart.peak_reserved_bytes >= together.peak_reserved_bytes + 32 * 2**20


def test_the_first_fsdp_has_one_clear_line():
    from torch.distributed.fsdp import FullyShardedDataParallel

    def build():
        dist.init_process_group("nccl")
        return step_of(FullyShardedDataParallel(two_layers()))

    with pytest.raises(hiwater.errors.StepFailed, match="the first FSDP, which needs a card"):
        built(build, ranks=2)


def test_what_is_made_and_dropped_while_building_counts_for_the_peak_of_building():
    def build():
        torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
        return step_of(two_layers())

    found = built(build)
    assert found.steps[0]["peak_allocated_bytes"] == 64 * 2**20
    assert found.steps[0]["peak_reserved_bytes"] == 66 * 2**20  # the parameters lie there, and small ones apart
