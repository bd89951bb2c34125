"""Lines, tensors, and memory that is lent."""

from __future__ import annotations

from pathlib import Path

from gpu_checks.registry import MIB, Result, check, give, take

COURTESY_SHARE = 0.99


@check("the line profiler: what each line of a function keeps, and needs for a moment")
def lines(_: Path) -> Result:
    """One line keeps 40 KiB, the next needs 1 MiB for a moment."""
    import torch

    from hiwater.contrib.torch import LineProfiler

    kept = []

    def work() -> None:
        kept.append(take(40 << 10))
        give(take(MIB))

    torch.cuda.init()
    with LineProfiler(work) as profiler:
        work()
    (table,) = profiler.display(work, columns=["increment", "peak_above_start"]).to_dict()["functions"]
    first = min(table["lines"])
    found = {number - first: [row["increment"], row["peak_above_start"]] for number, row in table["lines"].items()}
    return Result(found[1][0] == 40 << 10 and found[2] == [0, MIB], {"increment and peak above start, by line": found})


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
    allocated = torch.cuda.memory_allocated(0)
    figures = {
        "allocated": sums.allocated_bytes, "torch's own": allocated, "residual": sums.residual_bytes,
        "not owned": sums.unowned_bytes, **{str(kind): size for kind, size in sums.by_category.items()},
    }  # fmt: skip
    del loss
    return Result(sums.residual_bytes == 0 and sums.allocated_bytes == allocated, figures)


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
