"""What the cell logger costs: prints the table of docs/notebooks.md.

    python benchmarks/cells.py            the table
    python benchmarks/cells.py --check    exit code 1 when a cell costs 5 ms more with the logger on

A real kernel runs each cell often, with the logger on and off in turns. Figures are CPU time of all its threads, from
the kernel's own nanoseconds: others use the machine, too.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from jupyter_client.manager import start_new_kernel

BUDGET_MS = 5.0
WAIT_SECONDS = 60
CELLS = {
    "`pass`": "pass",
    "a value that is shown": "6 * 7",
    "an array bound anew": "array = np.ones(1000)",
    "an error, after which all garbage is collected": "1 / 0",
    "a list bound anew, the same": "row = [1, 2, 3]",
}
ONCE = {"all garbage, collected once": "gc.collect()"}
SWITCHES = {"on": "%hiwater on", "on, without collecting": "%hiwater on --no-gc", "off": "%hiwater off"}


class Kernel:
    """A kernel and what it costs to run code in it."""

    def __init__(self):
        self._manager, self._client = start_new_kernel(kernel_name="python3")
        self._threads = Path(f"/proc/{self._manager.provisioner.pid}/task")

    def cost_ms(self, code):
        """Milliseconds of CPU time until the kernel is idle again."""
        before = self._cpu_ns()
        request = self._client.execute(code)
        self._client.get_shell_msg(timeout=WAIT_SECONDS)
        state = ""
        while state != "idle":
            message = self._client.get_iopub_msg(timeout=WAIT_SECONDS)
            if message["parent_header"].get("msg_id") == request:
                state = message["content"].get("execution_state", "")
        return (self._cpu_ns() - before) / 1e6

    def stop(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _cpu_ns(self):
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in self._threads.iterdir())


def medians(kernel, rounds, repeats):
    """Milliseconds by cell and by switch."""
    taken = {(cell, switch): [] for cell in (*CELLS, *ONCE) for switch in SWITCHES}
    for _ in range(rounds):
        for switch, command in SWITCHES.items():
            kernel.cost_ms(command)
            for cell, code in {**CELLS, **ONCE}.items():
                taken[cell, switch] += [kernel.cost_ms(code) for _ in range(repeats if cell in CELLS else 1)]
    return {key: statistics.median(values) for key, values in taken.items()}


def main():
    parser = argparse.ArgumentParser(description="What the cell logger costs.")
    parser.add_argument("--check", action="store_true", help="fail when a cell costs 5 ms more")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    kernel = Kernel()
    try:
        for code in ("%load_ext hiwater", "import gc\nimport numpy as np", "row = array = None"):
            kernel.cost_ms(code)
        found = medians(kernel, asked.rounds, asked.repeats)
    finally:
        kernel.stop()
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs; milliseconds of CPU time a cell\n")
    print("| cell | off | on | more | `--no-gc`, more |\n|---|---:|---:|---:|---:|")
    for cell in CELLS:
        off, on, bare = (found[cell, switch] for switch in ("off", "on", "on, without collecting"))
        print(f"| {cell} | {off:.1f} | {on:.1f} | {on - off:.1f} | {bare - off:.1f} |")
    print(f"\nall garbage of the session, collected once: {found[next(iter(ONCE)), 'off']:.1f} ms")
    more = {cell: found[cell, "on"] - found[cell, "off"] for cell in list(CELLS)[:3]}
    if asked.check and max(more.values()) > BUDGET_MS:
        sys.exit(f"over budget: {more}")


if __name__ == "__main__":
    main()
