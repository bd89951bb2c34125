import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np


def main():
    matplotlib.use("agg")
    figure = plt.figure(figsize=(20, 15))
    figure.gca().plot(np.arange(1000))
    figure.savefig(io.BytesIO(), dpi=200)  # HERE
    print("saved")


if __name__ == "__main__":
    main()
