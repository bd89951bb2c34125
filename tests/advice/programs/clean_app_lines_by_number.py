"""Finds: nothing."""

import io


def pairs(text):
    same = 0
    lines = io.StringIO(text).readlines()
    for number in range(1, len(lines)):
        if lines[number] == lines[number - 1]:
            same += 1
    return same


print(pairs("".join(f"line {number // 2}\n" for number in range(100_000))))
