"""How far estimates are off: every model of tests/helpers/estimate_models.py, estimated and then run.

    python benchmarks/estimate.py [--gpu] [model …]

Prints a table. Without `--gpu` the estimate is for the CPU and the truth is torch's profiler: every request and release
of its allocator. With it, the estimate is for the card of this machine and the truth is
`torch.cuda.max_memory_allocated()` and `max_memory_reserved()`.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

MODES = {"train": {}, "accumulate 3": {"accumulate": 3}, "inference": {"mode": "inference"}}


def on_cpu(name, mode):
    import torch

    import estimate_models as models
    import hiwater.contrib.torch

    torch.set_num_threads(1)
    make = models.MODELS[name]
    start = time.perf_counter()
    found = hiwater.contrib.torch.estimate(*make(), device="cpu", **MODES[mode])
    took = time.perf_counter() - start
    run = models.infer if mode == "inference" else models.train
    real = models.real_peak(make, run if mode != "accumulate 3" else lambda made: models.train(made, accumulate=3))
    print(row(name, mode, found.peak_allocated_bytes, real), f"{took:6.1f} s", sep=" | ", end=" |\n")


def on_gpu(name, mode):
    """Allocated and reserved bytes, estimated and on this machine's card."""
    import torch

    import estimate_models as models
    import hiwater.contrib.torch

    make = models.MODELS[name]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.backends.mha.set_fastpath_enabled(False)
    made = make()
    # Named in a process that uses its card: the estimate is made by a new interpreter.
    found = hiwater.contrib.torch.estimate(f"{models.__file__}:{name}", device=total, **MODES[mode])
    net = made[0].cuda()  # in place: the optimizer, which has no state yet, keeps its parameters
    made = (net, made[1].detach().cuda().requires_grad_(made[1].requires_grad), *made[2:])
    torch.cuda.reset_peak_memory_stats()
    if mode == "inference":
        models.infer(made)
    else:
        models.train(made, accumulate=MODES[mode].get("accumulate", 1))
    torch.cuda.synchronize()
    return {
        "estimated_allocated": found.peak_allocated_bytes,
        "estimated_reserved": found.peak_reserved_bytes,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }


def show_on_gpu(name, mode):
    found = on_gpu(name, mode)
    for kind in ("allocated", "reserved"):
        print(row(name, mode, found[f"estimated_{kind}"], found[kind]), kind, sep=" | ", end=" |\n")


def row(name, mode, found, real):
    return f"| {name:22} | {mode:12} | {found:>12,} | {real:>12,} | {100 * (found - real) / real:+8.3f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="the default is all")
    parser.add_argument("--gpu", action="store_true", help="against the card of this machine")
    parser.add_argument("--one", metavar="MODE", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        if arguments.json:
            print(json.dumps(on_gpu(arguments.models[0], arguments.one)))
        else:
            (show_on_gpu if arguments.gpu else on_cpu)(arguments.models[0], arguments.one)
        return
    import estimate_models

    print("| model | mode | estimated, bytes | real, bytes | error | |\n|---|---|---|---|---|---|", flush=True)
    for name in arguments.models or estimate_models.MODELS:
        for mode in MODES:  # a process each: what one run leaves in a cache is not another's
            words = [sys.executable, __file__, name, "--one", mode, *(["--gpu"] if arguments.gpu else [])]
            subprocess.run(words, check=True, stderr=subprocess.DEVNULL if not arguments.gpu else None)


if __name__ == "__main__":
    main()
