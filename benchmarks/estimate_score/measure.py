"""What programs need on the card of this machine, in bytes, by torch's own peaks.

    python benchmarks/estimate_score/measure.py [--out measured.json] [--events events.json.gz] [program …]

Each program runs in a process of its own, and its row is written as soon as it has ended: a run that is cut off keeps
what it measured. Rows join those of the same card and versions. `--events` also writes each request to torch's
allocator and each release, from the program's start on and in order, with the lines that made them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

HERE = Path(__file__).resolve().parent
_FRAMES = 3
_KINDS = {
    "alloc": "a", "free_requested": "q", "free_completed": "f", "segment_alloc": "S", "segment_free": "F",
}  # fmt: skip


def events_of(trace):
    """The events as short lists, and the places they name: an allocation has its size, its place, its stream and
    its address, a release the number of its allocation."""
    places, numbers, found = {}, {}, []
    for event in trace:
        kind = _KINDS.get(event["action"])
        if kind is None:
            continue
        if kind in "aS":
            frames = [f"{Path(f['filename']).name}:{f['line']} {f['name']}" for f in event.get("frames", [])[:_FRAMES]]
            place = places.setdefault(" < ".join(frames), len(places))
            numbers[kind, event["addr"]] = len(found)
            found.append([kind, event["size"], place, event["stream"], event["addr"]])
        else:
            found.append([kind, numbers.get(("S" if kind == "F" else "a", event["addr"]), -1)])
    return {"events": found, "places": list(places)}


def measure(name, with_events):
    """The card, its versions, and the row of one program."""
    import programs
    import torch

    from hiwater.contrib.torch.estimate import on_card, worker

    torch.cuda.init()
    if with_events:
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=1_000_000)
    options = {"steps": 3, "accumulate": 1, "batch_size": None, "dtype": None, "autocast": None}
    options["mode"] = "inference" if name in programs.INFERENCE else "train"
    found = on_card.measured(lambda: worker.made_by_calling(getattr(programs, name)), options)
    return found | (events_of(torch.cuda.memory._snapshot()["device_traces"][0]) if with_events else {})


def in_a_process(name, arguments):
    """What `measure` found, or why it found nothing."""
    words = [sys.executable, __file__, "--one", name, *(["--events", arguments.events] if arguments.events else [])]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=arguments.seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "too long"}
    if done.returncode:
        return {"failed": done.stderr[-800:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def joined(documents, found, name):
    """The documents, one of each card and its versions, with this row."""
    same = [each for each in documents if each["about"] == found["about"]]
    others = [each for each in documents if each["about"] != found["about"]]
    rows = {**(same[0]["rows"] if same else {}), name: found["row"]}
    return [*others, {"about": found["about"], "rows": dict(sorted(rows.items()))}]


def write(path, content):
    """Replace the file whole, so that none is ever half written."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    os.replace(beside, path)


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
        print(json.dumps(measure(arguments.one, bool(arguments.events))))
        return
    import programs

    documents = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else []
    events = {}
    with ThreadPoolExecutor(arguments.processes) as pool:
        running = {pool.submit(in_a_process, name, arguments): name for name in arguments.programs or programs.NAMES}
        for done in as_completed(running):
            name, found = running[done], done.result()
            print(name, found.get("row", found), flush=True)
            if "row" not in found:
                continue
            documents = joined(documents, found, name)
            write(arguments.out, (json.dumps(documents, indent=1) + "\n").encode())
            if arguments.events:
                events[name] = {key: found[key] for key in ("events", "places")}
                write(arguments.events, gzip.compress(json.dumps(events).encode()))


if __name__ == "__main__":
    main()
