"""Finds: forked, in the child."""

import gc
import os
import time

gc.disable()
data = [[number] for number in range(400_000)]
#: gc.freeze()
child = os.fork()
if child == 0:
    gc.collect()
    work = [None] * 100_000  # HERE
    #: work = [None] * 100_000
    time.sleep(1.2)  # the residency snapshot at the end is taken of children that lived for a second
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        print("private:", sum(int(line.split()[1]) for line in file if line.startswith("Private_")), "KiB")
    raise SystemExit(0)
os.waitpid(child, 0)
