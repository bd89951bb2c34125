"""Estimates beside what a card needed, to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from gpu_checks.registry import TREE, Result, check

TOLERANCE = 0.0025
_MODELS = (("mlp", "train"), ("conv", "train"), ("encoder", "train"), ("encoders", "train"), ("attention", "train"),
          ("masked_attention", "train"), ("gpt", "train"), ("checkpointed", "train"), ("inplace", "train"),
          ("lstm", "train"),
          ("mlp", "accumulate 3"), ("gpt", "inference"))  # fmt: skip


@check("estimates beside a card, allocated and reserved, in bytes: twelve models", seconds=150, needs_card=True)
def estimates(folder: Path) -> Iterator[Result]:
    """Each in a process of its own; a row for each as it comes."""
    rows: dict[str, dict[str, int]] = {}
    figures: dict[str, str] = {}
    with ThreadPoolExecutor(4) as pool:  # torch's peaks are those of one process
        for done in as_completed([pool.submit(_measure, folder, name, mode) for name, mode in _MODELS]):
            model, found, failure = done.result()
            if failure:
                figures[model] = f"failed: {failure}"
            else:
                rows[model] = found
                off = [found[f"estimated_{kind}"] - found[kind] for kind in ("allocated", "reserved")]
                figures[model] = (
                    f"allocated {found['allocated']:,} ({off[0]:+,}), reserved {found['reserved']:,} ({off[1]:+,})"
                )
            errors = [abs(row["estimated_allocated"] - row["allocated"]) / row["allocated"] for row in rows.values()]
            held = len(errors) == len(figures) and max(errors, default=0.0) <= TOLERANCE
            yield Result(
                held, {"largest error, %": round(100 * max(errors, default=0.0), 4), **figures}, {"rows": rows}
            )


def _measure(folder: Path, name: str, mode: str) -> tuple[str, dict[str, int], str]:
    """A model with its mode, the bytes estimated and measured, and why there are none."""
    words = [sys.executable, TREE / "benchmarks" / "estimate.py", name, "--one", mode, "--gpu", "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    failure = "" if done.returncode == 0 else done.stderr.strip()[-200:] or f"exit code {done.returncode}"
    return f"{name}, {mode}", {} if failure else json.loads(last), failure
