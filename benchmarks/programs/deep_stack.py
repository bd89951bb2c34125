"""1.5 million times a list and its buffer under DEPTH frames (argument; 50) and nothing else: the worst case."""

import sys


def leaf() -> int:
    total = 0
    for number in range(1_500_000):
        single = [number]
        total += len(single)
    return total


def descend(depth: int) -> int:
    return leaf() if depth == 0 else descend(depth - 1)


sys.setrecursionlimit(10_000)
print(descend(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
