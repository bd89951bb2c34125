"""Finds: nothing."""


def main():
    kept = set()
    for text in [str(number) * 10 for number in range(100_000)]:
        kept.add(text)
    return kept


texts = main()
