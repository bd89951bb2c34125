"""`hiwater estimate` from end to end: what it prints, its exit codes, and what it says to wrong input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import schemas
from children import run_hiwater
from cuda_double import installed
from hiwater.cli import main
from hiwater.contrib.torch.estimate import api, processes

SCORE = Path(__file__).parents[2] / "benchmarks" / "estimate_score"
SCRIPT = """
import torch
from torch import nn

assert __name__ != "__main__"
print("a word of the program's own")
not_a_function = 3

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        return self.linear(x).relu()

def build(batch_size=8):
    net = Net().cuda()
    inputs = torch.randn(batch_size, 256, device="cuda")
    return net, inputs, torch.optim.Adam(net.parameters()), lambda out: out.square().mean()

def without_batch():
    return Net(), torch.randn(2, 256)

def wrong():
    return Net()

def three():
    return Net(), torch.randn(2, 256), 3

def reads(batch_size=1):
    return (lambda x: print(x.argmax().item())), torch.randn(batch_size)

def recurrent(batch_size=1):
    net = nn.LSTM(64, 64, batch_first=True, proj_size=32)
    return net, torch.randn(batch_size, 16, 64), None, lambda out: out[0].sum()

def dies_of_half(batch_size=8):
    if batch_size == 4:
        import os
        os._exit(3)
    return build(batch_size)

def fails():
    raise ValueError("no such data")
"""


@pytest.fixture
def forked(monkeypatch):
    """The worker in a fork of this process instead of a new interpreter, which takes seconds to load torch."""
    pytest.importorskip("torch")
    from hiwater.contrib.torch.estimate import worker

    def ask(target, request):
        kind, path, function = processes.split_target(target)
        request = request | {"kind": kind, "path": path, "function": function}
        return api._ask_copy(lambda: worker._made_by(request), request)

    monkeypatch.setattr(api, "ask_interpreter", ask)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """train.py in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def said(script, forked, capfd):
    """Runs the command, and returns what it printed."""

    def run(*words, exits):
        assert main(["estimate", *words]) == exits
        return capfd.readouterr().out

    return run


# With torch


def test_a_figure_that_is_known_to_be_too_low_has_an_exit_code_of_its_own(said):
    told = json.loads(said("train.py:recurrent", "--format", "json", exits=3))
    assert told["fits"] is None and "LSTM" in told["low_because"][0] and told["margin_bytes"] > 0
    said("train.py:recurrent", "-d", "cpu", exits=0)
    said("train.py:recurrent", "-d", "513MiB", exits=1)
    found = said("train.py:recurrent", "-d", "600MiB", "--largest-batch", exits=3)
    assert found.startswith("unknown: no batch above ")


def test_text_names_the_verdict_the_peak_and_what_is_not_counted(said):
    text = said("train.py:build", "-d", "T4", exits=0)
    assert "fits on NVIDIA T4 16GB" in text
    for word in (
        "optimizer state", "linear", "Net.forward", "peak of step", "not counted", "estimated, not measured",
        "(assumed)",
    ):  # fmt: skip
        assert word in text


def test_json_is_as_its_schema_says_and_a_module_is_found(script):
    """By a process of the command, and the new interpreter that it starts."""
    pytest.importorskip("torch")
    words = ("-m", "train:build", "--batch", "4", "--format", "json", "-d", "600MiB")
    done = run_hiwater("estimate", *words, folder=script.parent, check=True)
    assert "word of the program" in done.stderr and "Traceback" not in done.stderr
    said = json.loads(done.stdout)
    schemas.check(said, "estimate")
    assert (said["batch_size"], said["fits"], said["device"]) == (4, True, "600MiB")
    assert said["at_peak"]["categories"]["inputs"] == 4 * 256 * 4


def test_a_change_that_fails_does_not_lose_the_others(said):
    told = json.loads(said("train.py:dies_of_half", "--try", "all", "--format", "json", exits=0))
    schemas.check(told, "estimate")
    checkpointing, bf16, optimizer, batch = told["tries"]
    assert "does not know the model's blocks" in checkpointing["problem"]
    assert "died with exit code 3" in batch["problem"] and batch["peak_allocated_bytes"] is None
    for one in (bf16, optimizer):
        assert one["difference_bytes"] == one["peak_allocated_bytes"] - told["peak_allocated_bytes"]
        assert one["fits"] and one["change"] and one["price"]
    shown = said("train.py:build", "--batch", "512", "--try", "batch,checkpointing", exits=0).splitlines()
    assert "forward" in shown[1] or "backward" in shown[1]
    assert [line for line in shown if "batch of 256 instead of 512" in line and " -" in line and " yes " in line]
    assert [line for line in shown if "checkpointing" in line and "not tried" in line]


def test_what_does_not_fit_exits_with_one(said):
    text = said("train.py:build", "--batch", "4096", "-d", "600MiB", exits=1)
    assert "does not fit on 600MiB" in text and "missing" in text


