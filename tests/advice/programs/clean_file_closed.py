"""Finds: nothing."""

import tempfile


def main():
    longest = 0
    with tempfile.TemporaryFile("w+") as file:
        file.writelines(f"this is line {number}\n" for number in range(100_000))
        file.seek(0)
        lines = file.readlines()
    for line in lines:
        longest = max(longest, len(line))
    return longest


main()
