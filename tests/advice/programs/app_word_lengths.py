"""Finds: list."""


def letters(count):
    total = 0
    words = [f"word-{number:08d}-{number % 7}" for number in range(count)]  # HERE
    #: words = (f"word-{number:08d}-{number % 7}" for number in range(count))
    for word in words:
        total += len(word.strip())
    return total


print(letters(200_000))
