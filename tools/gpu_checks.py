#!/usr/bin/env python3
"""Checks and measurements of what hiwater does with a GPU: `gpu_checks.py NAME RESULT` runs one in this process and writes RESULT, a JSON file.

With `--double` they run over the simulated `torch._C` of `tests/helpers/cuda_double`, which shows that they work; what needs a card is left out. A result
has `held` (None where nothing can fail), `figures` for the table, and `golden`: data for tests that run without a card. `on_a_gpu.py` runs them all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent
MIB = 1 << 20
IN_PLACE: list[Any] = []  # the double; nothing on a card
INITS = 12


@dataclass
class Result:
    """What a check found."""

    held: bool | None
    figures: dict[str, Any] = field(default_factory=dict)
    golden: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A check: its subject in words, how long it may take, torch's allocator for it, and whether it needs a card."""

    run: Callable[[], Result]
    subject: str
    seconds: float
    backend: str
    needs_card: bool


CHECKS: dict[str, Check] = {}


def check(
    subject: str, *, seconds: float = 30, backends: tuple[str, ...] = ("native",), needs_card: bool = False
) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Have a function among the checks, once for each backend; the first stands under the function's own name."""

    def add(run: Callable[[], Result]) -> Callable[[], Result]:
        for backend in backends:
            name = run.__name__ if len(backends) == 1 else f"{run.__name__}-{backend}"
            CHECKS[name] = Check(run, subject, seconds, backend, needs_card)
        return run

    return add


# --- memory, on the double and on a card ---------------------------------------------------------------------------------------


def take(size: int) -> int:
    """Allocate on the current device without a tensor; return the address."""
    import torch

    return int(torch.cuda.caching_allocator_alloc(size, stream=0))


def give(address: int) -> None:
    """Free what `take` allocated."""
    import torch

    torch.cuda.caching_allocator_delete(address)


def wait_for_a_stream() -> object:
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


def refusal() -> Exception:
    """What torch raises when nothing is left."""
    import torch

    found: Exception | None = None
    try:
        take(1 << 45)
    except torch.cuda.OutOfMemoryError as error:
        found = error
    assert found is not None, "a petabyte was not refused"
    return found


# --- the checks: 1 to 9 of what was found by reading torch's sources -----------------------------------------------------------


def initialise(number: int) -> int:
    """Begin a recording's history within CUDA's initialisation; 0 when it is on for the first allocation, 3 when it is not."""
    import torch

    from hiwater.recording.device_histories import DeviceHistories

    histories = DeviceHistories()
    delay = 1e-5 * 2.5**number  # from before the initialisation's first line to after its last

    def begin(*_: object) -> None:
        histories.begin()
        signal.setitimer(signal.ITIMER_REAL, delay)

    signal.signal(signal.SIGALRM, begin)
    signal.setitimer(signal.ITIMER_REAL, delay)
    torch.cuda.init()
    signal.setitimer(signal.ITIMER_REAL, 0)
    histories.begin()
    take(5 * MIB)
    actions = [event["action"] for event in torch.cuda.memory._snapshot()["device_traces"][0]]
    return 0 if "alloc" in actions else 3


