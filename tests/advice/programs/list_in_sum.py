"""Finds: list."""


def main():
    total = sum([number * 2.5 for number in range(200_000)])  # HERE
    #: total = sum(number * 2.5 for number in range(200_000))
    print(total)


main()
