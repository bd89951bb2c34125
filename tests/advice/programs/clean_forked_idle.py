"""Finds: nothing."""

import gc
import os
import time

gc.disable()
data = [[number] for number in range(400_000)]
child = os.fork()
if child == 0:
    time.sleep(1.2)
    os._exit(0)
os.waitpid(child, 0)
