"""240,000 arrays of 16 kB."""

import numpy as np
import numpy.typing as npt


def step(values: npt.NDArray[np.float64], factor: int) -> float:
    scaled = values * factor
    mixed = np.sin(scaled) + scaled
    return float(mixed.sum())


def main() -> None:
    values = np.random.default_rng(1).random(2_000)
    print(sum(step(values, factor) for factor in range(60_000)))


main()
