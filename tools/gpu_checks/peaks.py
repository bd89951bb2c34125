"""Peaks of scopes against torch's own figures."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from gpu_checks.registry import MIB, Result, check, give, take

PROGRAMS, STEPS = 20, 200


def _one(seed: int) -> list[str]:
    """A random program of allocations within nested and overlapping scopes; each scope whose figures are not
    torch's."""
    import torch

    import hiwater

    choose = random.Random(seed)  # noqa: S311 - a program that can be repeated
    blocks: list[int] = []
    scopes: list[tuple[Any, list[int]]] = []  # each with what torch had allocated after each step
    wrong = []

    def end(place: int) -> None:
        scope, seen = scopes.pop(place)
        scope.__exit__(None, None, None)
        figures = scope.usage.gpu[0]
        found, expected = (figures.start_bytes, figures.peak_bytes, figures.end_bytes), (seen[0], max(seen), seen[-1])
        if found != expected or not figures.exact:
            wrong.append(f"seed {seed}: {found}, torch has {expected}, exact {figures.exact}")

    for _ in range(STEPS):
        what = choose.random()
        if what < 0.1 and len(scopes) < 5:
            scope = hiwater.track()
            scope.__enter__()
            scopes.append((scope, [torch.cuda.memory_allocated()]))
        elif what < 0.2 and scopes:
            end(choose.randrange(len(scopes)))  # any of them: scopes overlap
        elif what < 0.6 or not blocks:
            blocks.append(take(choose.randrange(1, 8 * MIB)))
        else:
            give(blocks.pop(choose.randrange(len(blocks))))
        for _, seen in scopes:
            seen.append(torch.cuda.memory_allocated())
    while scopes:
        end(choose.randrange(len(scopes)))
    for block in blocks:
        give(block)
    return wrong


@check(
    "nested and overlapping scopes: start, peak and end against torch.cuda.memory_allocated() after each step",
    seconds=60,
)
def scopes(_: Path) -> Result:
    """Random programs; and the program's own peak is what it would be without them."""
    import torch

    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    give(take(100 * MIB))
    wrong = [line for seed in range(PROGRAMS) for line in _one(seed)]
    own = torch.cuda.max_memory_allocated()
    figures = {"programs": PROGRAMS, "steps of each": STEPS, "wrong": len(wrong), "the program's own peak": own}
    return Result(not wrong and own >= 100 * MIB, figures | ({"such as": wrong[0]} if wrong else {}))


OTHER_BACKENDS = ("cudaMallocAsync", "pluggable")


@check(
    "a scope over an allocator without statistics: no error, and a reason for what is not measured",
    backends=OTHER_BACKENDS,
)
def track(_: Path) -> Result:
    """The program must see no error."""
    import torch

    import hiwater

    torch.cuda.init()
    with hiwater.track() as scope:
        give(take(3 * MIB))
    gpu = [f"{one.name}: peak {one.peak_bytes}" for one in scope.usage.gpu]
    figures = {"measured": str(gpu), "unmeasured": str(scope.usage.unmeasured)}
    return Result(bool(gpu or scope.usage.unmeasured), figures)


@check("the peak of cudaMallocAsync after a reset", backends=("cudaMallocAsync",), needs_card=True)
def reset(_: Path) -> Result:
    """Whether the driver's high-water mark starts again."""
    import torch

    torch.cuda.init()
    give(take(64 * MIB))
    torch.cuda.reset_peak_memory_stats()
    give(take(8 * MIB))
    return Result(None, {"peak after 64 MiB, a reset and 8 MiB": torch.cuda.max_memory_allocated()})


@check("a scope around the replay of a CUDA graph", needs_card=True)
def replay(_: Path) -> Result:
    """A replay allocates nothing: its memory was taken when the graph was captured."""
    import torch

    import hiwater

    graph, given = torch.cuda.CUDAGraph(), torch.ones(MIB, device="cuda")
    with torch.cuda.graph(graph):
        made = given * 2
    with hiwater.track() as scope:
        graph.replay()
        torch.cuda.synchronize()
    del made
    above = scope.usage.gpu[0].peak_above_start_bytes
    return Result(above == 0, {"peak above start": above})
