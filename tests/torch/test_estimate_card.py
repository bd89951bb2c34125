"""What an estimate models of a card: workspaces, buffers, the order of a step as written, and what code reaches."""

from __future__ import annotations

import functools
import os

import pytest

torch = pytest.importorskip("torch")

from torch import _dynamo, nn  # noqa: E402, F401 - optimizers load the first, and every forked process would again

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402
from hiwater.errors import StepNeedsValues  # noqa: E402

MIB = 2**20
WORKSPACES = "cuBLAS workspaces"
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]


def estimate(*arguments, **options):
    return hiwater.contrib.torch.estimate(*arguments, **{"steps": 2, "device": "A100 80GB", **options})


def built(build, **options):
    """The estimate of what is built with fake tensors, as of a function that the command line names."""
    options = {"steps": 2, "device": "A100 80GB", "largest": 1, **options}
    return hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), **options).estimate


@pytest.fixture
def lt_apart(monkeypatch):
    """cuBLASLt has workspaces of its own, as torch had it by default from 2.7 to 2.12."""
    if torch.__version__ < "2.7":
        pytest.skip("this torch keeps no workspace for cuBLASLt")
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")


def linear(bias=False):
    return nn.Linear(64, 64, bias=bias), torch.randn(8, 64), None, models.squares


@pytest.mark.parametrize(
    ("device", "each"),
    [("T4", 8.125 * MIB), ("A100 80GB", 8.125 * MIB), ("RTX 4090", 8.125 * MIB), ("H100 80GB", 32 * MIB),
        ("20GiB", 32 * MIB)],
)  # fmt: skip
def test_each_thread_that_multiplies_has_a_workspace_of_the_cards_size(device, each):
    assert estimate(*linear(), device=device).category(WORKSPACES) == 2 * each
    assert estimate(*linear(), device=device, mode="inference").category(WORKSPACES) == each
    assert (
        estimate(lambda x: x.square().sum(), torch.ones(8, requires_grad=True), device=device).category(WORKSPACES) == 0
    )


def test_the_environment_sets_the_size_of_workspaces(monkeypatch, lt_apart):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert estimate(*linear(), device="H100 80GB").category(WORKSPACES) == 2 * 8.125 * MIB
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "2048")
    assert estimate(*linear(bias=True), device="H100 80GB").category(WORKSPACES) == (2 * 8.125 + 2) * MIB


def test_a_product_with_a_bias_has_one_of_cublaslt_unless_they_are_shared(monkeypatch, lt_apart):
    assert estimate(*linear(bias=True)).category(WORKSPACES) == (2 * 8.125 + 1) * MIB
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")
    assert estimate(*linear(bias=True)).category(WORKSPACES) == 2 * 8.125 * MIB


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts_multiply_in_every_type(dtype):
    """The results' rows are padded to 16 bytes. cuBLAS multiplies the groups but for bfloat16 on Hopper."""
    rows, weights = torch.ones(64, 16, dtype=dtype), torch.ones(4, 10, 16, dtype=dtype, requires_grad=True)
    ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32)

    def step(rows):
        return torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends).square().sum()

    assert estimate(step, rows, device="A100 80GB").category(WORKSPACES) == 2 * 8.125 * MIB
    alone = estimate(step, rows, device="H100 80GB", mode="inference")
    assert alone.category(WORKSPACES) == (0 if dtype == torch.bfloat16 else 32 * MIB)
    result, square, number = {4: (64 * 48, 2560, 512), 2: (64 * 32, 1536, 512)}[dtype.itemsize]
    assert alone.category("temporaries") == result + square + number


def test_a_product_while_the_model_is_built_makes_its_workspace_then():
    def build():
        left = torch.randn(64, 64, device="cuda")
        return (lambda x: x.square().sum()), left @ left

    assert built(build, mode="inference").steps[0]["peak_allocated_bytes"] >= 8.125 * MIB


def test_gradients_are_dropped_where_the_program_drops_them():
    def build(early):
        net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(8)]).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x):
            if early:
                optimizer.zero_grad()
            loss = net(x).sum()
            if not early:
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step, torch.randn(1024, 1024, device="cuda"), optimizer

    early, late = (built(functools.partial(build, early)).steps[2]["phases"]["forward"] for early in (True, False))
    assert late - early == pytest.approx(8 * 4 * MIB, abs=MIB)


class Holder:
    """As a trainer holds its parts."""

    def __init__(self):
        self.parts = {"net": nn.Linear(512, 512, bias=False)}

    def step(self, x):
        self.parts["net"](x).sum().backward()


def nested():
    net = nn.Linear(512, 512, bias=False)

    def forward(x):
        return net(x).sum()

    def step(x):
        forward(x).backward()

    return step


