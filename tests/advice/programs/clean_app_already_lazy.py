"""Finds: nothing."""

import io


def total(text):
    amount = 0
    for line in io.StringIO(text):
        amount += len(line)
    return amount + sum(number % 7 for number in range(500_000))


print(total("some line of text\n" * 200_000))
