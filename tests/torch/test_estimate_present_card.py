"""What programs ask of a card, and tell it, while an estimate runs: it answers, and nothing fails."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]
cuda = torch.cuda


def figures(x):
    assert cuda.memory_allocated() == cuda.max_memory_reserved() == cuda.memory_stats()["allocated_bytes.all.peak"] == 0
    assert cuda.memory_summary() == "" and cuda.memory_snapshot() == []
    cuda.reset_peak_memory_stats()
    cuda.reset_max_memory_allocated()
    cuda.set_per_process_memory_fraction(0.5)
    cuda.memory._record_memory_history(max_entries=1000)
    cuda.memory._dump_snapshot("/nowhere/snapshot.pickle")


def devices(x):
    assert cuda.is_available() and cuda.device_count() == 1 and cuda.get_device_name() == "NVIDIA A100 80GB"
    assert cuda.get_arch_list() == ["sm_80"] and not cuda.can_device_access_peer(0, 0)
    assert x.is_cuda and x.get_device() == 0 and torch.ones(1).to(x.get_device()).is_cuda
    with cuda.device(0), cuda.device_of(x):
        cuda.set_device(0)
    cuda.utilization()
    cuda.cudart().cudaProfilerStart()


def accelerators(x):
    assert torch.accelerator.current_accelerator().type == "cuda" and torch.accelerator.device_count() == 1
    torch.accelerator.synchronize()
    torch.accelerator.set_stream(torch.accelerator.current_stream())
    assert not torch.accelerator.current_stream().is_capturing()


def ranges(x):
    cuda.nvtx.range_push("step")
    cuda.nvtx.range_pop()
    with cuda.nvtx.range("step"):
        cuda.nvtx.mark("now")


def seeds(x):
    cuda.manual_seed_all(1)
    cuda.set_rng_state(cuda.get_rng_state())
    assert cuda.initial_seed() == 0
    with torch.random.fork_rng(devices=[0]):
        torch.rand(3, device="cuda")


def streams(x):
    side, begun, ended = cuda.Stream(), cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begun.record()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        moved = x * 2
    moved.record_stream(cuda.current_stream())
    ended.record()
    assert begun.elapsed_time(ended) == 0


@pytest.mark.parametrize("ask", [figures, devices, accelerators, ranges, seeds, streams])
def test_what_a_program_asks_of_the_card_is_answered(ask):
    net = nn.Linear(8, 8)

    def step(x):
        ask(x)
        return net(x).square().sum()

    found = hiwater.contrib.torch.estimate(step, torch.randn(4, 8), device="A100 80GB", steps=2)
    assert found.fits


def test_a_captured_graph_runs_once_and_its_own_memory_is_said_to_be_missing():
    net = nn.Linear(512, 512)

    def step(x):
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            loss = models.squares(net(x))
        graph.replay()
        return loss

    found = hiwater.contrib.torch.estimate(step, torch.randn(4, 512), device="A100 80GB", steps=2)
    assert found.fits is None and found.low_because == ["CUDA graphs: what a graph keeps for its replays is not seen"]
    assert found.category("gradients") == 512 * 512 * 4 + 2048


def test_a_number_is_the_card(tmp_path):
    """Also on builds of torch without CUDA, which refuse one."""
    path = tmp_path / "numbered.py"
    path.write_text(
        "import torch\n"
        "home = torch.device(0)\n"
        "scale = torch.ones(64, 64, device=0)\n"
        "def build(device=0):\n"
        "    net = torch.nn.Linear(64, 64, device=device).cuda(0)\n"
        "    return net, torch.zeros(8, 64, device=torch.device(device) if device else home)\n"
        "def named():\n"
        "    return build('cuda')\n"
    )
    numbered, named = (
        hiwater.contrib.torch.estimate(f"{path}:{name}", device="A100 80GB", mode="inference")
        for name in ("build", "named")
    )
    assert numbered.peak_allocated_bytes == named.peak_allocated_bytes > 0
