import duckdb


def main():
    base = duckdb.connect()
    base.execute("SET threads = 2")
    base.execute("CREATE TABLE small AS SELECT 1 AS a")
    base.execute("CREATE TABLE t AS SELECT range AS k, range * 7919 % 1000003 AS v FROM range(8000000)")  # HERE
    print(base.execute("SELECT count(*) FROM t").fetchone())


if __name__ == "__main__":
    main()
