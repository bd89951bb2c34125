"""allocated = named + saved + gradients + optimizer + held by C++, to the byte, against the record of torch's own
CPU allocator."""

import gc

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after it is known to be there
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hiwater  # noqa: E402
from hiwater.contrib.torch import walk  # noqa: E402
from hiwater.contrib.torch.records import Category  # noqa: E402
from torch_truth import allocated_by_cpu  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the profiler and torch warn of what is no concern here
    pytest.mark.usefixtures("older_objects_are_hidden", "nothing_left_of_other_tests"),
]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(16, 8, num_layers=2)

    def forward(self, x):
        return self.inner(x)[0]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x.argmax(-1)))


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        ctx.scale = x.abs() + 1
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * ctx.scale


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        return Doubling.apply(self.inner(x))


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(2))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = self.blocks[0](x)
        return checkpoint(self.blocks[1], x, use_reentrant=self.use_reentrant)


class OnCpu(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))

    def forward(self, x):
        with torch.autograd.graph.save_on_cpu():
            return self.inner(x).exp()


def _rows(*shape):
    return lambda: torch.randn(*shape)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), _rows(8, 16)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 4)
        ),
        _rows(2, 3, 16, 16),
    ),
    "exp-softmax-dropout": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Softmax(-1), nn.Dropout(0.5), nn.ELU()),
        _rows(8, 16),
    ),
    "layer-norm": (lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()), _rows(8, 16)),
    "attention": (Attention, _rows(2, 6, 16)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), _rows(2, 6, 16)),
    "lstm": (Recurrent, _rows(5, 2, 16)),
    "gru": (lambda: nn.GRUCell(16, 8), _rows(5, 16)),
    "tied": (Tied, _rows(4, 16)),
    "custom-function": (Custom, _rows(8, 16)),
    "checkpoint-reentrant": (lambda: Checkpointed(use_reentrant=True), _rows(8, 16)),
    "checkpoint": (lambda: Checkpointed(use_reentrant=False), _rows(8, 16)),
    "save-on-cpu": (OnCpu, _rows(8, 16)),
}
# Before torch 2.10 what autograd saved is seen only by running unpack hooks, which would compute a checkpoint again.
IS_OLD = not walk.sees_without_unpacking()
IN_HOOKS = {"checkpoint", "save-on-cpu"}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


def _before():
    """Storages of other tests and of torch's own, which are no part of what a test makes."""
    found = hiwater.contrib.torch.MemReporter(unpack=True).data().device("cpu")
    return {} if found is None else dict(found.identity.by_category)


def _added(report, before):
    sums = report.device("cpu").identity.by_category
    return {category: size - before.get(category, 0) for category, size in sums.items()}


@pytest.mark.grid
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("step", ["forward", "backward"])
def test_what_is_found_is_what_the_allocator_gave_out(name, step):
    if IS_OLD and name in IN_HOOKS and step == "forward":
        pytest.skip("this torch shows what hooks packed only by unpacking it")
    make, make_input = MODELS[name]
    before = _before()
    with allocated_by_cpu() as truth:
        model = make()
        given = make_input()
        loss = model(given).square().mean()
        if step == "backward":
            loss.backward()
    found = _added(hiwater.contrib.torch.MemReporter(model, unpack=True).data(), before)
    assert sum(found.values()) == truth.bytes
    assert found[Category.parameter] == sum(
        {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in model.parameters()}.values()
    )
    if step == "backward":
        assert found[Category.gradient] == found[Category.parameter]
    else:
        assert found[Category.saved] > 0 and found[Category.gradient] == 0
    assert found[Category.unnamed] == 0
    del loss, given


@pytest.mark.parametrize(
    ("name", "is_given"), [("sgd", False), ("adam", True), ("adamw-foreach", False), ("adamw-fused", True)]
)
def test_optimizer_state_is_found_to_the_byte(name, is_given):
    if "fused" in name and torch.__version__ < "2.4":
        pytest.skip("this torch has fused optimizers on a card alone")
    before = _before()
    with allocated_by_cpu() as truth:
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = OPTIMIZERS[name](model.parameters())
        given = torch.randn(8, 16)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(given).square().mean()
            loss.backward()
            optimizer.step()
    reporter = hiwater.contrib.torch.MemReporter(model, unpack=True)
    if is_given:
        reporter.add_optimizer(optimizer)
    report = reporter.data()
    found = _added(report, before)
    state = [one for per in optimizer.state.values() for one in per.values() if torch.is_tensor(one)]
    assert found[Category.optimizer] == sum(one.nbytes for one in state) > 0
    # The step counts are made by torch.tensor(), whose memory the profiler sees, too.
    assert sum(found.values()) == truth.bytes
    names = {entry.owner.name for entry in report.device("cpu").storages if entry.category is Category.optimizer}
    kept = "momentum_buffer" if name == "sgd" else "exp_avg"
    assert any(one.endswith(f".2.weight.{kept}") for one in names)
    del loss


