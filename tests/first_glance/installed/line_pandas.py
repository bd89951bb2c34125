import io

import pandas as pd


def main():
    text = "name,value\n" + "\n".join(f"item {number},{number}" for number in range(300_000))
    table = pd.read_csv(io.StringIO(text), dtype={"name": object})  # HERE
    print(len(pd.concat([table] * 2, ignore_index=True)))


if __name__ == "__main__":
    main()