@pytest.mark.parametrize(
    "reach",
    [nested, lambda: Holder().step, lambda: functools.partial(lambda holder, x: holder.step(x), Holder())],
    ids=["closures", "method", "partial"],
)
@pytest.mark.parametrize("given", ["objects", "built"])
def test_modules_behind_functions_methods_and_attributes_count(reach, given):
    x = torch.randn(4, 512)
    found = estimate(reach(), x) if given == "objects" else built(lambda: (reach(), x))
    assert found.parameters == 512 * 512
    assert found.category("parameters") == found.category("gradients") == MIB


class Hidden:
    """An attribute of a class is nothing that the walk follows."""

    net = None


@pytest.mark.parametrize("given", ["objects", "built"])
def test_a_backward_into_what_nobody_is_seen_to_own_is_noted(given):
    def build():
        Hidden.net = nn.Linear(64, 64, bias=False)
        return (lambda x: getattr(Hidden, "net")(x).sum()), torch.randn(2, 64)  # noqa: B009 - so that it is found late

    (note,) = (estimate(*build()) if given == "objects" else built(build)).notes
    assert note.startswith("backward reaches 16,384 bytes of tensors of no module or optimizer in sight")


@pytest.mark.parametrize("given", ["objects", "built"])
def test_what_a_loss_holds_counts_as_if_it_were_passed(given):
    def parts():
        target = torch.randn(1024, 4096)
        return nn.Linear(8, 8), torch.randn(4, 8), None, lambda out: out.sum() * target[0, 0]

    found = estimate(*parts()) if given == "objects" else built(parts)
    assert found.category("inputs") == 16 * MIB + 512


def test_a_copied_module_counts_once():
    def build():
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 2, 64), 3).cuda(), torch.randn(2, 4, 64)

    found = built(build)
    assert found.category("activations") < 0.2 * found.category("parameters"), "no view of a weight is another storage"


@pytest.mark.parametrize(
    "read",
    [
        lambda x, mask: bool(torch.all(mask == 1)),
        lambda x, mask: mask[:, -1].sum().item() == 2,
        lambda x, mask: int(torch.arange(4).max()) == 3,
        lambda x, mask: not (torch.zeros(3, dtype=torch.bool) | False).any(),
    ],
    ids=["all", "sum", "arange", "bool"],
)
def test_content_that_follows_from_what_made_it_can_be_read(read):
    def step(x):
        mask = torch.ones(2, 4, dtype=torch.long, device="cuda")
        assert read(x, mask)
        return (x * 2).sum()

    assert estimate(step, torch.ones(4, requires_grad=True)).peak_allocated_bytes > 0


def test_content_that_depends_on_computed_numbers_cannot_be_read():
    def step(x):
        mask = torch.ones(4, dtype=torch.long)
        mask[:2] = (x[:2] > 0).long()
        return x.sum() if mask.all() else x

    with pytest.raises(StepNeedsValues, match=rf"{os.path.basename(__file__)}:\d+ reads a tensor's value"):
        estimate(step, torch.ones(4, requires_grad=True))


def test_weights_are_made_by_functions_that_repeat_until_values_fit():
    def build():
        layer = nn.Linear(64, 64)
        nn.init.trunc_normal_(layer.weight, std=0.02)
        return layer, torch.randn(2, 64)

    assert built(build).parameters == 64 * 65


def test_an_optimizer_that_can_be_captured_runs():
    net = nn.Linear(64, 64)
    found = estimate(net, torch.randn(2, 64), torch.optim.AdamW(net.parameters(), capturable=True), models.squares)
    assert found.category("optimizer state") > 2 * 4 * 64 * 65


@pytest.mark.parametrize(
    ("shape", "dim", "buffer", "counters"),
    [
        # Seen on an H200: gradients of biases, and a sum of everything.
        ((2048, 256), 0, 4_194_304, 512),
        ((2048, 768), 0, 12_582_912, 512),
        ((4096, 4096), None, 2_560, 512),
        ((64, 64), 0, 0, 0),
    ],
)
def test_sums_of_several_blocks_use_buffers(shape, dim, buffer, counters):
    x = torch.ones(shape)
    total = (lambda x: x.sum()) if dim is None else (lambda x: x.sum(dim))
    found = estimate(total, x, mode="inference", steps=1, device="H200")
    result = 512 if dim is None else max(512, shape[1] * 4)
    assert found.peak_allocated_bytes == x.numel() * 4 + result + buffer + counters


def test_a_mask_that_needs_a_gradient_has_scores_with_a_mask_of_bytes():
    """As T5's positions: softmax and dropout are kept, and no scores before them."""
    bias = torch.zeros(1, 8, 256, 256, requires_grad=True)

    def attend(x):
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias, dropout_p=0.1).sum()

    x = torch.randn(4, 8, 256, 16, requires_grad=True)
    found = estimate(attend, x, steps=1)
    kept = max(point["categories"].get("activations", 0) for point in found.timeline)
    scores = 4 * 8 * 256 * 256
    assert 0 <= kept - 2 * 4 * scores - scores <= 4 * x.nbytes


