"""Four threads that hold buffers at the same time: they wait for one another, so the peak is the sum of all."""

import threading

together = threading.Barrier(4)


def work(number: int) -> None:
    held = [bytearray(100_000) for _ in range(60 + number)]
    together.wait()
    sizes[number] = sum(map(len, held))
    together.wait()


sizes = dict.fromkeys(range(4), 0)
workers = [threading.Thread(target=work, args=(number,)) for number in sizes]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(sum(sizes.values()))
