"""1,000 threads, eight at a time, each making objects: threads that are born and die, with stacks of their own."""

import threading
from concurrent.futures import ThreadPoolExecutor


def work(seed: int) -> int:
    table = {number: [str(number * seed)] for number in range(3_000)}
    return len(table)


def in_own_thread(seed: int) -> None:
    thread = threading.Thread(target=work, args=(seed,))
    thread.start()
    thread.join()


with ThreadPoolExecutor(8) as pool:
    list(pool.map(in_own_thread, range(1_000)))
print("done")
