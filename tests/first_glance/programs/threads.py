"""Threads that each fill a buffer."""

import threading

results = []


def work(size):
    results.append(bytearray(b"x") * size)  # HERE


def main():
    workers = [threading.Thread(target=work, args=(4_000_000,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


main()
