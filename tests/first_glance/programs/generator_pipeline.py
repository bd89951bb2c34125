"""A pipeline of generators, one of which sorts, and so keeps everything."""


def rows(count):
    for number in range(count):
        yield {"key": number * 7919 % count, "text": f"row {number}"}  # HERE


def ordered(items):
    yield from sorted(items, key=lambda item: item["key"])


def main():
    return sum(len(item["text"]) for item in ordered(rows(60_000)))


main()
