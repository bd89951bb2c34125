"""Finds: nothing."""

rows = [(number, str(number)) for number in range(150_000)]
print(len(rows))