@check("1: a recording begins within torch's initialisation of CUDA", seconds=150)
def init() -> Result:
    """Each initialisation in a process of its own, with a limit of time."""
    double = ["--double"] if IN_PLACE else []
    endings = []
    for number in range(INITS):
        words = [sys.executable, __file__, *double, "--initialise", str(number)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
            endings.append(f"{done.returncode} {done.stderr[-200:]}".strip())
        except subprocess.TimeoutExpired:
            endings.append("hang")
    return Result(set(endings) == {"0"}, {"initialisations": INITS, "exit codes": ", ".join(sorted(set(endings)))})


LAST_REQUEST = (1 << 45) + (1 << 40)
OTHER_BACKENDS = ("cudaMallocAsync", "pluggable")


@check("2: a scope over an allocator without statistics", backends=OTHER_BACKENDS)
def track() -> Result:
    """The program must see no error; what is not measured has a reason."""
    import torch

    import hiwater

    torch.cuda.init()
    with hiwater.track() as scope:
        give(take(3 * MIB))
    gpu = [f"{one.name}: peak {one.peak_bytes}" for one in scope.usage.gpu]
    return Result(
        bool(gpu or scope.usage.unmeasured), {"measured": str(gpu), "unmeasured": str(scope.usage.unmeasured)}
    )


@check("3: a guard over an allocator without history", backends=OTHER_BACKENDS)
def guard() -> Result:
    """Entered before the first use of CUDA and after it."""
    import torch

    import hiwater

    for _ in range(2):
        with hiwater.contrib.torch.guard(os.path.join(tempfile.mkdtemp(), "oom"), quiet=True):
            torch.cuda.init()
            give(take(MIB))
    return Result(True)


def _terms() -> dict[str, int]:
    import hiwater

    return {term.name: term.bytes for term in hiwater.device_breakdown()[0].terms}


@check("4: the terms of a device with memory that awaits its free")
def breakdown() -> Result:
    """Torch's terms are not negative, and sum to what is reserved."""
    import torch

    from hiwater.meters.devices.reconcile import OF_PROCESS

    torch.cuda.init()
    kept, using = take(5 * MIB + 1), wait_for_a_stream()
    sizes = _terms()
    reserved = torch.cuda.memory_reserved()
    stats = {name: value for name, value in torch.cuda.memory_stats().items() if name.endswith("all.current")}
    del using
    give(kept)
    of_torch = [sizes[name] for name in OF_PROCESS]
    held = min(of_torch) >= 0 and sum(of_torch) == reserved
    return Result(held, {"reserved": reserved, **sizes}, {"terms": sizes, "memory_stats": stats})


@check("5: names of statistics of private pools")
def pools() -> Result:
    """CUDA graphs' pools, and what `memory_stats` calls theirs."""
    import torch

    torch.cuda.init()
    if IN_PLACE:
        with IN_PLACE[0][0].private_pool((0, 1)):
            kept = [take(3 * MIB)]
    else:
        graph, given = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
        with torch.cuda.graph(graph):
            kept = [given * 2]
    names = sorted(torch.cuda.memory_stats())
    terms = _terms()
    found = Result(terms.get("private pools", 0) >= 0, {"names": len(names), **terms}, {"names": names, "terms": terms})
    del kept
    return found


@check("6: a limit set by set_per_process_memory_fraction")
def fraction() -> Result:
    """The report of a refusal calls it a limit."""
    import torch

    import hiwater

    torch.cuda.init()
    total = torch.cuda.get_device_properties(0).total_memory if not IN_PLACE else IN_PLACE[0].cards[0].total_bytes
    torch.cuda.set_per_process_memory_fraction(0.1)
    kept, watched = (
        [take(total // 20)],
        hiwater.contrib.torch.guard(os.path.join(tempfile.mkdtemp(), "oom"), quiet=True),
    )
    try:
        with watched:
            kept.append(take(total // 10))
    except torch.cuda.OutOfMemoryError as error:
        said = watched.report.to_dict()
        verdict = said["verdict"]
        return Result(
            verdict["kind"] == "limit",
            {"verdict": str(verdict), "message": str(error)[:300]},
            {"report": said, "message": str(error)},
        )
    return Result(False, {"verdict": "nothing was refused"})


@check("7: the report is of the refusal that ended the program, and caught ones cost nothing")
def refusals() -> Result:
    """Two are caught, the third is not."""
    import torch

    import hiwater

    torch.cuda.init()
    real, looks = torch._C._cuda_memorySnapshot, []
    torch._C._cuda_memorySnapshot = lambda *words: (looks.append(1), real(*words))[1]
    watched = hiwater.contrib.torch.guard(os.path.join(tempfile.mkdtemp(), "oom"), quiet=True)
    caught = 0
    try:
        with watched:
            for _ in range(2):
                refusal()
                caught = len(looks)
            take(LAST_REQUEST)
    except torch.cuda.OutOfMemoryError as error:
        said = watched.report.to_dict()
        return Result(
            caught == 0 and abs(said["refusal"]["requested_bytes"] - LAST_REQUEST) <= 2 * MIB,
            {"snapshots of caught": caught, "request": said["refusal"]["requested_bytes"]},
            {"report": said, "message": str(error)},
        )
    finally:
        torch._C._cuda_memorySnapshot = real
    return Result(False, {"request": "nothing was refused"})


@check("8: a history that the program begins within a recording goes on after it")
def history() -> Result:
    """And its events are there."""
    import torch

    import hiwater

    torch.cuda.init()
    with hiwater.record(os.path.join(tempfile.mkdtemp(), "run.hiw")):
        give(take(3 * MIB))
        torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
        give(take(4 * MIB))
    snapshot = torch.cuda.memory._snapshot()
    goes_on = bool(torch._C._cuda_isHistoryEnabled()) if hasattr(torch._C, "_cuda_isHistoryEnabled") else True
    events = snapshot["device_traces"][0]
    for event in events:
        event["frames"] = event.get("frames", [])[:3]
    return Result(
        goes_on and bool(events),
        {"goes on": goes_on, "events": len(events)},
        {"segments": snapshot["segments"], "events": events},
    )


@check("9: what NVML answers and what it refuses", needs_card=True)
def nvml() -> Result:
    """The driver's figures, with the reasons of those that are missing."""
    import torch

    from hiwater.meters import devices

    torch.cuda.init()
    source: Any = devices.backend("nvml")
    status = source.status()
    if not status.works:
        return Result(None, {"status": status.reason})
    found = {device.name: {"uuid": device.uuid, "card": str(source.card(device)), "process": str(source.process(device, has_context=True)),
                           "unknown": source.unknown(device)} for device in source.devices()}  # fmt: skip
    return Result(True, {name: str(one)[:300] for name, one in found.items()}, found)


# --- measurements, on a card -------------------------------------------------------------------------------------------------------


def _training() -> Callable[[], None]:
    """A step of a model of many small allocations."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [module for _ in range(8) for module in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(*layers).cuda()
    optimizer, given = torch.optim.AdamW(model.parameters()), torch.randn(64, 512, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(given).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(20):
        step()
    return step


def _times(step: Callable[[], None], count: int = 200) -> list[float]:
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        step()
        found.append(time.perf_counter() - begun)
    return found


@check(
    "a step's time with a recording, with and without device history, and its longest stall",
    seconds=90,
    needs_card=True,
)
def step_time() -> Result:
    """Interleaved rounds; ratios of medians, and the longest step of each."""
    import hiwater

    step, folder = _training(), tempfile.mkdtemp()
    times: dict[str, list[float]] = {"plain": [], "recorded": [], "with history": []}
    for _ in range(5):
        times["plain"] += _times(step)
        for name, on in (("recorded", False), ("with history", True)):
            with hiwater.record(os.path.join(folder, "run.hiw"), device_history=on):
                times[name] += _times(step)
            os.unlink(os.path.join(folder, "run.hiw"))
    plain = statistics.median(times["plain"])
    figures = {f"{name}: ratio": round(statistics.median(one) / plain, 3) for name, one in times.items()}
    figures |= {f"{name}: longest step, ms": round(1e3 * max(one), 2) for name, one in times.items()}
    return Result(None, figures | {"plain step, ms": round(1e3 * plain, 3)})


@check("graph breaks of torch.compile in a recording", seconds=90, needs_card=True)
def graph_breaks() -> Result:
    """As many as without."""
    import torch
    import torch._dynamo

    import hiwater

    def work(given: Any) -> Any:
        kept = torch.empty_like(given)
        return (given @ given + kept.zero_()).relu()

    def breaks() -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(work, backend="eager")(torch.ones(64, 64, device="cuda"))
        return sum(torch._dynamo.utils.counters["graph_break"].values())

    alone = breaks()
    with hiwater.record(os.path.join(tempfile.mkdtemp(), "run.hiw")):
        recorded = breaks()
    return Result(alone == recorded, {"alone": alone, "recorded": recorded})


@check("what a scope shows of a CUDA graph's replay", needs_card=True)
def graphs() -> Result:
    """A replay allocates nothing: its memory was taken when it was captured."""
    import torch

    import hiwater

    graph, given = torch.cuda.CUDAGraph(), torch.ones(MIB, device="cuda")
    with torch.cuda.graph(graph):
        made = given * 2
    with hiwater.track() as scope:
        graph.replay()
        torch.cuda.synchronize()
    del made
    return Result(None, {"peak above start": scope.usage.gpu[0].peak_above_start_bytes})


@check("cudaMallocAsync's peak after a reset", backends=("cudaMallocAsync",), needs_card=True)
def async_peak() -> Result:
    """Whether the driver's high mark starts again."""
    import torch

    torch.cuda.init()
    give(take(64 * MIB))
    torch.cuda.reset_peak_memory_stats()
    give(take(8 * MIB))
    peak = torch.cuda.max_memory_allocated()
    return Result(None, {"peak after 64 MiB, a reset and 8 MiB": peak})


@check("Courtesy: the share of the card that it gives back", seconds=60, needs_card=True)
def courtesy() -> Result:
    """As the driver sees it; 99 % is what the documents hope for."""
    import torch

    import hiwater

    kept = [torch.ones(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    free_before = torch.cuda.mem_get_info()[0]
    lent = hiwater.contrib.torch.Courtesy()
    lent.yield_memory()
    given = torch.cuda.mem_get_info()[0] - free_before
    lent.restore()
    whole = all(bool((tensor == 1).all()) for tensor in kept)
    share = given / sum(tensor.nbytes for tensor in kept)
    return Result(whole and share >= 0.99, {"share given back": round(share, 4), "contents whole": whole})


@check("Courtesy through the driver: a checkpoint of the own process", seconds=60, needs_card=True)
def self_checkpoint() -> Result:
    """Where the machine allows it."""
    import torch

    import hiwater

    kept = torch.ones(512 * MIB, dtype=torch.uint8, device="cuda")
    try:
        lent = hiwater.contrib.torch.Courtesy(driver=True)
        lent.yield_memory()
    except hiwater.errors.HiwaterError as error:
        return Result(None, {"refused": str(error)})
    lent.restore()
    whole = bool((kept == 1).all())
    return Result(whole, {"contents whole": whole})


# --- running one -------------------------------------------------------------------------------------------------------------------

# The driver's own functions, as RMM's allocators use the runtime's: no headers are needed to compile it.
PLUGGABLE = """
#include <dlfcn.h>
#include <stddef.h>
typedef unsigned long long Address;
static void* find(const char* name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), name); }
void* take(ptrdiff_t size, int device, void* stream) {
    Address at = 0;
    ((int (*)(Address*, size_t))find("cuMemAlloc_v2"))(&at, (size_t)size);
    return (void*)at;
}
void give(void* at, ptrdiff_t size, int device, void* stream) { ((int (*)(Address))find("cuMemFree_v2"))((Address)at); }
"""


def put_backend(backend: str, *, double: bool) -> None:
    """Have torch allocate with `backend`, before CUDA is initialised."""
    if double:
        sys.path.insert(0, str(TREE / "tests" / "helpers"))
        from cuda_double import install

        IN_PLACE.append(install(backend=backend))
        return
    if backend == "cudaMallocAsync":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"
    if backend == "pluggable":
        import torch

        folder = Path(tempfile.mkdtemp())
        (folder / "plugged.c").write_text(PLUGGABLE)
        subprocess.run(
            ["cc", "-shared", "-fPIC", folder / "plugged.c", "-o", folder / "plugged.so", "-ldl"], check=True
        )
        plugged = torch.cuda.memory.CUDAPluggableAllocator(str(folder / "plugged.so"), "take", "give")
        torch.cuda.memory.change_current_allocator(plugged)


def main() -> int:
    """Run one check."""
    parser = argparse.ArgumentParser(description="Runs one check of what hiwater does with a GPU.")
    parser.add_argument("name", nargs="?", choices=list(CHECKS), default="init")
    parser.add_argument("result", nargs="?", type=Path, help="the JSON file to write")
    parser.add_argument("--initialise", type=int, metavar="NUMBER", help="one initialisation of the first check")
    parser.add_argument("--double", action="store_true", help="over the simulated torch._C, without a card")
    arguments = parser.parse_args()
    chosen = CHECKS[arguments.name]
    put_backend(chosen.backend, double=arguments.double)
    if arguments.initialise is not None:
        return initialise(arguments.initialise)
    found = chosen.run()
    arguments.result.write_text(json.dumps(vars(found), default=str))
    return 0 if found.held in (True, None) else 1


if __name__ == "__main__":
    sys.exit(main())
