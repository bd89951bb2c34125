"""Lines, tensors, and memory that is lent: on a card, because the double has no kernels."""

from __future__ import annotations

from pathlib import Path

from gpu_checks.registry import MIB, Result, check

COURTESY_SHARE = 0.99


@check("the line profiler: each line of a function has what torch allocated there", needs_card=True)
def lines(_: Path) -> Result:
    """Two layers of 100 × 100 (40 KiB each with torch's rounding), and the first output."""
    import torch

    from hiwater.contrib.torch import LineProfiler

    def work() -> None:
        one = torch.nn.Linear(100, 100).cuda()
        two = torch.nn.Linear(100, 100).cuda()
        two(one(torch.ones(512, 100, device="cuda"))).sum().backward()

    torch.ones(1, device="cuda")
    with LineProfiler(work) as profiler:
        work()
    text = str(profiler.display())
    return Result(text.count("40.0") >= 2 or text.count("40.00K") >= 2, {"table": text[-800:]})


@check("MemReporter: each byte that torch allocated has an owner or a block", needs_card=True)
def tensors(_: Path) -> Result:
    """After a step of a convolution net with AdamW."""
    import torch
    from torch import nn

    import hiwater

    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.LazyLinear(100)).cuda()
    given = torch.randn(16, 3, 64, 64, device="cuda")
    optimizer = torch.optim.AdamW((model(given), model.parameters())[1])
    model(given).sum().backward()
    optimizer.step()
    loss = model(given).sum()
    sums = hiwater.contrib.torch.MemReporter(model).data(0).device("cuda:0").identity
    figures = {
        "allocated": sums.allocated_bytes, "torch's own": torch.cuda.memory_allocated(0), "residual": sums.residual_bytes,
        "not owned": sums.unowned_bytes, **{str(kind): size for kind, size in sums.by_category.items()},
    }  # fmt: skip
    del loss
    return Result(sums.residual_bytes == 0 and sums.allocated_bytes == torch.cuda.memory_allocated(0), figures)


@check(
    "Courtesy: at least 99 % of what was allocated is given back to the driver, and returns unchanged",
    seconds=60,
    needs_card=True,
)
def courtesy(_: Path) -> Result:
    """As the driver sees it."""
    import torch

    import hiwater

    kept = [torch.full((256 * MIB,), number, dtype=torch.uint8, device="cuda") for number in range(8)]
    free_before = torch.cuda.mem_get_info()[0]
    lent = hiwater.contrib.torch.Courtesy()
    lent.yield_memory()
    given = torch.cuda.mem_get_info()[0] - free_before
    lent.restore()
    whole = all(bool((tensor == number).all()) for number, tensor in enumerate(kept))
    share = given / sum(tensor.nbytes for tensor in kept)
    return Result(
        whole and share >= COURTESY_SHARE, {"bytes given back": given, "share": round(share, 4), "unchanged": whole}
    )
