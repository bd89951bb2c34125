"""Blocks of malloc, too large for Python's own arenas: some are kept, and some freed."""

kept = [bytes(2000 + number % 500) for number in range(4_000)]
del kept[::4]
print(sum(map(len, kept)))
