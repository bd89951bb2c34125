"""Text: split, joined, replaced, formatted; blocks that grow by realloc."""


def main() -> None:
    words = [f"word{number % 977}" for number in range(200_000)]
    size = 0
    for turn in range(40):
        text = " ".join(words)
        upper = text.upper().replace("WORD", f"W{turn}-")
        lines = [upper[start : start + 60] for start in range(0, len(upper), 60)]
        grown = bytearray()
        for line in lines:
            grown += line.encode()
        size += len(grown)
    print(size)


main()
