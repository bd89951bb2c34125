"""A pool of joblib's (loky): prints the answers and their times."""

import json
import sys

import joblib

import service_work

if __name__ == "__main__":
    found = joblib.Parallel(n_jobs=4, backend="loky")(
        joblib.delayed(service_work.answer)(i) for i in range(int(sys.argv[1]))
    )
    print(json.dumps(found))
