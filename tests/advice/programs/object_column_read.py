"""Finds: object_column."""

import tempfile

import pandas as pd


def main():
    with tempfile.TemporaryFile("w+") as file:
        file.write("name,town,age\n")
        file.writelines(f"person {number},town {number},{number}\n" for number in range(250_000))
        file.seek(0)
        table = pd.read_csv(file)  # HERE
        #: table = pd.read_csv(file, usecols=["age"])
    return len(table)


main()
