"""Finds: nothing."""


def main():
    waiting, total = dict.fromkeys(range(200_000)), 0
    for key in list(map(float, waiting)):
        waiting.pop(key)
        total += key
    return total


main()
