NAMESPACE = {}
exec(
    compile("def make(count):\n    return [bytes(100) for _ in range(count)]\n", "<generated make>", "exec"), NAMESPACE
)


def main():
    kept = NAMESPACE["make"](200_000)  # HERE
    print(len(kept))


if __name__ == "__main__":
    main()
