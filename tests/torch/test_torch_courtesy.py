"""Memory is lent and comes back: same gradients to the bit, same views, nothing dropped, nothing kept alive."""

import json

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402 - after torch is known to be there
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hiwater  # noqa: E402
from hiwater.contrib.torch import swap  # noqa: E402
from hiwater.contrib.torch.courtesy import Courtesy  # noqa: E402
from hiwater.contrib.torch.records import Category, TensorView  # noqa: E402
from hiwater.errors import CourtesyFailed, MemoryYielded  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch's own warnings are no concern here
    pytest.mark.usefixtures("older_objects_are_hidden", "nothing_left_of_other_tests"),
]


class Everything(nn.Module):
    """Saved outputs, indices, masks, a workspace, views, a tie, a checkpoint."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.lstm = nn.LSTM(36, 8, batch_first=True)
        self.head = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.head.weight

    def forward(self, x):
        x = self.conv(x).exp().softmax(-1)
        x, _ = self.lstm(x.unsqueeze(1))
        x = nn.functional.dropout(x.squeeze(1), 0.3)
        x = checkpoint(self.head, x, use_reentrant=False)
        return self.tied(x.t().contiguous().t()).tanh()


def _train(lend):
    torch.manual_seed(7)
    model = Everything()
    optimizer = torch.optim.Adam(model.parameters())
    given = torch.randn(3, 1, 8, 8)
    steps = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(given).square().sum()
        if step == 1:
            lend()
        loss.backward()
        optimizer.step()
        steps.append([loss.item(), *(parameter.grad.clone() for parameter in model.parameters())])
    return steps, [parameter.detach().clone() for parameter in model.parameters()]


def _same(one, other):
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def test_backward_after_a_yield_in_the_middle_of_the_graph_is_the_same_to_the_bit():
    lent = []

    def lend():
        courtesy = Courtesy(device="cpu")
        lent.append(courtesy.yield_memory())
        left = hiwater.contrib.torch.MemReporter().data("cpu").device("cpu")
        kept = sum(one.nbytes for one in lent[-1].kept)
        lent.append((left.identity.found_bytes, kept, courtesy.restore()))

    never = _train(lambda: None)
    assert _same(_train(lend), never)
    yielded, (left, kept, restored) = lent
    assert yielded.moved_bytes == restored > 10_000
    copies = yielded.moved_bytes  # they are tensors in RAM, too, and on the CPU that is the same device
    assert left <= kept + copies


def test_views_ties_and_identities_survive():
    base = torch.arange(12.0).reshape(3, 4)
    column, flat = base[:, 1], base.view(-1)
    before = (base.data_ptr(), base._version, base.clone())
    courtesy = hiwater.contrib.torch.Courtesy("cpu")
    courtesy.yield_memory()
    assert base.untyped_storage().nbytes() == 0
    courtesy.restore()
    assert torch.equal(base, before[2]) and base._version == before[1]
    flat[5] = 100.0
    assert column[1] == 100.0 and base[1, 1] == 100.0
    assert base.untyped_storage()._cdata == column.untyped_storage()._cdata == flat.untyped_storage()._cdata
    assert courtesy.loc_map == {}


def test_sparse_quantised_and_nested_tensors_come_back():
    sparse = torch.eye(4).to_sparse()
    rows = torch.eye(4).to_sparse_csr()
    quantised = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    wanted = [sparse.to_dense(), rows.to_dense(), quantised.dequantize(), [one.clone() for one in jagged.unbind()]]
    with hiwater.contrib.torch.Courtesy("cpu"):
        pass
    found = [sparse.to_dense(), rows.to_dense(), quantised.dequantize(), list(jagged.unbind())]
    assert _same(found, wanted)


def test_what_must_stay_stays_and_says_why():
    array = np.arange(1000.0)
    borrowed = torch.from_numpy(array)
    lent = torch.ones(500)
    looked_at = lent.numpy()
    shared = torch.ones(300).share_memory_()
    with hiwater.contrib.torch.Courtesy("cpu") as courtesy:
        assert looked_at.sum() == 500 and array.sum() == 499_500
        again = courtesy.yield_memory()
    reasons = {one.nbytes: one.reason for one in again.kept}
    assert reasons[8000] == reasons[2000] == "its memory is borrowed, or lent to NumPy"
    assert reasons[1200] == "its memory is shared between processes"
    assert "stays on cpu" in str(again)
    assert json.loads(json.dumps(again.to_dict()))["kept"]
    del borrowed, shared


def test_what_is_dropped_meanwhile_is_not_kept_alive():
    kept, dropped = torch.ones(1000), torch.ones(2000)
    weak = StorageWeakRef(dropped.untyped_storage())
    courtesy = Courtesy("cpu")
    courtesy.yield_memory()
    del dropped
    assert weak.expired()
    courtesy.restore()
    assert kept.sum() == 1000


def test_a_storage_that_the_program_fills_meanwhile_is_left_as_it_is():
    tensor = torch.ones(4)
    courtesy = Courtesy("cpu")
    courtesy.yield_memory()
    tensor.untyped_storage().resize_(16)
    tensor.fill_(5.0)
    courtesy.restore()
    assert tensor.tolist() == [5.0] * 4


def test_an_exception_in_the_block_restores():
    tensor = torch.arange(10.0)
    with pytest.raises(ZeroDivisionError), hiwater.contrib.torch.Courtesy("cpu"):
        _ = 1 / tensor.untyped_storage().nbytes()
    assert tensor.sum() == 45


def test_using_lent_memory_in_the_block_is_an_error_and_no_crash():
    tensor = torch.arange(10.0)
    with hiwater.contrib.torch.Courtesy("cpu"):
        with pytest.raises(MemoryYielded, match=r"aten\.add"):
            tensor + 1
        assert (torch.ones(3) + 1).sum() == 6  # what is made meanwhile may be used
    assert (tensor + 1).sum() == 55


@pytest.fixture
def five():
    """Tensors with the numbers 0 to 4; the test must leave them as they were."""
    tensors = [torch.full((1000,), float(place)) for place in range(5)]
    yield
    assert [tensor.mean().item() for tensor in tensors] == [0, 1, 2, 3, 4]


def third_fails(monkeypatch, step, error, *, does_first=False):
    """The third call of a step of `swap` raises, before or after what it does."""
    real, calls = getattr(swap, step), []

    def fails(*arguments):
        calls.append(arguments)
        if len(calls) == 3 and does_first:
            real(*arguments)
        if len(calls) == 3:
            raise error
        return real(*arguments)

    monkeypatch.setattr(swap, step, fails)


NO_RAM = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
NO_ROOM = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 4 KiB")


@pytest.mark.parametrize(
    ("step", "error", "told"),
    [
        ("copied", NO_RAM, pytest.raises(CourtesyFailed, match="no room for a copy in RAM")),
        ("copied", KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
        ("let_go", KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ],
)
def test_what_fails_half_way_leaves_everything_in_place(five, monkeypatch, step, error, told):
    third_fails(monkeypatch, step, error, does_first=error is not NO_RAM)
    courtesy = Courtesy("cpu")
    with told:
        courtesy.yield_memory()
    assert courtesy.loc_map == {}


@pytest.mark.parametrize(
    ("step", "error", "told"),
    [
        ("_bytes_of", KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),  # it has its memory, and not its bytes
        ("move_back", NO_ROOM, pytest.raises(CourtesyFailed, match="call restore")),
    ],
)
def test_what_fails_on_the_way_back_can_be_tried_again(five, monkeypatch, step, error, told):
    courtesy = Courtesy("cpu")
    courtesy.yield_memory()
    third_fails(monkeypatch, step, error)
    with told:
        courtesy.restore()
    assert courtesy.loc_map
    courtesy.restore()
    assert courtesy.loc_map == {}


def test_only_accelerators_are_meant_unless_the_cpu_is_named():
    tensor = torch.ones(10)
    courtesy = Courtesy()
    yielded = courtesy.yield_memory()
    assert yielded.devices == () and tensor.sum() == 10
    assert str(yielded).startswith("nothing to give back")


def test_private_pools_pinned_and_foreign_memory_are_told_apart():
    from hiwater.contrib.torch.allocator import SegmentBlock
    from hiwater.contrib.torch.collect import Holding
    from hiwater.contrib.torch.storages import Place

    storage = torch.ones(4).untyped_storage()
    look = TensorView("x", Category.variable, "Tensor", (4,), "float32", 4)
    on_card = Holding("cuda:0", Place.memory, 16, False, 512, None, [look])
    assert swap.obstacle(on_card, SegmentBlock(512, 512, 16), storage) == ""
    assert "private pool" in swap.obstacle(on_card, SegmentBlock(512, 512, 16, private=True), storage)
    assert "not of torch's allocator" in swap.obstacle(on_card, None, storage)
    assert "page-locked" in swap.obstacle(Holding("cpu", Place.memory, 16, True, 0, None, [look]), None, storage)


def test_copies_that_would_not_fit_into_ram_are_not_begun(monkeypatch):
    from hiwater.contrib.torch.collect import Holding
    from hiwater.contrib.torch.courtesy import _check_room
    from hiwater.contrib.torch.storages import Place

    spare = swap.ram_to_spare()
    assert spare is None or 0 < spare < 1 << 50
    found = [Holding(device, Place.memory, 3 << 30, False, 512, None) for device in ("cpu", "cuda:0", "cuda:1")]
    monkeypatch.setattr(swap, "ram_to_spare", lambda: 6 << 30)
    _check_room(found)
    monkeypatch.setattr(swap, "ram_to_spare", lambda: (6 << 30) - 1)
    with pytest.raises(CourtesyFailed, match=r"need 6\.00 GiB of RAM, but only 6\.00 GiB is free"):
        _check_room(found)
