"""What cuDNN asks for: recurrent networks against requests that were measured, and the bound of convolutions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402
from hiwater.contrib.torch.estimate.recurrent import Network  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]

# Kind, inputs, hidden, layers, directions, batch, length, type, dropout; then the bytes of reserve, workspace of
# inference and workspace of training that torch 2.11 requested for cuDNN 9.19 on an H100.
MEASURED = [
    ("gru", 128, 384, 1, 1, 4, 100, "float32", 0.0, 3686656, 13441312, 13646112),
    ("gru", 128, 256, 2, 1, 32, 64, "float32", 0.1, 27328768, 29295104, 31392256),
    ("gru", 80, 300, 1, 2, 20, 35, "bfloat16", 0.0, 5040256, 23465632, 23465632),
    ("gru", 128, 256, 2, 2, 32, 64, "float32", 0.0, 54526208, 67764736, 68813312),
    ("gru", 300, 64, 1, 1, 20, 256, "float32", 0.0, 7864576, 35804576, 49413536),
    ("gru", 256, 128, 2, 1, 1, 64, "float32", 0.2, 427264, 18354464, 18553120),
    ("gru", 40, 64, 1, 2, 8, 64, "float16", 0.0, 786688, 18481472, 18526528),
    ("gru", 100, 100, 2, 2, 20, 35, "bfloat16", 0.2, 3675264, 36086848, 36226848),
    ("lstm", 1024, 1024, 1, 1, 8, 64, "float32", 0.0, 10486016, 54853952, 54886720),
    ("lstm", 80, 1500, 2, 1, 4, 50, "bfloat16", 0.2, 6637760, 75009504, 75609504),
    ("lstm", 300, 300, 1, 2, 64, 40, "bfloat16", 0.0, 15360256, 43619584, 43619584),
    ("lstm", 512, 650, 2, 2, 4, 256, "float16", 0.0, 29286656, 85854496, 85854496),
    ("lstm", 1024, 128, 1, 1, 32, 100, "float16", 0.0, 4096256, 33391104, 41615872),
    ("lstm", 100, 100, 2, 1, 1, 256, "float32", 0.2, 1129856, 19676704, 19779104),
    ("lstm", 512, 64, 1, 2, 32, 200, "float32", 0.0, 16384256, 80364032, 126304768),
    ("lstm", 768, 64, 3, 2, 32, 35, "float32", 0.2, 9820416, 65307136, 79839744),
    ("rnn_tanh", 256, 512, 1, 1, 4, 35, "float32", 0.0, 286976, 10703136, 11436320),
    ("rnn_tanh", 256, 768, 2, 1, 20, 16, "float16", 0.2, 1505536, 22040992, 23310752),
    ("rnn_tanh", 16, 1024, 1, 2, 20, 35, "float32", 0.0, 5734656, 49098912, 55205792),
    ("rnn_tanh", 768, 650, 2, 2, 8, 8, "float32", 0.0, 998656, 53012160, 54161600),
    ("rnn_relu", 40, 32, 1, 1, 16, 100, "float32", 0.0, 205056, 9891200, 11636096),
    ("rnn_relu", 300, 384, 2, 1, 1, 35, "float16", 0.0, 80896, 18081088, 18320224),
    ("rnn_relu", 40, 384, 1, 2, 16, 200, "float32", 0.0, 9830656, 77820288, 112836992),
    ("rnn_relu", 300, 256, 2, 2, 20, 256, "bfloat16", 0.2, 16384256, 59158944, 74600864),
]


def blocks(size):
    """What the allocator makes of a request."""
    return -(-size // 512)


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: "-".join(map(str, row[:9])))
def test_recurrent_networks_ask_for_what_cudnn_was_seen_to_ask_for(row):
    *sizes, dtype, dropout, reserve, inference, training = row
    network = Network(*sizes, getattr(torch, dtype), dropout)
    assert blocks(network.reserve()) == blocks(reserve)
    assert blocks(network.workspace(is_training=False)) == blocks(inference)
    assert blocks(network.workspace(is_training=True)) == blocks(training)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_weights_and_their_gradients_lie_in_one_buffer_with_room_for_biases(kind, bias):
    net = kind(64, 32, bias=bias)
    found = hiwater.contrib.torch.estimate(net, torch.randn(7, 4, 64), None, lambda out: out[0].sum(), steps=1)
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    weights = 4 * gates * 32 * (64 + 32 + 2)
    assert found.category("parameters") == blocks(weights) * 512
    assert found.low_because == []


def convolution(**options):
    return nn.Conv2d(16, 32, 3, padding=1, **options), torch.randn(8, 16, 64, 64), None, models.squares


def test_convolutions_have_a_figure_without_workspaces_and_one_with_the_largest():
    found = hiwater.contrib.torch.estimate(*convolution(), steps=1)
    copies = 4 * (8 * 16 * 64 * 64 + 16 * 32 * 9 + 8 * 32 * 64 * 64)
    assert found.most_allocated_bytes > found.peak_allocated_bytes
    assert found.most_allocated_bytes >= copies
    assert f"peak {found.peak_allocated_bytes / 2**20:.1f} MiB to {found.most_allocated_bytes / 2**20:.1f} MiB" in str(
        found
    )
    depthwise = hiwater.contrib.torch.estimate(nn.Conv2d(16, 16, 3, groups=16), *convolution()[1:], steps=1)
    assert depthwise.most_allocated_bytes is None, "torch's own kernel"
    linear = hiwater.contrib.torch.estimate(nn.Linear(8, 8), torch.randn(4, 8), None, models.squares, steps=1)
    assert linear.most_reserved_bytes is None


def test_what_fits_only_without_workspaces_is_in_doubt():
    without = hiwater.contrib.torch.estimate(*convolution(), steps=1)
    between = (without.peak_allocated_bytes + without.most_allocated_bytes) // 2
    found = hiwater.contrib.torch.estimate(*convolution(), steps=1, device=between, context=0)
    plenty = hiwater.contrib.torch.estimate(*convolution(), steps=1, device="1GiB", context=0)
    assert without.peak_reserved_bytes > between or found.fits is None
    assert plenty.fits is True and plenty.low_because == []


def test_there_is_no_bound_if_cudnn_tries_algorithms(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    found = hiwater.contrib.torch.estimate(*convolution(), steps=1, device="1GiB", context=0)
    assert found.fits is None and "cudnn.benchmark" in " ".join(found.low_because)
    linear = hiwater.contrib.torch.estimate(nn.Linear(8, 8), torch.randn(4, 8), None, models.squares, steps=1)
    assert linear.fits is True
