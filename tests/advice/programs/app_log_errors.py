"""Finds: list."""

import os
import tempfile


def count_errors(path):
    errors = 0
    with open(path, encoding="utf-8") as log:
        #: for line in log:
        for line in log.readlines():  # HERE
            if line.startswith("ERROR"):
                errors += 1
    return errors


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "service.log")
    with open(path, "w", encoding="utf-8") as log:
        log.writelines(
            f"{'ERROR' if number % 50 == 0 else 'INFO'} request {number} took {number % 900} ms\n"
            for number in range(120_000)
        )
    print(count_errors(path))
