"""The history of torch's allocator in a recording: that it goes on, and what it costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from gpu_checks.registry import MIB, Result, check, give, hiwater, program, take

SHARE_OF_STEP = 0.01


@check("a history that the program begins within a recording continues after it")
def history(folder: Path) -> Result:
    """Its events are there, and what hiwater makes of them has the peak that torch counts."""
    import torch

    import hiwater

    torch.cuda.init()
    with hiwater.record(folder / "run.hiw"):
        give(take(3 * MIB))
        torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
        give(take(4 * MIB))
    snapshot = torch.cuda.memory._snapshot()
    goes_on = bool(torch._C._cuda_isHistoryEnabled()) if hasattr(torch._C, "_cuda_isHistoryEnabled") else True
    events = snapshot["device_traces"][0]
    for event in events:
        event["frames"] = [{**frame, "filename": Path(frame["filename"]).name} for frame in event.get("frames", [])[:3]]
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    return Result(
        goes_on and bool(events),
        {"continues": goes_on, "events": len(events), "peak": peak},
        {"segments": snapshot["segments"], "events": events, "requested_peak": peak},
    )


def _training(width: int, rows: int) -> Callable[[], None]:
    """A step of a model: narrow, of many small allocations; wide, of which the card does most."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [module for _ in range(8) for module in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer, given = torch.optim.AdamW(model.parameters()), torch.randn(rows, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(given).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def _seconds(work: Callable[[], object], count: int) -> list[float]:
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return found


@contextmanager
def _recording(folder: Path, *, history: bool) -> Any:
    import hiwater

    path = folder / "cost.hiw"
    with hiwater.record(path, device_history=history):
        yield
    path.unlink()


def _interleaved(folder: Path, work: Callable[[], object], count: int, rounds: int = 7) -> dict[str, list[list[float]]]:
    """Seconds of each call, by rounds, without a recording, within one, and within one with device history."""
    kinds: dict[str, Callable[[], Any]] = {
        "plain": nullcontext,
        "recorded": lambda: _recording(folder, history=False),
        "with history": lambda: _recording(folder, history=True),
    }
    found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, begin in kinds.items():
            with begin():
                work()
                found[kind].append(_seconds(work, count))
    return found


@check(
    "a training step recorded, with and without device history: at most 1 % for the history where the card "
    "does the work",
    seconds=90,
    needs_card=True,
)
def step_cost(folder: Path) -> Result:
    """Interleaved rounds; the median of the ratios of each round's median, and the longest step of each kind. A step of
    2 ms that waits for Python at each of its 130 allocations is the worst case."""
    busy, figures = _ratios(folder, _training(4096, 4096), 10)
    _, small = _ratios(folder, _training(512, 64), 100)
    share = busy["with history"] - busy["recorded"]
    return Result(share <= SHARE_OF_STEP, figures | {f"small {name}": value for name, value in small.items()})


def _ratios(folder: Path, step: Callable[[], None], count: int) -> tuple[dict[str, float], dict[str, Any]]:
    for _ in range(20):
        step()
    rounds = _interleaved(folder, step, count)
    medians = {kind: [statistics.median(times) for times in found] for kind, found in rounds.items()}
    plain = medians.pop("plain")
    ratios = {
        kind: statistics.median(one / other for one, other in zip(found, plain, strict=True))
        for kind, found in medians.items()
    }
    figures: dict[str, Any] = {"plain step, ms": round(1e3 * statistics.median(plain), 3)}
    figures |= {f"{kind}: ratio": round(ratio, 4) for kind, ratio in ratios.items()}
    figures |= {f"{kind}: longest step, ms": round(1e3 * max(map(max, found)), 2) for kind, found in rounds.items()}
    return ratios, figures


@check(
    "an allocation recorded, with and without device history, in ns; and the RAM of an event",
    needs_card=True,
    seconds=60,
)
def allocation_cost(folder: Path) -> Result:
    """A block that torch has cached is taken and given back."""
    import hiwater

    def work() -> None:
        for _ in range(1000):
            give(take(MIB))

    work()
    rounds = _interleaved(folder, work, 5)
    figures: dict[str, Any] = {
        f"{kind}, ns": round(1e6 * statistics.median(statistics.median(times) for times in found))
        for kind, found in rounds.items()
    }
    for kind, history in (("recorded", False), ("with history", True)):
        with hiwater.track() as scope, _recording(folder, history=history):
            for _ in range(50):
                work()
        figures[f"{kind}: RAM for 100,000 events"] = scope.usage.resident.peak_above_start_bytes
    return Result(None, figures)


_BREAKS = """import sys, torch, torch._dynamo
def work(given):
    kept = torch.empty_like(given)
    return (given @ given + kept.zero_()).relu()
torch.compile(work, backend=sys.argv[1])(torch.ones(64, 64, device="cuda"))
print(sum(torch._dynamo.utils.counters["graph_break"].values()), int(work(torch.ones(8, 8, device="cuda")).sum()))
"""


@check(
    "torch.compile within a recording: as many graph breaks as without, the same result", seconds=120, needs_card=True
)
def compiled(folder: Path) -> Result:
    """With the eager backend and with inductor."""
    import subprocess
    import sys

    path, found = program(folder, "compiled", _BREAKS), {}
    for backend in ("eager", "inductor"):
        alone = subprocess.run(
            [sys.executable, path, backend], capture_output=True, text=True, check=False, timeout=100
        ).stdout.strip()
        inside = hiwater("run", "-q", "-o", f"{backend}.hiw", path, backend, folder=folder).stdout.strip()
        found[backend] = f"{alone} / {inside}", alone == inside
    return Result(all(same for _, same in found.values()), {name: text for name, (text, _) in found.items()})
