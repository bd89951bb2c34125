"""Finds: over_allocated."""

import sys

held, capacity = bytearray(), 0
while len(held) < 18_000_000 or sys.getsizeof(held) == capacity:  # BEFORE
    capacity = sys.getsizeof(held)  # BEFORE
    held += b"x" * 10_000  # HERE
#: held = bytearray(b"x") * 18_000_000
print(len(held))
