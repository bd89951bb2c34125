"""A pipeline of generators: frames that come and go between two allocations."""

from collections.abc import Iterator


def numbers(count: int) -> Iterator[int]:
    for number in range(1_000, count):  # noqa: UP028 - a frame of Python's own for each number is the point
        yield number


def pairs(source: Iterator[int]) -> Iterator[tuple[int, str]]:
    for number in source:
        yield number, str(number)


def kept(source: Iterator[tuple[int, str]]) -> Iterator[list[str]]:
    for number, text in source:
        if number % 3:
            yield text.split("1")


print(sum(len(parts) for parts in kept(pairs(numbers(4_000_000)))))
