"""Two threads that allocate while they do not hold the interpreter's lock."""

import os
import threading
import zlib

DATA = os.urandom(1 << 16)


def work(rounds: int = 1_500) -> None:
    for _ in range(rounds):
        zlib.decompress(zlib.compress(DATA, 1))


threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
