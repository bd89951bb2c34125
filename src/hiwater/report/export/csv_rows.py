"""Comma-separated values (RFC 4180), a row a stack or by what --by names; units are in the names of the columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import TextIO

from hiwater.report.export.columns import columns_of, tables
from hiwater.report.request import Report


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """One table with the rows of all reports; `pid` tells the processes apart. Names are escaped so that a row is one line.

    Recursion too deep to be written whole is written once. Raises ReportTooLarge.
    """
    parts = tables(reports)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns_of(reports[0]))
    for part in parts:
        writer.writerows(zip(*part.values, strict=True))
