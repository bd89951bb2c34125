from multiprocessing.pool import ThreadPool


def main():
    with ThreadPool(3) as pool:
        kept = pool.map(str.split, ["a bc def " * 100_000] * 6)  # HERE
    print(len(kept))


if __name__ == "__main__":
    main()
