import polars as pl


def warm():
    return pl.DataFrame({"k": [1, 2, 3]}).group_by("k").len()


def main():
    warm()
    wide = pl.select(pl.int_range(3_000_000).alias("n")).with_columns(pl.col("n") % 1_000_000)
    groups = wide.group_by("n").agg(pl.col("n").cast(pl.Float64).alias("f"), pl.len())  # HERE
    print(groups.height)


if __name__ == "__main__":
    main()
