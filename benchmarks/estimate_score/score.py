"""How right estimates are: programs that ran on cards, ours and others', estimated here and compared.

    python benchmarks/estimate_score/score.py [--write] [program …]

Needs no card. `measured.json` has what `measure.py` saw, `published.json` what others published, with the sources.
`--write` puts the tables into docs/estimate-accuracy.md. Rows whose libraries are not installed are left out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "estimate-accuracy.md"
KERNELS, RANKS = "kernels of published benchmarks", "published peaks of many cards"
_TABLES = re.compile(r"(<!-- tables: make score -->\n).*?(<!-- end of tables -->)", re.DOTALL)


class Row(NamedTuple):
    """A program as it ran on a card. What was not measured is None."""

    kind: str
    program: str
    path: Path
    card: str
    allocated: int | None
    reserved: int | None
    batch_size: int | None = None
    ranks: int | None = None
    is_inference: bool = False

    @property
    def name(self):
        size = self.batch_size or self.ranks
        return self.program + ("" if size is None else f" {size:,}")


class Outcome(NamedTuple):
    """A row compared with its estimate: errors in percent, also with the largest workspaces of convolutions, or why
    there is no estimate."""

    row: Row
    allocated: float | None
    reserved: float | None
    problem: str = ""
    most_allocated: float | None = None
    most_reserved: float | None = None


def measured_rows():
    import programs

    documents = json.loads((HERE / "measured.json").read_text(encoding="utf-8"))
    for kind, names in programs.CLASSES.items():
        for name, found in ((name, found) for name in names for found in documents if name in found["rows"]):
            row = found["rows"][name]
            yield Row(
                kind, name, HERE / "programs.py", found["about"]["card"], row["allocated"], row["reserved"],
                is_inference=name in programs.INFERENCE,
            )  # fmt: skip


def published_rows():
    for entry in json.loads((HERE / "published.json").read_text(encoding="utf-8")):
        for size, mebibytes in entry["mebibytes"].items():
            peak, what = round(mebibytes * 2**20), (entry["program"], HERE / "kernels.py", entry["card"])
            if entry["metric"] == "allocated":
                yield Row(KERNELS, *what, peak, None, int(size))
            else:  # of programs on this many ranks
                yield Row(RANKS, what[0], HERE / "torchtitan.py", what[2], None, peak, ranks=int(size))


def outcome(row):
    import hiwater.contrib.torch
    from hiwater.errors import HiwaterError

    # As torch does by itself up to 2.11, the newest that a row was measured with.
    os.environ["TORCH_CUBLASLT_UNIFIED_WORKSPACE"] = "0"

    try:
        found = hiwater.contrib.torch.estimate(
            f"{row.path}:{row.program}", device=row.card, batch_size=row.batch_size, ranks=row.ranks,
            mode="inference" if row.is_inference else "train",
        )  # fmt: skip
    except HiwaterError as error:
        return Outcome(row, None, None, error.problem)
    figures = (
        (found.peak_allocated_bytes, row.allocated), (found.peak_reserved_bytes, row.reserved),
        (found.most_allocated_bytes, row.allocated), (found.most_reserved_bytes, row.reserved),
    )  # fmt: skip
    errors = [100 * (seen - real) / real if real and seen is not None else None for seen, real in figures]
    return Outcome(row, *errors[:2], "", *errors[2:])


def tables(outcomes):
    """Errors by class, then every row."""
    lines = ["| class | rows | allocated: median | largest | reserved: median | largest |", "|---|---|---|---|---|---|"]
    for kind in dict.fromkeys(each.row.kind for each in outcomes):
        found = [each for each in outcomes if each.row.kind == kind and not each.problem]
        lines.append(f"| {kind} | {len(found)} | {_summary(found, 'allocated')} | {_summary(found, 'reserved')} |")
    lines += [
        "",
        "| program | card | allocated, bytes | error | reserved, bytes | error |",
        "|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        row = each.row
        reserved = (
            "| – | – |"
            if row.reserved is None
            else f"| {row.reserved:,} | {_percent(each.reserved, each.most_reserved)} |"
        )
        allocated = (
            "– | –" if row.allocated is None else f"{row.allocated:,} | {_percent(each.allocated, each.most_allocated)}"
        )
        lines.append(f"| {row.name} | {row.card} | {allocated} {reserved}")
    return "\n".join(lines)


def _summary(outcomes, kind):
    errors = [abs(error) for each in outcomes if (error := getattr(each, kind)) is not None]
    return f"{statistics.median(errors):.4f} % | {max(errors):.4f} %" if errors else "– | –"


def _percent(error, most=None):
    if error is None:
        return "no estimate"
    shown = ["0" if each == 0 else f"{each:+.4f} %" for each in (error, most) if each is not None]
    return " to ".join(dict.fromkeys(shown))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="the default is all")
    parser.add_argument("--write", action="store_true", help="into the documentation")
    arguments = parser.parse_args()
    outcomes = []
    for row in (*measured_rows(), *published_rows()):
        if arguments.programs and row.program not in arguments.programs:
            continue
        outcomes.append(outcome(row))
        print(row.name, *outcomes[-1][1:], sep="  ", file=sys.stderr, flush=True)
    text = tables(outcomes)
    print(text)
    if arguments.write:
        PAGE.write_text(
            _TABLES.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", PAGE.read_text("utf-8")), "utf-8"
        )


if __name__ == "__main__":
    main()
