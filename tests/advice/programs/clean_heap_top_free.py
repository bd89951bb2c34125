"""Finds: nothing."""


def work(count):
    parts = [bytes(6_000) for _ in range(count)]
    return len(parts)


print(work(6_000))
