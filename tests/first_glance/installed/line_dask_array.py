import dask.array as da


def main():
    table = da.ones((4000, 4000), chunks=(1000, 4000)) + 1
    values = table.compute()  # HERE
    print(values.shape)


if __name__ == "__main__":
    main()
