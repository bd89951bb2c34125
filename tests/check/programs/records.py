"""Python objects: a table of records, built twice and dropped once."""


def record(number: int) -> tuple[int, float, list[int]]:
    return 1_000_000 + number, number / 7, [number, number + 1, number + 2]


def table(records: int) -> list[tuple[int, float, list[int]]]:
    return [record(number) for number in range(records)]


held = table(12_000)
held = table(20_000)
print(len(held))
