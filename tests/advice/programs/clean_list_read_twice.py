"""Finds: nothing."""


def main():
    numbers = [number * 2.5 for number in range(200_000)]
    mean = sum(numbers) / len(numbers)
    return sum((number - mean) ** 2 for number in numbers)


main()
