"""What only a real GPU can show of device meters, captures and the reconciliation. Skips itself where torch has no CUDA
device.

docs/gpu.md has the list of what was seen on a real GPU.
"""

import pytest

import hiwater
from children import run_hiwater, run_python
from hiwater.meters import devices
from hiwater.meters.devices.reconcile import UNACCOUNTED, USED

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device here"),
]

MIB = 1 << 20


def tensor(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture(autouse=True)
def initialised():
    torch.cuda.init()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.empty_cache()


def test_looking_makes_no_context():
    code = (
        "import torch, hiwater\nwith hiwater.track(meters=('gpu',)) as t: pass\n"
        "print(torch.cuda.is_initialized(), t.usage.gpu)"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.strip() == "False []"


def test_nested_scopes_have_their_own_exact_peaks():
    tensor(1)
    with hiwater.track() as outer:
        tensor(64)
        with hiwater.track() as inner:
            kept = tensor(8)
    first, second = outer.usage.gpu[0], inner.usage.gpu[0]
    assert (first.peak_above_start_bytes, first.kept_bytes, first.exact) == (64 * MIB, 8 * MIB, True)
    assert (second.peak_above_start_bytes, second.kept_bytes, second.exact) == (8 * MIB, 8 * MIB, True)
    assert first.reserved.peak_bytes >= 64 * MIB
    assert torch.cuda.max_memory_allocated() >= first.peak_bytes
    del kept


def test_the_programs_own_peak_is_what_it_would_be_without_hiwater():
    def work():
        torch.cuda.reset_peak_memory_stats()
        tensor(48)
        tensor(16)
        return torch.cuda.max_memory_allocated()

    alone = work()
    with hiwater.track():
        with hiwater.track():
            tensor(32)
        watched = work()
    assert watched == alone


def test_small_blocks_are_rounded_as_torch_rounds():
    with hiwater.track() as t:
        kept = torch.empty(1, device="cuda")
    assert t.usage.gpu[0].kept_bytes == 512
    del kept


def test_the_terms_add_up_to_what_the_driver_counts_with_little_unaccounted():
    pytest.importorskip("pynvml")
    kept = tensor(512)
    (found,) = hiwater.device_breakdown()
    if found[USED] < 0:
        pytest.skip(found.reason)
    assert found["tensors, requested"] >= 512 * MIB
    assert 0 <= found[UNACCOUNTED] < 2 << 30  # the context and its kernels
    del kept


def test_nvml_says_what_it_can():
    pytest.importorskip("pynvml")
    source = devices.backend("nvml")
    assert source.status().works, source.status().reason
    card = source.devices()[0]
    assert source.card(card).total_bytes > 1 << 30
    mine = source.process(card, has_context=True)
    assert mine.bytes > 0 or mine.reason


def test_a_recording_has_the_device(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time, torch\nheld = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
        "torch.empty(256 << 20, dtype=torch.uint8, device='cuda')\nuntil = time.time() + 1.5\n"
        "while time.time() < until:\n"
        "    torch.mm(torch.ones(64, 64, device='cuda'), torch.ones(64, 64, device='cuda'))\n"
    )
    run_hiwater("run", "-o", "run.hiw", program, folder=tmp_path, check=True)
    (device,) = hiwater.open(tmp_path / "run.hiw").devices
    assert device.name == "cuda:0"
    assert device.peak_allocated_bytes == 320 * MIB
    assert device.exact
    assert len(device.at_ns) > 5


def test_jaxs_allocator_is_measured():
    jax = pytest.importorskip("jax")
    if jax.default_backend() == "cpu":
        pytest.skip("JAX has no GPU here")
    kept = jax.numpy.zeros(1024).block_until_ready()
    with hiwater.track() as t:
        more = jax.numpy.zeros((4 * MIB,), dtype=jax.numpy.uint8).block_until_ready()
    (device,) = [device for device in t.usage.gpu if device.backend == "jax"]
    assert device.kept_bytes >= 4 * MIB
    del kept, more
