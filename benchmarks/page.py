"""What the interactive page costs: its size, the time to make it, and how fast a browser shows, zooms and searches it.

    python benchmarks/page.py [--stacks N …] [--program benchmarks/programs/pandas_etl.py]

Needs node and Chromium for the browser's part (`cd web && npm ci`); says so and goes on where they are missing. The
captures are those of `reading.py`: trees of calls, 19 frames deep on average. Seconds and peak memory are of one fresh
`hiwater report` process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import reading

ROOT = Path(__file__).resolve().parent.parent
MEASURE = ROOT / "web" / "browser" / "measure.mjs"


def in_browser(page: Path, *words: str) -> dict[str, float] | None:
    """Milliseconds until the page is shown, and for the slowest of some zooms and searches; with the word "shown",
    the first alone. None where no browser is."""
    if shutil.which("node") is None or not (ROOT / "web" / "node_modules").is_dir():
        return None
    done = subprocess.run(["node", str(MEASURE), str(page), *words], capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def tell(name: str, capture: Path, folder: Path) -> None:
    page = folder / "page.html"
    seconds, peak, written = reading.measure(capture, "html", page)
    print(f"{name:<22} {seconds:>7.2f} s {peak / 2**20:>7.0f} MiB {written / 2**20:>7.2f} MiB", end="  ")
    figures = in_browser(page)
    if figures is None:
        print("(no browser: see the head of this file)")
    else:
        print("  ".join(f"{what} {count:.0f} ms" for what, count in figures.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--program", type=Path, default=ROOT / "benchmarks" / "programs" / "pandas_etl.py")
    arguments = parser.parse_args()
    template = (ROOT / "src" / "hiwater" / "report" / "html" / "page.template.html").read_bytes()
    print(
        f"page without data: {len(template):,} bytes, {len(gzip.compress(template, 9)):,} gzipped; "
        f"{os.cpu_count()} cores"
    )
    print(f"{'capture':<22} {'made in':>9} {'peak':>11} {'page':>11}  in the browser")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorded = folder / "program.hiw"
        command = [sys.executable, "-m", "hiwater", "run", "-q", "-o", str(recorded), str(arguments.program)]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0:
            tell(arguments.program.name, recorded, folder)
        for stacks in arguments.stacks:
            capture = folder / "made.hiw"
            # Made in a process of its own: a child's peak begins at what its parent holds when it is started.
            maker = multiprocessing.get_context("spawn").Process(target=reading.make, args=(capture, stacks))
            maker.start()
            maker.join()
            tell(f"{stacks:,} stacks", capture, folder)


if __name__ == "__main__":
    main()
