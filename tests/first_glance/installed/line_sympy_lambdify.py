import numpy as np
import sympy


def main():
    x = sympy.Symbol("x")
    compute = sympy.lambdify(x, sympy.sin(x) ** 2 + sympy.exp(x), "numpy")
    values = compute(np.linspace(0, 1, 8_000_000))  # HERE
    print(values.shape)


if __name__ == "__main__":
    main()
