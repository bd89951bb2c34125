"""Where the memory of a device is: torch's terms, the driver's figures, and what is left over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_checks.registry import IN_PLACE, MIB, Result, card_bytes, check, give, hiwater, program, take

UNACCOUNTED_SHARE = 0.01


def _wait_for_a_stream() -> object:
    """Free 40 MiB that another stream still uses; return what keeps that going."""
    if IN_PLACE:
        block = IN_PLACE[0][0].malloc(40 * MIB)
        IN_PLACE[0][0].record_stream(block, 1)
        IN_PLACE[0][0].free(block)
        return block
    import torch

    stream, tensor = torch.cuda.Stream(), torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2_000_000_000)  # about a second
    tensor.record_stream(stream)
    return stream


def _terms() -> dict[str, int]:
    import hiwater

    return {term.name: term.bytes for term in hiwater.device_breakdown()[0].terms}


@check(
    "the breakdown with memory that waits for a stream: no term below zero, and their sum is what is reserved",
    backends=("native", "expandable"),
)
def breakdown(_: Path) -> Result:
    """By a snapshot of the blocks."""
    import torch

    from hiwater.meters.devices.reconcile import OF_PROCESS

    torch.cuda.init()
    kept, using = take(5 * MIB + 1), _wait_for_a_stream()
    sizes = _terms()
    reserved = torch.cuda.memory_reserved()
    segments = [one for one in torch.cuda.memory._snapshot()["segments"] if one.get("device", 0) == 0]
    del using
    give(kept)
    of_torch = [sizes[name] for name in OF_PROCESS]
    held = min(of_torch) >= 0 and sum(of_torch) == reserved
    for segment in segments:
        segment.pop("frames", None)
        for block in segment["blocks"]:
            block.pop("frames", None)
    golden = {"terms": sizes, "reserved": reserved, "segments": segments}
    return Result(held, {"reserved": reserved, **sizes}, golden)


@check("the statistics and the breakdown with private pools (CUDA graphs)")
def pools(_: Path) -> Result:
    """And what `memory_stats` calls theirs."""
    import torch

    torch.cuda.init()
    if IN_PLACE:
        with IN_PLACE[0][0].private_pool((0, 1)):
            kept = [take(3 * MIB)]
    else:
        graph, given = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
        with torch.cuda.graph(graph):
            kept = [given * 2]
    statistics = dict(torch.cuda.memory_stats())
    terms = _terms()
    found = Result(
        terms.get("private pools", 0) >= 0,
        {"statistics": len(statistics), **terms},
        {"statistics": statistics, "terms": terms},
    )
    del kept
    return found


_FULL = """import time, torch
torch.cuda.init()
kept = torch.empty(1, device="cuda")
time.sleep(1)  # the recording's first sample: the context alone
held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range({count})]
product = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(20):
    product = product @ product
torch.cuda.synchronize()
time.sleep(2.5)  # the driver's figure is up to a second old
"""


@check("the device in a recording: at most 1 % of what the driver counts is unaccounted", needs_card=True, seconds=60)
def unaccounted(folder: Path) -> Result:
    """Half of the card is allocated, kernels and cuBLAS are loaded after the first sample."""
    from hiwater import open as open_capture

    path = program(folder, "full", _FULL.format(count=card_bytes() // (2 << 30)))
    hiwater("run", "-q", "-o", "full.hiw", path, folder=folder)
    device = next(one for one in open_capture(folder / "full.hiw").devices if one.name == "cuda:0")
    last = device.snapshots[-1]
    terms = dict(last.terms)
    used, rest = terms.get("used by this process"), terms.get("unaccounted")
    if used is None or rest is None:
        return Result(False, {"terms": terms, "reason": device.reason})
    golden = {"terms": terms, "peaks": dict(device.peaks())}
    return Result(abs(rest) <= UNACCOUNTED_SHARE * used, {"unaccounted share": round(rest / used, 5), **terms}, golden)


@check("what NVML answers and what it refuses", needs_card=True)
def nvml(_: Path) -> Result:
    """The driver's figures, with the reasons of those that are missing."""
    import torch

    from hiwater.meters import devices

    torch.cuda.init()
    source: Any = devices.backend("nvml")
    status = source.status()
    if not status.works:
        return Result(None, {"status": status.reason})
    found = {
        device.name: {
            "uuid": device.uuid,
            "card": str(source.card(device)),
            "process": str(source.process(device, has_context=True)),
            "unknown": source.unknown(device),
        }
        for device in source.devices()
    }
    return Result(True, {name: str(one)[:300] for name, one in found.items()}, found)
