"""What an estimate models of `torch.compile`: what inductor keeps for backward, and its buffers."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch import _dynamo, nn  # noqa: E402 - optimizers load the first, and every forked process would again
from torch.nn import functional  # noqa: E402

import hiwater.contrib.torch  # noqa: E402
from hiwater.errors import StepFailed  # noqa: E402

SIZE = 4 * 2**20
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(torch.__version__ < "2.9", reason="inductor of torch 2.11 and newer is modelled"),
]


@pytest.fixture(scope="module", autouse=True)
def loaded_compiler():
    """Else the process of each estimate would load it: a second."""
    with warnings.catch_warnings(action="ignore"):
        from torch._inductor import scheduler
        from torch._inductor.fx_passes import joint_graph, post_grad

        for passes in (joint_graph, post_grad):
            passes.lazy_init()
    return scheduler


def built(build, **options):
    """The estimate of what is built with fake tensors, as of a function that the command line names."""
    options = {"steps": 3, "device": "H100 80GB", "largest": 1, **options}
    return hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), **options).estimate


def rows():
    return torch.randn(1024, 1024, device="cuda", requires_grad=True)


def of_function(function, is_compiled):
    return built(lambda: (torch.compile(function) if is_compiled else function, rows(), None, torch.Tensor.sum))


def squares(out):
    return out.square().mean()


def test_a_compiled_chain_keeps_its_input_and_makes_no_buffers():
    def chain(x):
        return x.sin().exp().tanh().exp().cos()

    written, compiled = (of_function(chain, is_compiled) for is_compiled in (False, True))
    # Of the chain as it is written, three results are kept, and two gradients of results are live at the peak.
    assert written.peak_allocated_bytes == 9 * SIZE + 1024
    # The one of the compiled chain has its input and output, that of the step before, and two gradients of the input.
    assert compiled.peak_allocated_bytes == 5 * SIZE + 1024
    assert compiled.fits is None and "without CUDA graphs" in " ".join(compiled.low_because)


def test_no_process_waits_for_kernels_to_compile(monkeypatch):
    from torch._inductor.async_compile import AsyncCompile

    monkeypatch.setattr(AsyncCompile, "process_pool", lambda: torch.no_such_name)
    found = of_function(torch.tanh, is_compiled=True)
    assert "without CUDA graphs" in " ".join(found.low_because)


def test_the_first_step_has_a_backward_although_the_compiler_traces_one():
    def build():
        net = torch.compile(nn.Linear(1024, 1024).cuda())
        return net, rows(), torch.optim.SGD(net.parameters(), lr=0.1), squares

    first = built(build).steps[1]["phases"]
    assert first["backward"] > first["forward"] + SIZE


def test_parts_compiled_one_by_one_need_what_the_whole_does():
    """Nothing of the first call stays."""

    def build(is_whole):
        net = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(3))).cuda()
        for part in [net] if is_whole else net:
            part.compile()
        return net, rows(), torch.optim.SGD(net.parameters(), lr=0.1), squares

    whole, parts = (built(lambda is_whole=is_whole: build(is_whole)) for is_whole in (True, False))
    assert whole.peak_allocated_bytes == parts.peak_allocated_bytes


def test_the_copies_of_the_compiler_are_no_tensors_of_the_step():
    """They have gradients, as the parameters that they stand for."""

    def build():
        net = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        update = torch.compile(optimizer.step)

        def step(x):
            net(x).sum().backward()
            update()
            optimizer.zero_grad()

        return step, torch.ones(8, 64, device="cuda")

    assert not [note for note in built(build).notes if "no module" in note]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_attention_needs_what_its_kernel_does(dtype):
    def attention(x):
        query = x.to(dtype).view(4, 16, 256, 64)
        return functional.scaled_dot_product_attention(query, query * 2, query + 1, is_causal=True)

    written, compiled = (of_function(attention, is_compiled) for is_compiled in (False, True))
    assert "without CUDA graphs" in " ".join(compiled.low_because)
    assert compiled.peak_allocated_bytes == pytest.approx(written.peak_allocated_bytes, abs=2048)


def chain_with(middle):
    def chain(x):
        x = x.sin().exp().tanh()
        x = middle(x)
        return x.exp().cos().exp()

    return chain


def number(x):
    return x * x.mean().item()


def branch(x):
    return x * 2 if x.sum() > 3 else x


def break_(x):
    _dynamo.graph_break()
    return x


@pytest.mark.parametrize("middle", [number, branch, break_], ids=lambda each: each.__name__)
def test_a_function_is_split_where_dynamo_cannot_follow(middle):
    whole, split = of_function(chain_with(torch.neg), True), of_function(chain_with(middle), True)
    # Each of two graphs keeps its input for backward and has a result, where one graph keeps its input alone.
    assert split.peak_allocated_bytes >= whole.peak_allocated_bytes + SIZE
    (why,), notes = split.low_because, " ".join(split.notes)
    assert "without CUDA graphs" in why
    assert "dynamo splits what is compiled at" in notes and "test_estimate_compiled.py:" in notes


def loop(x):
    for _ in range(2):
        x = x.exp().cos()
        print()
    return x


@pytest.mark.parametrize(
    ("function", "broken", "why"),
    [
        (loop, "", "no graph"),
        (chain_with(torch.neg), "_planned", "cannot be planned: AttributeError: "),
        (chain_with(torch.neg), "_settle_dynamo", "another than the estimate knows: "),
    ],
    ids=["loop", "unplanned", "another dynamo"],
)
def test_what_is_no_planned_graph_is_estimated_as_it_is_written(function, broken, why, monkeypatch):
    if broken:
        monkeypatch.setattr(f"hiwater.contrib.torch.estimate.compiled.{broken}", lambda *_: torch.no_such_name)
    written, found = (of_function(function, is_compiled) for is_compiled in (False, True))
    assert found.peak_allocated_bytes == written.peak_allocated_bytes
    (because,) = found.low_because
    line = of_function.__code__.co_firstlineno + 1
    assert f"estimated as it is written at {__file__}:{line}, because" in because and why in because


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"disable": True}])
def test_only_inductor_is_modelled(options):
    found = built(lambda: (torch.compile(torch.tanh, **options), rows(), None, torch.Tensor.sum))
    assert bool(found.low_because) == ("backend" in options)


def test_what_is_one_graph_by_request_is_not_split():
    with pytest.raises(StepFailed, match=r"test_estimate_compiled\.py:\d+ does not fit into the one graph"):
        built(lambda: (torch.compile(chain_with(break_), fullgraph=True), rows(), None, torch.Tensor.sum))
