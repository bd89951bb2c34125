"""Compares walks of native stacks with the compiler's own unwinder, in programs with large libraries: `make
check-unwind`.

Each program works for a while, recorded with native frames, and every N-th of its walks is walked again by
`_Unwind_Backtrace`. Exits with 1 if two walks differ, or if a program fails. Libraries that are not installed are left
out, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from importlib.util import find_spec

PROGRAMS = {
    "objects": ("json", """
        kept = [json.dumps({"a": [number, {"b": str(number) * 3}]}) for number in range(300)]
        kept.sort(key=lambda text: (len(text), text))
        sorted(map(json.loads, kept), key=repr)
    """),
    "sqlite3": ("sqlite3", """
        with sqlite3.connect(":memory:") as base:
            base.execute("create table t(a, b)")
            base.executemany("insert into t values (?, ?)", [(number, str(number)) for number in range(200)])
            base.execute("select b, count(*) from t group by b order by b").fetchall()
    """),
    "numpy": ("numpy", """
        points = numpy.random.default_rng(1).normal(size=(40, 8))
        numpy.linalg.svd(points), numpy.fft.fft(points), numpy.sort(points, axis=0)
        points @ points.T, [numpy.append(row, 1) for row in points]
    """),
    "pandas": ("pandas", """
        table = pandas.DataFrame({"key": [number % 7 for number in range(200)], "value": range(200),
            "name": [str(n) for n in range(200)]})
        table.groupby("key").agg({"value": ["sum", "mean"]}), table.merge(table, on="key").head()
        table.name.str.upper().value_counts()
    """),
    "sklearn": ("sklearn.ensemble", """
        points = [[number % 7, number % 11, number] for number in range(120)]
        model = sklearn.ensemble.RandomForestClassifier(5, n_jobs=2).fit(points, [number % 3 for number in range(120)])
        model.predict(points)
    """),
    "torch": ("torch", """
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()
    """),
    "pyarrow": ("pyarrow.compute", """
        table = pyarrow.table({"key": [number % 7 for number in range(500)],
            "name": [str(number) for number in range(500)]})
        table.group_by("key").aggregate([("name", "count")])
        pyarrow.compute.utf8_upper(table["name"]), table.to_pylist()
    """),
    "polars": ("polars", """
        table = polars.DataFrame({"key": [number % 7 for number in range(500)],
            "name": [str(number) for number in range(500)]})
        table.lazy().group_by("key").agg(polars.col("name").str.to_uppercase().first()).sort("key").collect()
    """),
}  # fmt: skip
"""The module that each needs, and what it does again and again."""
LOOP = """
import sys, time
import {module}
def work():
{body}
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    work()
import json, hiwater._core
json.dump({{name: value for name, value in hiwater._core.counters().items() if name.startswith("native_")}}, sys.stdout)
"""


def main() -> int:
    """Run the programs, print a table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=[*PROGRAMS], help=f"some of {', '.join(PROGRAMS)}")
    parser.add_argument("--seconds", type=float, default=20, help="for each program")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="compare every N-th walk")
    asked = parser.parse_args()
    print(f"{'program':<10} {'walks':>12} {'compared':>12} {'differ':>8} {'unknown':>10}")
    compared = wrong = 0
    for name in asked.programs:
        module, body = PROGRAMS[name]
        if find_spec(module.partition(".")[0]) is None:
            print(f"{name:<10} {module} is not installed")
            continue
        body = textwrap.indent(textwrap.dedent(body), "    ")
        found = _figures(LOOP.format(module=module, body=body, seconds=asked.seconds), asked.every)
        if found is None:
            wrong += 1
            continue
        compared, wrong = compared + found["native_checked"], wrong + found["native_mismatches"]
        print(
            f"{name:<10} {found['native_walks']:>12,} {found['native_checked']:>12,} {found['native_mismatches']:>8,} "
            f"{found['native_unknown'] / max(1, found['native_walks']):>10.3%}",
            flush=True,
        )
    print(f"{compared:,} walks compared, {wrong:,} wrong")
    return int(wrong > 0 or compared == 0)


def _figures(code: str, every: int) -> dict[str, int] | None:
    """What the recorder counted; None if the program failed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "hiwater", "run", "-q", "--native", "-o", f"{folder}/run.hiw", "-c", code],
            capture_output=True, text=True, check=False, env={**os.environ, "HIWATER_CHECK_UNWIND": str(every)},
        )  # fmt: skip
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    found: dict[str, int] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
