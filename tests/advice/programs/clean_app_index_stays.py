"""Finds: nothing."""

import time

index = {}
for number in range(150_000):
    index[f"document {number}"] = [number]
time.sleep(0.1)
print(len(index))