def test_a_mean_loss_keeps_the_storage_of_all_elements():
    x = torch.randn(1024, 1024, requires_grad=True)
    target = torch.randn(1024, 1024)
    mean = estimate(lambda x: nn.functional.mse_loss(x, target), x, steps=1)
    by_hand = estimate(lambda x: (x - target).square().mean(), x, steps=1)
    assert mean.category("activations") == 4 * MIB
    assert by_hand.category("activations") >= 4 * MIB


def test_a_norm_copies_rows_that_are_not_contiguous():
    norm, x = nn.LayerNorm(512), torch.randn(512, 4096)
    plain = estimate(norm, x.reshape(4096, 512), None, models.squares, steps=1, mode="inference")
    turned = estimate(lambda x: norm(x.t()), x, None, models.squares, steps=1, mode="inference")
    assert turned.peak_allocated_bytes - plain.peak_allocated_bytes == 8 * MIB


def test_a_gradient_is_written_to_zeros_in_place():
    table, rows = torch.randn(1024, 1024, requires_grad=True), torch.arange(16)
    found = estimate(lambda rows: table[rows].sum(), rows, None, steps=1)
    assert found.peak_allocated_bytes < 9 * MIB, "the table and its gradient"


def test_joining_under_autocast_converts_nothing():
    x = torch.randn(1024, 1024)

    def join(x):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.cat([x, x.bfloat16()])

    assert estimate(join, x, mode="inference", steps=1).peak_allocated_bytes == (4 + 2 + 8) * MIB


def test_words_that_are_made_go_on_to_the_full_length_and_that_is_said():
    """As `generate()` does: a stop word ends a sequence, and the loop reads whether all have ended."""
    net, words = nn.Embedding(64, 64), torch.randint(64, (2, 4))

    def step(words):
        going = torch.ones(2, dtype=torch.long)
        while words.shape[1] < 12:
            words = torch.cat([words, net(words[:, -1]).argmax(-1, keepdim=True)], 1)
            going = going & ~torch.isin(words[:, -1], torch.tensor([5]))
            if going.max() == 0:
                raise AssertionError
        return words

    found = estimate(step, words, mode="inference", steps=1)
    assert any("full length" in note for note in found.notes)


def test_a_layer_that_is_left_out_at_random_is_not():
    net = nn.Linear(256, 256)
    dropped = estimate(lambda x: net(x) if torch.rand([]) > 0.1 else x, torch.randn(64, 256), steps=1)
    whole = estimate(net, torch.randn(64, 256), steps=1)
    assert dropped.peak_allocated_bytes == whole.peak_allocated_bytes


@pytest.mark.parametrize("groups", [1, 2])
def test_attention_of_packed_sequences_pads_each_in_backward(groups):
    """`mha_varlen_bwd` of flash_api.cpp: float32 sums, and a float32 copy of the query's gradient."""
    home = pytest.importorskip("torch.nn.attention.varlen")
    rows, heads, width = 1024, 4, 64

    def peak(count):
        def build():
            keys = [torch.randn(rows, heads // groups, width, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
            query, factor = (torch.randn(rows, heads, width, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            given = [each.requires_grad_() for each in (query, *keys)]
            starts = torch.arange(0, rows + 1, rows // count, dtype=torch.int32, device="cuda")
            options = {"enable_gqa": True} if groups > 1 else {}

            def step():
                out = home.varlen_attn(*given, starts, starts, rows // count, rows // count, **options)
                (out * factor).sum().backward()

            return step, ()

        found = built(build)
        assert found.at_peak["phase"] == "backward"
        return found.peak_allocated_bytes

    assert peak(16) - peak(8) == 4 * heads * 8 * 128 * (1 + width)


def test_of_a_compiled_program_only_training_is_in_doubt():
    def build():
        net = torch.compile(nn.Linear(8, 8).cuda())
        return net, torch.randn(4, 8, device="cuda")

    trained, inferred = (built(build, mode=mode) for mode in ("train", "inference"))
    assert trained.fits is None and "torch.compile" in " ".join(trained.low_because)
    assert inferred.fits is True


def test_a_selective_checkpoint_saves_what_attention_makes():
    from torch.utils import checkpoint as home

    saved = {f"_scaled_dot_product_{kernel}_attention" for kernel in ("flash", "efficient", "cudnn")}

    def activations(is_saved):
        def policy(context, function, *_, **__):
            kinds = home.CheckpointPolicy
            is_wanted = is_saved and function.overloadpacket.__name__ in saved
            return kinds.MUST_SAVE if is_wanted else kinds.PREFER_RECOMPUTE

        def attention(x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

        def forward(x):
            contexts = functools.partial(home.create_selective_checkpoint_contexts, policy)
            return home.checkpoint(attention, x, use_reentrant=False, context_fn=contexts)

        def build():
            x = torch.randn(1, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            return forward, x, None, lambda out: out.sum()

        found = built(build, device="H100")
        return max(instant["categories"].get("activations", 0) for instant in found.timeline)

    output, logsumexp = 4 * 1024 * 64 * 2, 4 * 1024 * 4
    assert activations(True) - activations(False) >= logsumexp
    assert activations(True) >= output + logsumexp
