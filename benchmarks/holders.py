"""What a search for holders costs: `python benchmarks/holders.py [OBJECTS]` (default: 10,000,000), in a program under
`hiwater run`.

Prints the seconds of each search, how long the program stood still, and the private memory of the copy that is
searched. A copy shares its memory with the program until one of them writes to it, so this program only waits.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from hiwater.capture import opening
from hiwater.capture.holders import read_searches

PROGRAM = """
    import sys
    from hiwater import _core

    class Node:
        __slots__ = ("number", "pair")
        def __init__(self, number, pair):
            self.number, self.pair = number, pair

    nodes = [Node(float(number), (number,)) for number in range(OBJECTS // 4)]
    print("made", flush=True)
    for _ in range(3):
        sys.stdin.readline()
        _core.search_holders("")
        print("searched", flush=True)
"""


def private_kib(pid: int) -> int:
    """Of the children of a process, the most that one has for itself."""
    most = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            text = Path(f"/proc/{child}/smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        most = max(most, sum(map(int, re.findall(r"Private_(?:Dirty|Clean): +([0-9]+)", text))))
    return most


def main() -> None:
    objects = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    most = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(textwrap.dedent(PROGRAM).replace("OBJECTS", str(objects)))
        words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", "run.hiw", "program.py"]
        program = subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        program.stdin.write("\n" * 3)
        program.stdin.close()
        while program.poll() is None:
            most = max(most, private_kib(program.pid))
        searches = read_searches(opening.read(Path(folder, "run.hiw")))
    for search in searches:
        print(
            f"{search.objects:,} objects: {search.duration_ns / 1e9:.2f} s, the program stood still for "
            f"{search.pause_ns / 1e6:.1f} ms"
        )
    print(f"private memory of the copy: {most / 1024:.0f} MiB at most")


if __name__ == "__main__":
    main()
