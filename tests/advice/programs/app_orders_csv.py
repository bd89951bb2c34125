"""Finds: object_column."""

import io

import pandas as pd


def revenue(text):
    #: orders = pd.read_csv(io.StringIO(text), usecols=["amount"])
    orders = pd.read_csv(io.StringIO(text))  # HERE
    return orders["amount"].sum()


rows = "\n".join(f"order-{number:07d},customer {number * 7},{number % 90}" for number in range(350_000))
print(revenue(f"id,customer,amount\n{rows}\n"))
