import numpy as np
import xarray as xr


def main():
    data = xr.Dataset({"t": (("time", "x"), np.zeros((1000, 2000)))}).chunk(time=100)
    anomalies = (data.t - data.t.mean("time")).expand_dims(copy=4).copy()
    done = anomalies.compute()
    print(float(done.sum()))  # HERE


if __name__ == "__main__":
    main()
