"""Estimates against programs that ran on real cards: rows of benchmarks/estimate_score that need no download."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import estimate_models as models  # noqa: E402
import hiwater.contrib.torch  # noqa: E402

SCORE = Path(__file__).parents[2] / "benchmarks" / "estimate_score"
MEASURED = json.loads((SCORE / "measured.json").read_text("utf-8"))
ON_H200 = next(each["rows"] for each in MEASURED if each["about"]["card"] == "NVIDIA H200")
PUBLISHED = json.loads((SCORE / "published.json").read_text("utf-8"))
SMALL = [name for name in models.MODELS if name != "lstm"]
# Before 2.7 cuBLASLt kept no workspace, and older optimizers had other temporaries.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.skipif(torch.__version__ < "2.9", reason="the rows were measured with torch 2.11"),
    pytest.mark.usefixtures("older_objects_are_hidden"),
]


def built_on_card(build, **options):
    """The estimate of what a function builds: a fork, so that no interpreter has to load torch."""
    return hiwater.contrib.torch.estimate.largest_batch(lambda batch_size: build(), largest=1, **options).estimate


def programs_of(name):
    specification = importlib.util.spec_from_file_location(name, SCORE / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SMALL)
def test_small_programs_need_what_a_real_card_gave_to_the_byte(name, monkeypatch):
    # As torch 2.11, which had measured them, does by itself.
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")

    def build():
        net, x, optimizer, loss = models.MODELS[name]()
        return net.cuda(), x.detach().cuda().requires_grad_(x.requires_grad), optimizer, loss

    found, real = built_on_card(build, device="H200"), ON_H200[f"small_{name}"]
    assert found.peak_allocated_bytes == real["allocated"]
    assert found.peak_reserved_bytes == real["reserved"]
    assert found.steps[0]["peak_allocated_bytes"] == real["built_allocated"]
    assert found.steps[0]["peak_reserved_bytes"] == real["built_reserved"]


@pytest.mark.parametrize("name", ["lstm", "small_lstm"])
def test_the_weights_of_recurrent_networks_come_to_the_card_one_by_one(name):
    found, real = hiwater.contrib.torch.estimate(f"{SCORE / 'programs.py'}:{name}", device="H200"), ON_H200[name]
    assert found.peak_allocated_bytes == real["allocated"]
    assert found.peak_reserved_bytes == real["reserved"]


def test_a_change_that_is_tried_needs_what_the_changed_program_gave_on_a_real_card(monkeypatch):
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
    found = hiwater.contrib.torch.estimate(f"{SCORE / 'programs.py'}:adamw", device="H200", tries=["optimizer"])
    assert found.peak_allocated_bytes == ON_H200["adamw"]["allocated"]
    (fused,) = found.tries
    real = ON_H200["adamw_fused"]
    assert (fused["peak_allocated_bytes"], fused["peak_reserved_bytes"]) == (real["allocated"], real["reserved"])


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED if row["metric"] == "allocated"], ids=lambda row: row["program"]
)
def test_published_peaks_of_kernels_are_met(row):
    size, mebibytes = next(iter(row["mebibytes"].items()))
    # Of the smallest, the published figure is 11 MiB less than its step takes.
    if row["program"] == "heads_and_divergence":
        size, mebibytes = list(row["mebibytes"].items())[1]
    build = getattr(programs_of("kernels"), row["program"])
    found = built_on_card(lambda: build(int(size)), device=row["card"], steps=1)
    assert found.peak_allocated_bytes == pytest.approx(mebibytes * 2**20, rel=1e-6)


def test_tables_of_the_documentation_have_every_row():
    page = (SCORE.parents[1] / "docs" / "estimate-accuracy.md").read_text("utf-8")
    shown = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("|")}
    sizes = {f"{row['program']} {int(size):,}" for row in PUBLISHED for size in row["mebibytes"]}
    assert shown >= sizes.union(*(each["rows"] for each in MEASURED))
    assert os.stat(SCORE / "measured.json").st_size < 2**15
