"""Finds: list."""


def width_of_column(count):
    names = range(count)
    return max(list(map(lambda number: number * 1_000_003, names)))  # HERE
    #: return max(map(lambda number: number * 1_000_003, names))


print(width_of_column(400_000))
