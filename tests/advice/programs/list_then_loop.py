"""Finds: list."""


def main():
    total = 0
    texts = [str(number) * 10 for number in range(100_000)]  # HERE
    #: texts = (str(number) * 10 for number in range(100_000))
    for text in texts:
        total += len(text)
    return total


main()
