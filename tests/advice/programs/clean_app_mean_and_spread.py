"""Finds: nothing."""


def spread(count):
    heights = [150 + number * 0.11 % 50 for number in range(count)]
    mean = sum(heights) / count
    return sum([(one - mean) ** 2 for one in heights[:10]]) / count, max(heights)


print(spread(300_000))