def _double_backward():
    weight = torch.randn(64, requires_grad=True)
    (slope,) = torch.autograd.grad((weight.exp() * weight).sum(), weight, create_graph=True)
    return weight, slope.sin().sum()


def _mapped():
    weight = torch.randn(64, requires_grad=True)
    return weight, torch.func.vmap(lambda row: (row * weight).exp())(torch.randn(3, 64))


def _autocast():
    model, given = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model, given, model(given).sum()


def _sparse_gradient():
    model = nn.EmbeddingBag(100, 16, sparse=True)
    loss = model(torch.arange(10).view(2, 5)).sum()
    loss.backward()
    return model, loss


def _lbfgs():
    model, given = nn.Linear(4, 4), torch.randn(3, 4)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(given).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return model, optimizer, given


@pytest.mark.parametrize("make", [_double_backward, _mapped, _autocast, _sparse_gradient, _lbfgs])
def test_unusual_graphs_and_states_are_found_to_the_byte(make):
    make()  # what torch makes once, it makes now
    gc.collect()
    before = _before()
    with allocated_by_cpu() as truth:
        held = make()
    gc.collect()
    found = _added(hiwater.contrib.torch.MemReporter(unpack=True).data(), before)
    assert sum(found.values()) == truth.bytes > 0
    assert found[Category.unnamed] == 0
    del held


@pytest.mark.parametrize("name", ["conv", "lstm", "custom-function", "checkpoint"])
def test_the_watch_closes_the_sum_in_the_report(name):
    make, make_input = MODELS[name]
    with hiwater.contrib.torch.StorageWatch() as watch:
        model = make()
        given = make_input()
        loss = model(given).square().mean()
        mine = (
            hiwater.contrib.torch.MemReporter(model, watch=watch, unpack=name != "checkpoint")
            .data()
            .device("cpu")
            .identity
        )
    assert mine.unowned_bytes == 0 and mine.residual_bytes == 0 and mine.rounding_bytes == 0
    assert mine.allocated_bytes == mine.found_bytes > 0
    del loss, given


def test_what_nothing_leads_to_is_said_with_the_operation_that_made_it():
    with hiwater.contrib.torch.StorageWatch() as watch:
        hidden = iter([torch.full((64,), 2.0)])  # an iterator is not followed
        gc.freeze()  # and now the collector does not show its tensor
        try:
            reporter = hiwater.contrib.torch.MemReporter(watch=watch)
            found = reporter.data()
        finally:
            gc.unfreeze()
    identity = found.device("cpu").identity
    assert (identity.allocated_bytes, identity.unowned_bytes, identity.residual_bytes) == (256, 256, 0)
    assert [(one.nbytes, one.count, one.origin) for one in identity.unowned] == [(256, 1, "aten.full.default")]
    assert "made by aten.full.default" in str(reporter)
    assert any("gc.freeze()" in note for note in found.notes)
    page = reporter._repr_html_()
    assert "gc.freeze()" in page and "held by C++: 256 B in 1 blocks, aten.full.default" in page
    del hidden


def test_a_mask_that_only_a_hidden_node_holds_is_found_where_the_watch_made_it_visible():
    with hiwater.contrib.torch.StorageWatch() as watch:
        weight = torch.randn(64, requires_grad=True)
        whole = weight * torch.randn(2, 64)
        # Its node hides inside CopySlices, which shows nothing, and so does its mask.
        nn.functional.dropout(whole[0], inplace=True)
        found = hiwater.contrib.torch.MemReporter(watch=watch, unpack=True).data().device("cpu")
    unnamed = [entry for entry in found.storages if entry.category is Category.unnamed and entry.in_allocator]
    assert [(entry.nbytes, entry.origin) for entry in unnamed] == [(256, "aten.empty_like.default")]
    assert found.identity.residual_bytes == 0 and found.identity.unowned_bytes == 0


def test_memory_from_before_the_watch_lies_outside():
    early = torch.randn(100)
    with hiwater.contrib.torch.StorageWatch() as watch:
        late = early * 2
    found = hiwater.contrib.torch.MemReporter(watch=watch).data().device("cpu")
    by_name = {entry.owner.name: entry.in_allocator for entry in found.storages}
    assert by_name["early in test_memory_from_before_the_watch_lies_outside()"] is False
    assert by_name["late in test_memory_from_before_the_watch_lies_outside()"] is True
    assert found.identity.allocated_bytes == 400
    del late