def test_the_largest_batch_as_a_page(said):
    words = ("--largest-batch", "--at-most", "64", "--format", "html", "-o", "page.html", "-d", "4GiB")
    said("train.py:build", *words, exits=0)
    text = Path("page.html").read_text()
    assert "largest batch that fits: 64 and more would" in text
    assert "http" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("target", "options", "code", "message"),
    [
        ("train.py:gone", (), 127, "has no 'gone'; name one of Net, build"),
        ("train.py:not_a_function", (), 126, "is a int and cannot be called"),
        ("train.py:wrong", (), 2, "wrong\\(\\) returns a Net; return \\(module, inputs\\)"),
        ("train.py:three", (), 2, "returns a int where an optimizer or a loss was expected"),
        ("train.py:without_batch", ("--batch", "3"), 2, "takes no batch_size"),
        ("train.py:reads", ("--mode", "inference"), 126, "train.py:32 reads a tensor's value .*; keep it out"),
        ("train.py:fails", (), 126, "failed at .*train.py:45 with ValueError: no such data"),
    ],
)
def test_wrong_functions_get_one_line_and_a_way_out(script, forked, capfd, target, options, code, message):
    assert main(["estimate", target, *options]) == code
    said = [line for line in capfd.readouterr().err.splitlines() if "hiwater:" in line]
    assert len(said) == 1
    assert re.search(message, said[0])


def test_a_row_has_the_peaks_of_a_card_beside_the_estimate(script, forked, monkeypatch):
    """Measured over the simulated card, on which no kernel runs."""
    torch = pytest.importorskip("torch")
    from hiwater.contrib.torch.estimate import on_card, worker

    def step(size):
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(size, stream=0))

    def ask(target, request):
        if request["task"] != "measure":
            return estimate(target, request)
        with installed():
            return on_card.measured(lambda: worker.made_by_calling(lambda: (step, 40 << 20)), request)

    estimate = api.ask_interpreter
    monkeypatch.setattr(api, "ask_interpreter", ask)
    assert main(["estimate", "train.py:build", "--mode", "inference", "--record-row", "row.json"]) == 0
    document = json.loads(Path("row.json").read_text())
    row = document["rows"]["build"]
    assert (row["allocated"], row["built_allocated"], row["end_allocated"]) == (40 << 20, 0, 0)
    assert row["reserved"] == row["end_reserved"] == 40 << 20
    assert (row["model"], row["mode"], row["steps"]) == ("function", "inference", 3)
    alone = api.estimate("train.py:build", mode="inference")
    assert row["estimated_allocated"] == alone.peak_allocated_bytes
    others = json.loads((SCORE / "measured.json").read_text("utf-8"))
    assert row.keys() > others[0]["rows"]["adamw"].keys()
    assert document["about"].keys() > others[0]["about"].keys()


def test_without_a_card_no_row_is_written(script, forked, capfd):
    assert main(["estimate", "train.py:build", "--record-row", "row.json"]) == 125
    assert "torch finds no card on this machine" in capfd.readouterr().err
    assert not (script.parent / "row.json").exists()


# Without it: all this is told before anything is started


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train.py"], 2, "is not the name of a function"),
        (["train.py:"], 2, "is not the name of a function"),
        (["train.py:build", "-d", "Voodoo 2"], 2, "neither a card"),
        (["train.py:build", "--batch", "0"], 2, "not a batch"),
        (["train.py:build", "--batch", "1", "--largest-batch"], 2, "leave out one"),
        (["train.py:build", "--record-row", "row.json", "-d", "T4"], 2, "leave out --device"),
        (["train.py:build", "--try", "bf16", "--largest-batch"], 2, "leave out one"),
        (["train.py:build", "--try", "bf16+luck"], 2, "'luck' is not a change to try; choose from checkpointing, bf16"),
        (["train.py:build", "--largest-batch", "-d", "cpu"], 2, "needs a card"),
        (["train.py:build", "--largest-batch", "--multiple-of", "0"], 2, "no multiple"),
        (["train.py:build", "--context", "80GiB", "-d", "80GiB"], 2, "no room"),
    ],
)
def test_wrong_requests_start_nothing(words, code, message, capfd, monkeypatch):
    monkeypatch.setattr(api, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("an interpreter was started"))
    assert main(["estimate", *words]) == code
    assert message in capfd.readouterr().err


def test_without_torch_it_says_what_to_install(capfd, monkeypatch):
    monkeypatch.setattr(api, "find_spec", lambda name: None)
    assert main(["estimate", "train.py:build"]) == 125
    assert "pip install 'hiwater[torch]'" in capfd.readouterr().err


def test_a_missing_file_and_an_unwritable_output(script, forked, capfd):
    assert main(["estimate", "gone.py:build"]) == 127
    assert "there is no file" in capfd.readouterr().err
    assert (
        main(["estimate", "train.py:without_batch", "--mode", "inference", "-o", os.path.join("no", "folder")]) == 125
    )
    assert "cannot be written" in capfd.readouterr().err


def test_looking_costs_no_torch():
    code = (
        "import sys, hiwater, hiwater.contrib.torch, hiwater.contrib.torch.estimate, "
        "hiwater.contrib.torch.cli.estimate; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
