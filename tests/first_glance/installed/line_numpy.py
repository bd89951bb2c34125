import numpy as np


def load(count):
    table = np.arange(count)
    return np.tile(table, 20)  # HERE


def main():
    print(load(1_000_000).shape)


if __name__ == "__main__":
    main()
