"""Text that is split, joined and replaced: long strings, so that what a header takes in this Python does not count."""

words = [f"word{number % 977}" * 100 for number in range(4_000)]
size = 0
for turn in range(4):
    text = " ".join(words).upper()
    lines = text.replace("WORD977", f"W{turn}").split(" ")
    size += len(lines)
print(size)
