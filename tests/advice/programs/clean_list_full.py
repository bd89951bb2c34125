"""Finds: nothing."""

held = [None] * 3_000_000
more = bytearray(b"x" * 4_000_000)
print(len(held), len(more))
