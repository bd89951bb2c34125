"""What the job of a cluster costs on the driver: collecting and merging the captures of many workers.

    python benchmarks/clusters.py [--workers N …] [--stacks N]

Prints, for each number of workers, the bytes of a capture, the bytes on the wire, processor seconds (a busy machine
changes them little) and peak resident memory of one process that receives all captures as compressed pieces and merges
them; then the same of the reports in text and as a page, the page's size, and the seconds until Chromium shows it (of
wall-clock time; "nan" without node and Chromium: `make web/node_modules`).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from page import in_browser  # noqa: E402 - after the path of the tests' helpers
from run import measure  # noqa: E402

from large_captures import of_worker  # noqa: E402 - the tests' helpers are no package

RECEIVER = """
import sys
from pathlib import Path
from hiwater.contrib.cluster.job import JobCaptures
with JobCaptures(sys.argv[2], engine="test") as job:
    for path in sorted(Path(sys.argv[1]).glob("*.z")):
        job.add_pieces([path.read_bytes()])
    job.write()
"""


def measured(*words: str) -> tuple[float, int]:
    """Processor seconds and peak resident bytes of a Python process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure([sys.executable, *words], Path(folder))
    return found.cpu_seconds, found.peak_rss_bytes


def main() -> None:
    import zlib

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--stacks", type=int, default=10_000)
    arguments = parser.parse_args()
    names = (
        "capture MB",
        "wire MB",
        "merge s",
        "peak MB",
        "job MB",
        "text s",
        "peak MB",
        "page s",
        "peak MB",
        "page MB",
        "shown s",
    )
    print(" ".join([f"{'workers':>7}", *(f"{name:>10}" for name in names)]))
    for workers in arguments.workers:
        with tempfile.TemporaryDirectory() as folder:
            size = wire = 0
            for number in range(workers):
                content = of_worker(number, arguments.stacks)
                packed = zlib.compress(content, 1)
                size, wire = size + len(content), wire + len(packed)
                Path(folder, f"{number:06}.z").write_bytes(packed)
            job = Path(folder, "job.hiw")
            seconds, peak = measured("-c", RECEIVER, folder, str(job))
            page = Path(folder, "job.html")
            figures = [size / workers / 1e6, wire / workers / 1e6, seconds, peak / 1e6, job.stat().st_size / 1e6]
            for words in (("--no-pager",), ("--html", "-o", str(page))):
                seconds, peak = measured("-m", "hiwater", "report", str(job), *words)
                figures += [seconds, peak / 1e6]
            shown = in_browser(page, "shown")
            figures += [page.stat().st_size / 1e6, math.nan if shown is None else shown["shown"] / 1e3]
            print(" ".join([f"{workers:>7}", *(f"{figure:>10.2f}" for figure in figures)]), flush=True)


if __name__ == "__main__":
    main()
