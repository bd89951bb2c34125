"""Calls and next to no allocations; short, so that start-up shows."""


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


print(fibonacci(30))
