"""What programs need on the card of this machine, in bytes, with every request to torch's allocator.

    python benchmarks/estimate_score/measure.py [--out measured.json] [--processes 4] [program …]

Each program runs in a process of its own. Its row has torch's own peaks, what the driver counts, and `events`: each
allocation and release from the program's start on, in order.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = 3
SMALL = [f"small_{name}" for name in ("mlp", "conv", "encoder", "encoders", "attention", "masked_attention", "gpt", "checkpointed", "checkpointed_reentrant", "inplace", "lstm")]
_FRAMES = 3
_KINDS = {"alloc": "a", "free_requested": "q", "free_completed": "f", "segment_alloc": "S", "segment_free": "F"}


def run(made, name):
    """Run the program, as the estimate does: a plain loop, unless the function does all of it."""
    import torch

    import programs

    target, given, optimizer, loss = (*made, None, None)[:4]

    def call():
        if isinstance(given, dict):
            return target(**given)
        return target(*(given if isinstance(given, (tuple, list)) else (given,)))

    if name in programs.INFERENCE:
        if isinstance(target, torch.nn.Module):
            target.eval()
        with torch.no_grad():
            for _ in range(STEPS):
                out = call()
        return
    if not isinstance(target, torch.nn.Module):
        for _ in range(STEPS):
            call()
        return
    target.train()
    for _ in range(STEPS):
        for parameter in target.parameters():
            parameter.grad = None
        out = call()
        value = loss(out) if loss is not None else out.loss
        value.backward()
        if optimizer is not None:
            optimizer.step()


def events_of(trace):
    """The events as short lists, and the places they name: an allocation has its size and its place, a release the
    number of its allocation."""
    places, numbers, found = {}, {}, []
    for event in trace:
        kind = _KINDS.get(event["action"])
        if kind is None:
            continue
        if kind in "aS":
            frames = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in event.get("frames", [])[:_FRAMES]]
            place = places.setdefault(" < ".join(frames), len(places))
            numbers[kind, event["addr"]] = len(found)
            found.append([kind, event["size"], place, event["stream"]])
        else:
            found.append([kind, numbers.get(("S" if kind == "F" else "a", event["addr"]), -1)])
    return found, list(places)


def measure(name):
    """The row of one program."""
    import torch

    sys.path.insert(0, str(HERE))
    import programs

    torch.manual_seed(0)
    torch.cuda.init()
    free_before = torch.cuda.mem_get_info()[0]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=1_000_000)
    made = small(name.removeprefix("small_")) if name.startswith("small_") else getattr(programs, name)()
    built = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    begun = time.perf_counter()
    run(made, name)
    torch.cuda.synchronize()
    took = time.perf_counter() - begun
    snapshot = torch.cuda.memory._snapshot()
    events, places = events_of(snapshot["device_traces"][0])
    statistics = torch.cuda.memory_stats()
    return {
        "program": name, "steps": STEPS, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
        "requested": statistics["requested_bytes.all.peak"], "built_allocated": built[0], "built_reserved": built[1],
        "end_allocated": torch.cuda.memory_allocated(), "end_reserved": torch.cuda.memory_reserved(),
        "driver_bytes": free_before - torch.cuda.mem_get_info()[0], "seconds": round(took, 2),
        "events": events, "places": places, "parameters": [],
    }  # fmt: skip


def small(name):
    """A model of the tests, on the card."""
    import torch

    sys.path.insert(0, str(HERE.parents[1] / "tests" / "helpers"))
    import estimate_models

    torch.backends.mha.set_fastpath_enabled(False)
    net, x, optimizer, loss = estimate_models.MODELS[name]()
    net.cuda()  # in place: the optimizer keeps its parameters
    return net, x.detach().cuda().requires_grad_(x.requires_grad), optimizer, loss


def about():
    import torch

    found = {"card": torch.cuda.get_device_name(), "capability": torch.cuda.get_device_capability(), "torch": torch.__version__,
             "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "total_bytes": torch.cuda.get_device_properties(0).total_memory}  # fmt: skip
    for library in ("transformers", "torchvision", "triton"):
        try:
            found[library] = __import__(library).__version__
        except Exception as error:  # noqa: BLE001 - a library that is missing or broken has no version
            found[library] = f"none: {type(error).__name__}"
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("measured.json.gz"))
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="the longest time of one program")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(about() if arguments.one == "about" else measure(arguments.one)))
        return
    sys.path.insert(0, str(HERE))
    import programs

    rows = {}

    def one(name):
        words = [sys.executable, __file__, "--one", name]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=arguments.seconds, check=False)
        except subprocess.TimeoutExpired:
            return name, {"failed": "too long"}
        if done.returncode:
            return name, {"failed": done.stderr[-800:]}
        return name, json.loads(done.stdout.strip().splitlines()[-1])

    with ThreadPoolExecutor(arguments.processes) as pool:
        for done in as_completed([pool.submit(one, name) for name in ["about", *(arguments.programs or [*programs.NAMES, *SMALL])]]):
            name, row = done.result()
            rows[name] = row
            print(name, {key: value for key, value in row.items() if key not in ("events", "places")}, flush=True)
            arguments.out.write_bytes(gzip.compress(json.dumps(rows).encode()))


if __name__ == "__main__":
    main()
