"""What programs need on the card of this machine, in bytes, by torch's own peaks.

    python benchmarks/estimate_score/measure.py [--out measured.json] [--events events.json.gz] [program …]

Each program runs in a process of its own. `--events` also writes each request to torch's allocator and each release,
from the program's start on and in order, with the lines that made them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEPS = 3
_FRAMES = 3
_KINDS = {
    "alloc": "a", "free_requested": "q", "free_completed": "f", "segment_alloc": "S", "segment_free": "F",
}  # fmt: skip


def run(made, is_inference):
    """Run the program as the estimate does: a plain loop, unless its function does all of a step."""
    import torch

    target, given, optimizer, loss = (*made, None, None)[:4]

    def call():
        if isinstance(given, dict):
            return target(**given)
        return target(*(given if isinstance(given, (tuple, list)) else (given,)))

    if is_inference:
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
    """The events as short lists, and the places they name: an allocation has its size, its place and its stream, a
    release the number of its allocation."""
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
    return {"events": found, "places": list(places)}


def measure(name, with_events):
    """The row of one program."""
    import programs
    import torch

    torch.manual_seed(0)
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    if with_events:
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=1_000_000)
    made = getattr(programs, name)()
    built = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    run(made, name in programs.INFERENCE)
    torch.cuda.synchronize()
    events = events_of(torch.cuda.memory._snapshot()["device_traces"][0]) if with_events else {}
    return {
        "steps": STEPS,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "built_allocated": built[0],
        "built_reserved": built[1],
        "end_allocated": torch.cuda.memory_allocated(),
        "end_reserved": torch.cuda.memory_reserved(),
        **events,
    }


def about():
    """The card and the versions of what ran on it."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    found = {
        "card": properties.name, "capability": [properties.major, properties.minor], "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "total_bytes": properties.total_memory,
    }  # fmt: skip
    for library in ("transformers", "torchvision", "triton"):
        try:
            found[library] = __import__(library).__version__
        except ImportError:
            found[library] = None
    return found


def in_a_process(name, arguments):
    """The row of this program, or why there is none."""
    words = [sys.executable, __file__, "--one", name, *(["--events", arguments.events] if arguments.events else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=arguments.seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "too long"}
    if done.returncode:
        return {"failed": done.stderr[-800:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="the default is all")
    parser.add_argument("--out", type=Path, default=HERE / "measured.json")
    parser.add_argument("--events", type=Path)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60, help="the longest time of one program")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(about() if arguments.one == "about" else measure(arguments.one, bool(arguments.events))))
        return
    import programs

    rows, events = {}, {}
    names = ["about", *(arguments.programs or programs.NAMES)]
    with ThreadPoolExecutor(arguments.processes) as pool:
        running = {pool.submit(in_a_process, name, arguments): name for name in names}
        for done in as_completed(running):
            name, row = running[done], done.result()
            events[name] = {key: row.pop(key) for key in ("events", "places") if key in row}
            rows[name] = row
            print(name, row, flush=True)
    found = {"about": rows.pop("about"), "rows": dict(sorted(rows.items()))}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if arguments.events:
        arguments.events.write_bytes(gzip.compress(json.dumps(events).encode()))


if __name__ == "__main__":
    main()
