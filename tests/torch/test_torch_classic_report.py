"""pytorch_memlab's own examples print their documented sizes, which its release 0.3.2 multiplies by the element
size."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after torch is known to be there

from hiwater.contrib.compat.pytorch_memlab.report import ClassicMemReporter, classic_size, text  # noqa: E402
from hiwater.contrib.torch import identity, walk  # noqa: E402
from hiwater.contrib.torch.allocator import SegmentBlock, SegmentBlocks  # noqa: E402
from hiwater.contrib.torch.collect import Holding  # noqa: E402
from hiwater.contrib.torch.records import Category, TensorReport, TensorView  # noqa: E402
from hiwater.contrib.torch.storages import Place  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left_of_other_tests")
HEADER = "Element type                                            Size  Used MEM"
RULE = "-" * 79


def _printed(reporter, capsys, wanted, **options):
    """The rows of tensors of these sizes: other tests' modules hold tensors, too."""
    reporter.report(device="cpu", **options)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [HEADER, RULE, "Storage on cpu"] and lines[-1] == RULE
    assert lines[-2].startswith("Total Tensors: ") and " \tUsed Memory: " in lines[-2]
    return [line for line in lines[3:-3] if any(size in line for size in wanted)]


def _row(name, size, used):
    return f"{name:<40}{size:>20}{used:>10}"


def test_a_layer_without_its_model_given(capsys):
    linear = nn.Linear(1024, 1024)
    rows = _printed(ClassicMemReporter(), capsys, ("(1024, 1024)", "(1024,)"))
    assert [row[40:] for row in rows] == [_row("", "(1024, 1024)", "4.00M")[40:], _row("", "(1024,)", "4.00K")[40:]]
    assert all(row.startswith("Parameter") for row in rows)
    del linear


def test_gradients_follow_their_parameters(capsys):
    linear, given = nn.Linear(1024, 1024), torch.Tensor(512, 1024)
    result = linear(given).mean()
    reporter = ClassicMemReporter(linear)
    sizes = ("(1024, 1024)", "(1024,)", "(512, 1024)")
    before = _printed(reporter, capsys, sizes)
    result.backward()
    after = _printed(reporter, capsys, sizes)
    assert before[:2] == [_row("weight", "(1024, 1024)", "4.00M"), _row("bias", "(1024,)", "4.00K")]
    assert after[:4] == [
        _row("weight", "(1024, 1024)", "4.00M"), _row("weight.grad", "(1024, 1024)", "4.00M"),
        _row("bias", "(1024,)", "4.00K"), _row("bias.grad", "(1024,)", "4.00K"),
    ]  # fmt: skip
    assert len(before) == 3 and before[2][40:] == after[4][40:] == _row("", "(512, 1024)", "2.00M")[40:]


def test_a_shared_weight_is_counted_once(capsys):
    first, second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)
    second.weight = first.weight
    container = nn.Sequential(first, second)
    container(torch.Tensor(512, 1024)).mean().backward()
    rows = _printed(ClassicMemReporter(container), capsys, ("(1024, 1024)", "(1024,)"), verbose=True)
    assert rows == [
        _row("0.weight", "(1024, 1024)", "4.00M"), _row("0.weight.grad", "(1024, 1024)", "4.00M"),
        _row("0.bias", "(1024,)", "4.00K"), _row("0.bias.grad", "(1024,)", "4.00K"),
        _row("1.bias", "(1024,)", "4.00K"), _row("1.bias.grad", "(1024,)", "4.00K"),
    ]  # fmt: skip


def test_weights_in_one_storage_point_at_their_owner(capsys):
    lstm = nn.LSTM(1024, 1024)
    shapes = [tuple(parameter.shape) for parameter in lstm.parameters()]
    flat = torch.zeros(sum(parameter.numel() for parameter in lstm.parameters()))  # as cuDNN lays them out
    at = 0
    for parameter in lstm.parameters():
        parameter.data = flat[at : at + parameter.numel()].view(parameter.shape)
        at += parameter.numel()
    del flat, parameter
    rows = _printed(ClassicMemReporter(lstm), capsys, [str(shape) for shape in shapes], verbose=True)
    assert rows == [
        _row("weight_ih_l0", "(4096, 1024)", "32.03M"),
        _row("weight_hh_l0(->weight_ih_l0)", "(4096, 1024)", "0.00B"),
        _row("bias_ih_l0(->weight_ih_l0)", "(4096,)", "0.00B"),
        _row("bias_hh_l0(->weight_ih_l0)", "(4096,)", "0.00B"),
    ]
    plain = _printed(ClassicMemReporter(lstm), capsys, [str(shapes[1])])
    assert plain[1] == _row("weight_hh_l0", "(4096, 1024)", "0.00B")


def test_the_failed_example_has_its_buffer(capsys):
    linear, given = nn.Linear(1024, 1024), torch.Tensor(512, 1024)
    result = linear(given * (given + 2)).mean()
    rows = _printed(ClassicMemReporter(linear), capsys, ("(512, 1024)",))
    assert [row[60:].strip() for row in rows] == ["2.00M", "2.00M"]
    # Before torch 2.10 it is found as a Python object that autograd holds, without the node's name.
    assert rows[1].startswith("AddmmBackward0.mat1" if walk.sees_without_unpacking() else "Tensor")
    del result


def test_states_of_an_optimizer_that_was_added_have_names(capsys):
    linear = nn.Linear(600, 700)
    optimizer = torch.optim.Adam(linear.parameters())
    linear(torch.randn(2, 600)).sum().backward()
    optimizer.step()
    reporter = ClassicMemReporter(linear)
    reporter.add_optimizer(optimizer)
    names = [row[:40].rstrip() for row in _printed(reporter, capsys, ("(700, 600)",))]
    assert names == ["weight", "weight.grad", "Adam.weight.exp_avg", "Adam.weight.exp_avg_sq"]


def test_on_a_card_sizes_are_rounded_and_the_allocator_is_quoted():
    def on_card(address, nbytes, name, category, number):
        look = TensorView(
            name, category, "Tensor", (nbytes // 4,) if nbytes > 4 else (), "float32", nbytes // 4, number=number
        )
        return Holding("cuda:0", Place.memory, nbytes, False, address, None, [look])

    found = [
        on_card(1024, 4096, "bias", Category.parameter, 1),
        on_card(8192, 4, "loss in main()", Category.variable, 2),
    ]
    blocks = SegmentBlocks((SegmentBlock(1024, 4096, 4096), SegmentBlock(8192, 512, 4), SegmentBlock(9216, 1024, 1000)))
    report = TensorReport((identity.with_blocks("cuda:0", found, blocks),))
    assert text(report, {"bias"}).splitlines() == [
        HEADER, RULE, "Storage on cuda:0", _row("bias", "(1024,)", "4.00K"), _row("Tensor0", "(1,)", "512.00B"), RULE,
        "Total Tensors: 1025 \tUsed Memory: 4.50K", "The allocated memory on cuda:0: 5.50K",
        "Memory differs due to the matrix alignment or invisible gradient buffer tensors", RULE,
    ]  # fmt: skip
    assert text(report, set(), device="cpu").splitlines() == [HEADER]


def test_sizes_have_two_decimals_and_a_letter():
    assert [classic_size(one) for one in (0, 512, 1024, 4 << 20, 3 << 30)] == [
        "0.00B",
        "512.00B",
        "1.00K",
        "4.00M",
        "3.00G",
    ]
