"""Finds: nothing."""


def median(values):
    values.sort()
    return values[len(values) // 2]


def main(count):
    prices = [f"{number * 7_919 % 100_003:05}" for number in range(count)]
    return median(prices)


print(main(300_000))
