"""3 million blocks of 0.6 to 1 kB, too large for Python's own arenas: each is a malloc and a free."""


def main() -> None:
    kept: list[bytes] = []
    for _ in range(30):
        kept = [bytes(600 + number % 400) for number in range(100_000)]
    print(len(kept))


main()
